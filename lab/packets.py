"""Packets as a TUN device hands them over: a vnet header, then IPv4, with many segments in one packet.

With segmentation offload the kernel hands the router up to 64 KiB of one TCP or UDP flow as a single packet,
whose vnet header says how large each segment on the wire would be (`gso_size`). Counting and losing is done
by segment; only where some segments are lost, or the link is slow, is a packet cut into runs of segments. A
run of a packet is a packet in its own right: same headers, with lengths, IPv4 identification, sequence
number, flags and checksums of the run.

The checksum of TCP and UDP is never complete here. `VIRTIO_NET_HDR_F_NEEDS_CSUM` says that the field holds
the sum of the pseudo header alone, which the receiving kernel trusts; a cut only has to put the new length
into it.

Layouts: linux/virtio_net.h (legacy header, 10 bytes, host byte order), RFC 791, RFC 9293, RFC 768.
"""

from __future__ import annotations

import struct
import sys

VNET_BYTES = 10  # flags, gso_type, hdr_len, gso_size, csum_start, csum_offset
NEEDS_CSUM = 1
GSO_NONE, GSO_TCPV4, GSO_UDP_L4 = 0, 1, 5
TCP, UDP = 6, 17
MAX_PACKET_BYTES = VNET_BYTES + 65_535

_VNET = struct.Struct("=BBHHHH")
_FIN_PSH = 0x09  # only the last segment of a packet carries them
_CWR = 0x80  # only the first one


class Packet:
    """One packet of one or more segments, as read from a TUN device."""

    __slots__ = ("_headers", "_payload", "data", "gso_size", "segments", "wire_bytes")

    def __init__(self, data: bytes) -> None:
        """`data`: vnet header and IPv4 packet; ValueError where it is no such packet."""
        if len(data) < VNET_BYTES + 20 or data[VNET_BYTES] >> 4 != 4:
            raise ValueError("not an IPv4 packet behind a vnet header")
        self.data = data
        self._headers = self._payload = 0
        self.gso_size = 0
        self.segments = 1
        self.wire_bytes = len(data) - VNET_BYTES
        if data[1] != GSO_NONE:
            self._measure(data)

    def _measure(self, data: bytes) -> None:
        ip_bytes = (data[VNET_BYTES] & 15) * 4
        if data[1] == GSO_TCPV4:
            headers = ip_bytes + (data[VNET_BYTES + ip_bytes + 12] >> 4) * 4
        elif data[1] == GSO_UDP_L4:
            headers = ip_bytes + 8
        else:
            raise ValueError(f"segmentation of type {data[1]}, which was not asked for")
        self.gso_size = int.from_bytes(data[4:6], sys.byteorder)
        self._headers = headers
        self._payload = self.wire_bytes - headers
        if self.gso_size == 0 or self._payload <= 0:
            raise ValueError("a segmented packet without segments")
        self.segments = -(-self._payload // self.gso_size)
        self.wire_bytes = self._payload + self.segments * headers

    @property
    def target(self) -> int:
        """The third octet of the destination's address: the number of a site."""
        return self.data[VNET_BYTES + 18]

    @property
    def source(self) -> int:
        """The same of the source's address."""
        return self.data[VNET_BYTES + 14]

    @property
    def protocol(self) -> int:
        """What IPv4 carries, such as TCP; each fragment of a datagram says so."""
        return self.data[VNET_BYTES + 9]

    @property
    def segment_bytes(self) -> int:
        """What a full segment is on the wire, headers and all."""
        return self.gso_size + self._headers if self.gso_size else self.wire_bytes

    def run_bytes(self, first: int, end: int) -> int:
        """What the segments from `first` up to `end` are on the wire, headers and all."""
        if not self.gso_size:
            return self.wire_bytes
        payload = min(self._payload, end * self.gso_size) - first * self.gso_size
        return payload + (end - first) * self._headers

    def run(self, first: int, end: int) -> bytes:
        """The segments from `first` up to `end` as a packet, with its vnet header."""
        if end - first == self.segments:
            return self.data
        begin = VNET_BYTES + self._headers
        payload = self.data[begin + first * self.gso_size : begin + min(self._payload, end * self.gso_size)]
        headers = bytearray(self.data[:begin])
        ip = memoryview(headers)[VNET_BYTES:]
        ip_bytes = (ip[0] & 15) * 4
        _fit_ip(ip[:ip_bytes], self._headers + len(payload), first)
        transport = ip[ip_bytes:]
        if headers[1] == GSO_TCPV4:
            _fit_tcp(transport, first * self.gso_size, first == 0, end == self.segments)
            at = 16
        else:
            transport[4:6] = (8 + len(payload)).to_bytes(2, "big")
            at = 6
        protocol = TCP if headers[1] == GSO_TCPV4 else UDP
        pseudo = ones_sum(bytes(ip[12:20])) + protocol + len(transport) + len(payload)
        transport[at : at + 2] = folded(pseudo).to_bytes(2, "big")
        if end - first == 1:
            flags, _, header_bytes, _, csum_start, csum_offset = _VNET.unpack_from(headers)
            _VNET.pack_into(headers, 0, flags, GSO_NONE, header_bytes, 0, csum_start, csum_offset)
        return bytes(headers) + payload


def _fit_ip(ip: memoryview, total_bytes: int, first: int) -> None:
    """Length, identification (one more for each segment before) and header checksum of a run."""
    ip[2:4] = total_bytes.to_bytes(2, "big")
    identification = int.from_bytes(ip[4:6], "big") + first
    ip[4:6] = (identification & 0xFFFF).to_bytes(2, "big")
    ip[10:12] = b"\0\0"
    ip[10:12] = (~ones_sum(bytes(ip)) & 0xFFFF).to_bytes(2, "big")


def _fit_tcp(tcp: memoryview, offset_bytes: int, is_first: bool, is_last: bool) -> None:
    """Sequence number and flags of a run."""
    sequence = int.from_bytes(tcp[4:8], "big") + offset_bytes
    tcp[4:8] = (sequence & 0xFFFFFFFF).to_bytes(4, "big")
    if not is_first:
        tcp[13] &= ~_CWR & 0xFF
    if not is_last:
        tcp[13] &= ~_FIN_PSH & 0xFF


def folded(total: int) -> int:
    """A sum of 16-bit words with its carries added in, as ones' complement has it."""
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return total


def ones_sum(data: bytes) -> int:
    """The ones' complement sum of 16-bit words (RFC 1071), folded to 16 bits, not inverted."""
    if len(data) % 2:
        data += b"\0"
    return folded(sum(struct.unpack(f">{len(data) // 2}H", data)))
