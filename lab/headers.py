"""Small changes to a packet's headers, and the one packet that the router writes itself.

A checksum is changed by what changed below it, and never computed anew (RFC 1624): in ones' complement, taking a word
out is adding its inverse. Where a packet says NEEDS_CSUM, TCP's and UDP's field holds the sum of the pseudo header, not
inverted: addresses count there, ports and options do not yet.

Layouts: RFC 791, RFC 792 and RFC 1191 (fragmentation needed), RFC 9293 (options of TCP).
"""

from __future__ import annotations

import struct
from collections.abc import Iterator

from lab.packets import NEEDS_CSUM, TCP, VNET_BYTES, folded, ones_sum

ICMP = 1
ECHO_REPLY, UNREACHABLE, ECHO, TIME_EXCEEDED, BAD_PARAMETER = 0, 3, 8, 11, 12
ICMP_ERRORS = frozenset(
    {UNREACHABLE, TIME_EXCEEDED, BAD_PARAMETER}
)  # they quote the packet that they are about
FRAGMENTATION_NEEDED = 4
IP_BYTES = 20  # without options
ROUTER = bytes([10, 77, 0, 1])  # who says that a packet is too large: no site has the number 0

_TCP_BYTES = 20  # without options
_QUOTED_BYTES = 8  # behind the header of IP
_SYN = 0x02
_END, _NOTHING, _MSS = 0, 1, 2  # kinds of options
_TTL = 64


def is_later_fragment(data: bytes) -> bool:
    """Whether the headers above IPv4 are in another packet."""
    return bool((data[VNET_BYTES + 6] & 0x1F) | data[VNET_BYTES + 7])


def difference(before: bytes, after: bytes) -> int:
    """What a ones' complement sum grows by where `after` takes the place of `before`; of the same even length."""
    return folded(ones_sum(after) + (~ones_sum(before) & 0xFFFF))


def add_to_sum(data: bytearray, at: int, change: int) -> None:
    """A field that holds a sum as it is."""
    data[at : at + 2] = folded(int.from_bytes(data[at : at + 2], "big") + change).to_bytes(2, "big")


def add_to_checksum(data: bytearray, at: int, change: int) -> None:
    """A field that holds the inverse of a sum."""
    total = folded((~int.from_bytes(data[at : at + 2], "big") & 0xFFFF) + change)
    data[at : at + 2] = (~total & 0xFFFF).to_bytes(2, "big")


def with_mss_within(data: bytes, mtu: int) -> bytes:
    """A SYN that announces no larger segments than fit `mtu`; every other packet as it is.

    data: vnet header and IPv4 packet. mtu: bytes of an IP packet. The option counts 40 bytes less (RFC 6691).
    """
    tcp = VNET_BYTES + (data[VNET_BYTES] & 15) * 4
    if data[VNET_BYTES + 9] != TCP or is_later_fragment(data) or len(data) < tcp + _TCP_BYTES:
        return data
    if not data[tcp + 13] & _SYN:
        return data
    most = mtu - IP_BYTES - _TCP_BYTES
    for kind, at in _options(data, tcp):
        if kind == _MSS and int.from_bytes(data[at : at + 2], "big") > most:
            return _with_word(data, tcp, at, most)
    return data


def _options(data: bytes, tcp: int) -> Iterator[tuple[int, int]]:
    """The kind of each option of a TCP header that begins at `tcp`, and where its value begins."""
    at, end = tcp + _TCP_BYTES, min(len(data), tcp + (data[tcp + 12] >> 4) * 4)
    while at + 1 < end and data[at] != _END:
        if data[at] == _NOTHING:
            at += 1
            continue
        size_bytes = data[at + 1]
        if size_bytes < 2 or at + size_bytes > end:
            return
        yield data[at], at + 2
        at += size_bytes


def _with_word(data: bytes, tcp: int, at: int, value: int) -> bytes:
    changed = bytearray(data)
    changed[at : at + 2] = value.to_bytes(2, "big")
    if not data[0] & NEEDS_CSUM:
        change = difference(data[at : at + 2], value.to_bytes(2, "big"))
        if (at - tcp) % 2:  # its bytes belong to two words of the sum
            change = (change & 0xFF) << 8 | change >> 8
        add_to_checksum(changed, tcp + 16, change)
    return bytes(changed)


def fragmentation_needed(data: bytes, mtu: int) -> bytes:
    """What a router sends back for a packet that is too large, behind a vnet header.

    data: vnet header and IPv4 packet. mtu: bytes of an IP packet that would pass.
    """
    ip_bytes = (data[VNET_BYTES] & 15) * 4
    quoted = data[VNET_BYTES : VNET_BYTES + ip_bytes + _QUOTED_BYTES]
    icmp = bytearray(struct.pack(">BBHHH", UNREACHABLE, FRAGMENTATION_NEEDED, 0, 0, mtu) + quoted)
    icmp[2:4] = (~ones_sum(bytes(icmp)) & 0xFFFF).to_bytes(2, "big")
    source = data[VNET_BYTES + 12 : VNET_BYTES + 16]
    head = struct.pack(">BBHHHBBH", 0x45, 0xC0, IP_BYTES + len(icmp), 0, 0, _TTL, ICMP, 0)
    ip = bytearray(head + ROUTER + source)
    ip[10:12] = (~ones_sum(bytes(ip)) & 0xFFFF).to_bytes(2, "big")
    return bytes(VNET_BYTES) + bytes(ip) + bytes(icmp)


def may_be_answered(data: bytes) -> bool:
    """Whether a packet may be answered with an error: no error about an error or a later fragment (RFC 1122)."""
    if is_later_fragment(data):
        return False
    at = VNET_BYTES + (data[VNET_BYTES] & 15) * 4
    return data[VNET_BYTES + 9] != ICMP or (len(data) > at and data[at] not in ICMP_ERRORS)
