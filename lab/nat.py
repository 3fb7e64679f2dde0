"""Network address translation at the edge of a site: the others see one address, and a port for each flow.

A flow is a protocol, two addresses and two ports; an echo request (`ping`) counts its identifier as both. The first
packet that leaves opens a mapping to a port of its own, and only the peer that it was sent to can answer there: mapping
and filtering that depend on address and port (RFC 4787, 4.1 and 5), as gateways of cloud providers do it. Mappings
do not expire; where all ports are taken the oldest mapping ends. Errors of ICMP about a flow are translated with the
packet that they quote (RFC 5508). All else is refused: fragments, options of IPv4, other protocols, and whoever opens
a flow from outside or knows the address inside.

`rebind` forgets the mappings of UDP: the next datagram of a flow has another port outside, and what comes to the old
one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass

from lab.headers import (
    ECHO,
    ECHO_REPLY,
    ICMP,
    ICMP_ERRORS,
    IP_BYTES,
    add_to_checksum,
    add_to_sum,
    difference,
)
from lab.packets import NEEDS_CSUM, TCP, UDP, VNET_BYTES

HOST = 253  # of the site's addresses: the one outside
FIRST_PORT, LAST_PORT = 20_000, 65_535

_IP = VNET_BYTES
_IP_CHECKSUM = _IP + 10
_SOURCE, _TARGET = _IP + 12, _IP + 16
_ABOVE = _IP + IP_BYTES  # TCP, UDP or ICMP
_SOURCE_PORT, _TARGET_PORT, _IDENTIFIER = _ABOVE, _ABOVE + 2, _ABOVE + 4
_CHECKSUM = {TCP: _ABOVE + 16, UDP: _ABOVE + 6, ICMP: _ABOVE + 2}
_QUOTED = _ABOVE + 8  # the packet that an error is about
_PLAIN = 0x45  # IPv4 without options
_FRAGMENT = 0x3FFF  # more fragments follow, or came before


@dataclass(frozen=True, slots=True)
class _Rewrite:
    """What a flow has in place of its own end, in one direction; the changes are those of checksums."""

    address: bytes
    port: bytes
    address_change: int
    port_change: int


class Nat:
    """The translation of one site. Packets have a vnet header; None in place of one that is refused."""

    def __init__(self, number: int) -> None:
        """`number`: of the site, from 1."""
        self._address = bytes([10, 77, number, HOST])
        self._outward: dict[bytes, _Rewrite] = {}
        self._inward: dict[bytes, _Rewrite] = {}
        self._keys: dict[int, tuple[bytes, bytes]] = {}  # outward and inward, by the port outside
        self._next_port = FIRST_PORT
        self.refused = 0

    @property
    def mappings(self) -> int:
        """How many flows have one."""
        return len(self._keys)

    def rebind(self) -> None:
        """Forget the mappings of UDP."""
        for port in [port for port, (key, _) in self._keys.items() if key[0] == UDP]:
            self._forget(port)

    def outward(self, data: bytes) -> bytes | None:
        """A packet leaves the site."""
        key = _key(data, outward=True)
        if key is not None:
            rewrite = self._outward.get(key) or self._open(key)
            return _rewritten(data, rewrite, _SOURCE, _SOURCE_PORT)
        return self._error(data, self._outward, _SOURCE, quoted=(16, 22))

    def inward(self, data: bytes) -> bytes | None:
        """A packet has reached the site."""
        key = _key(data, outward=False)
        if key is None:
            return self._error(data, self._inward, _TARGET, quoted=(12, 20))
        rewrite = self._inward.get(key)
        if rewrite is None:
            self.refused += 1
            return None
        return _rewritten(data, rewrite, _TARGET, _TARGET_PORT)

    def _open(self, key: bytes) -> _Rewrite:
        """A mapping for a flow that has none: protocol, inside, peer, port inside, port of the peer."""
        number = self._next_port
        self._next_port = FIRST_PORT if number == LAST_PORT else number + 1
        self._forget(number)
        protocol, inside, peer, own, other = key[:1], key[1:5], key[5:9], key[9:11], key[11:]
        port = number.to_bytes(2, "big")
        back = protocol + peer + self._address + (port if protocol[0] == ICMP else other) + port
        self._outward[key] = _rewrite((inside, own), (self._address, port))
        self._inward[back] = _rewrite((self._address, port), (inside, own))
        self._keys[number] = key, back
        return self._outward[key]

    def _forget(self, port: int) -> None:
        if port in self._keys:
            key, back = self._keys.pop(port)
            del self._outward[key], self._inward[back]

    def _error(
        self, data: bytes, ways: dict[bytes, _Rewrite], address_at: int, quoted: tuple[int, int]
    ) -> bytes | None:
        """An error of ICMP, about a packet that went the other way: `quoted` is where that has this end.

        Its quoted header of IPv4 sums up to the same as before, its own checksum with it; only the port changes it.
        """
        rewrite = ways.get(_key_of_quoted(data))
        if rewrite is None:
            self.refused += 1
            return None
        changed = bytearray(data)
        in_quoted, port_at = _QUOTED + quoted[0], _QUOTED + quoted[1]
        changed[address_at : address_at + 4] = changed[in_quoted : in_quoted + 4] = rewrite.address
        changed[port_at : port_at + 2] = rewrite.port
        add_to_checksum(changed, _IP_CHECKSUM, rewrite.address_change)
        add_to_checksum(changed, _QUOTED + 10, rewrite.address_change)
        add_to_checksum(changed, _CHECKSUM[ICMP], rewrite.port_change)
        return bytes(changed)


def _key(data: bytes, outward: bool) -> bytes | None:
    """Protocol, source, target, and the ports of a flow; None where it is none that can be mapped."""
    if not _is_whole(data, _IP) or len(data) < _ABOVE + 8:
        return None
    protocol = data[_IP + 9]
    if protocol in (TCP, UDP):
        return data[_IP + 9 : _IP + 10] + data[_SOURCE : _ABOVE + 4]
    if protocol == ICMP and data[_ABOVE] == (ECHO if outward else ECHO_REPLY):
        return data[_IP + 9 : _IP + 10] + data[_SOURCE:_ABOVE] + 2 * data[_IDENTIFIER : _IDENTIFIER + 2]
    return None


def _key_of_quoted(data: bytes) -> bytes:
    """As `_key`, of a packet that goes the way of the error that quotes the one back; empty where it is no error."""
    if len(data) < _QUOTED + IP_BYTES + 8 or not _is_whole(data, _IP) or data[_IP + 9] != ICMP:
        return b""
    quoted = data[_QUOTED : _QUOTED + IP_BYTES + 4]
    if data[_ABOVE] not in ICMP_ERRORS or quoted[9] not in (TCP, UDP) or not _is_whole(quoted, 0):
        return b""
    return quoted[9:10] + quoted[16:20] + quoted[12:16] + quoted[22:24] + quoted[20:22]


def _is_whole(data: bytes, at: int) -> bool:
    """An IPv4 packet that begins at `at` is no fragment and has no options."""
    return data[at] == _PLAIN and not int.from_bytes(data[at + 6 : at + 8], "big") & _FRAGMENT


def _rewrite(before: tuple[bytes, bytes], after: tuple[bytes, bytes]) -> _Rewrite:
    return _Rewrite(*after, difference(before[0], after[0]), difference(before[1], after[1]))


def _rewritten(data: bytes, rewrite: _Rewrite, address_at: int, port_at: int) -> bytes:
    """A packet with another end, and checksums to match. The partial sum of NEEDS_CSUM knows no ports yet."""
    changed = bytearray(data)
    protocol = data[_IP + 9]
    if protocol == ICMP:
        port_at = _IDENTIFIER
    changed[address_at : address_at + 4] = rewrite.address
    changed[port_at : port_at + 2] = rewrite.port
    add_to_checksum(changed, _IP_CHECKSUM, rewrite.address_change)
    at = _CHECKSUM[protocol]
    if protocol == ICMP:
        add_to_checksum(changed, at, rewrite.port_change)
    elif data[0] & NEEDS_CSUM:
        add_to_sum(changed, at, rewrite.address_change)
    elif protocol == TCP or changed[at] | changed[at + 1]:  # 0: a datagram without a checksum
        add_to_checksum(changed, at, rewrite.address_change + rewrite.port_change)
        if protocol == UDP and not changed[at] | changed[at + 1]:
            changed[at : at + 2] = b"\xff\xff"
    return bytes(changed)
