"""Large packets made by hand, and cut into single segments the way a network card would, to compare with."""

import struct

from lab.headers import ICMP
from lab.packets import GSO_NONE, GSO_TCPV4, GSO_UDP_L4, NEEDS_CSUM, TCP, UDP, VNET_BYTES

SOURCE, TARGET = bytes([10, 77, 1, 1]), bytes([10, 77, 2, 1])
FIN, SYN, PSH, ACK, CWR = 0x01, 0x02, 0x08, 0x10, 0x80


def plain_sum(data):
    """The ones' complement sum, written the slow way."""
    total = 0
    for index in range(0, len(data), 2):
        total += int.from_bytes(data[index : index + 2].ljust(2, b"\0"), "big")
    return total % 0xFFFF or (0xFFFF if total else 0)


def same_sum(a, b):
    return a % 0xFFFF == b % 0xFFFF  # 0 and 0xFFFF are one number


def _pseudo(protocol, size_bytes, ends):
    return ends + struct.pack(">BBH", 0, protocol, size_bytes)


def _ip(size_bytes, identification, protocol, ends):
    header = (
        struct.pack(">BBHHHBBH", 0x45, 0, 20 + size_bytes, identification, 0x4000, 64, protocol, 0) + ends
    )
    return header[:10] + struct.pack(">H", 0xFFFF - plain_sum(header)) + header[12:]


def tcp(
    payload,
    mss,
    sequence=7,
    flags=ACK,
    identification=1,
    options=b"\1\1\x08\x0a" + bytes(8),
    target=TARGET,
    source=SOURCE,
    ports=(5000, 6000),
):
    """A packet as the kernel hands it over: TSO where the payload is longer than one segment."""
    size_bytes = 20 + len(options) + len(payload)
    offset_flags = (5 + len(options) // 4) << 12 | flags
    partial = plain_sum(_pseudo(TCP, size_bytes, source + target))
    header = struct.pack(">HHIIHHHH", *ports, sequence, 99, offset_flags, 512, partial, 0) + options
    large = len(payload) > mss
    kind, gso_size = (GSO_TCPV4, mss) if large else (GSO_NONE, 0)
    vnet = struct.pack("=BBHHHH", NEEDS_CSUM, kind, 20 + len(header), gso_size, 20, 16)
    return vnet + _ip(size_bytes, identification, TCP, source + target) + header + payload


def udp(payload, mss, identification=1, target=TARGET, source=SOURCE, ports=(5000, 6000)):
    size_bytes = 8 + len(payload)
    partial = plain_sum(_pseudo(UDP, size_bytes, source + target))
    header = struct.pack(">HHHH", *ports, size_bytes, partial)
    large = len(payload) > mss
    kind, gso_size = (GSO_UDP_L4, mss) if large else (GSO_NONE, 0)
    vnet = struct.pack("=BBHHHH", NEEDS_CSUM, kind, 28, gso_size, 20, 6)
    return vnet + _ip(size_bytes, identification, UDP, source + target) + header + payload


def icmp(kind, code, rest, target=TARGET, source=SOURCE):
    """`rest`: four bytes, then what is carried; for an error the packet that it is about."""
    body = struct.pack(">BBH", kind, code, 0) + rest
    body = body[:2] + struct.pack(">H", 0xFFFF - plain_sum(body)) + body[4:]
    return bytes(VNET_BYTES) + _ip(len(body), 1, ICMP, source + target) + body


def summed(data):
    """A packet of one segment with its whole checksum in it, as who does without offload sends it."""
    packet = data[VNET_BYTES:]
    at = 20 + {TCP: 16, UDP: 6}[packet[9]]
    cleared = packet[20:at] + bytes(2) + packet[at + 2 :]
    whole = 0xFFFF - plain_sum(_pseudo(packet[9], len(packet) - 20, packet[12:20]) + cleared)
    return bytes(VNET_BYTES) + packet[:at] + struct.pack(">H", whole or 0xFFFF) + packet[at + 2 :]


def ends(data):
    """(source, its port), (target, its port) of a packet of TCP or UDP; checksums verified."""
    packet = data[VNET_BYTES:]
    if data[0] & NEEDS_CSUM:
        on_the_wire(data)
    else:
        assert plain_sum(packet[:20]) == 0xFFFF, "IPv4's checksum"
        whole = _pseudo(packet[9], len(packet) - 20, packet[12:20]) + packet[20:]
        assert plain_sum(whole) == 0xFFFF, "the whole checksum"
    source, target = struct.unpack(">HH", packet[20:24])
    return (packet[12:16], source), (packet[16:20], target)


def on_the_wire(data):
    """The segments of a packet as (identification, sequence, flags, payload), all of its checksums verified."""
    _, kind, _, gso_size, csum_start, csum_offset = struct.unpack_from("=BBHHHH", data)
    packet = data[VNET_BYTES:]
    assert len(packet) == int.from_bytes(packet[2:4], "big"), "IPv4's total length"
    assert plain_sum(packet[:20]) == 0xFFFF, "IPv4's checksum"
    protocol = packet[9]
    transport = packet[20:]
    partial = int.from_bytes(packet[csum_start + csum_offset :][:2], "big")
    assert csum_start == 20
    assert same_sum(partial, plain_sum(_pseudo(protocol, len(transport), packet[12:20]))), (
        "the pseudo header's sum"
    )
    header_bytes = (transport[12] >> 4) * 4 if protocol == TCP else 8
    if protocol == UDP:
        assert int.from_bytes(transport[4:6], "big") == len(transport), "UDP's length"
    payload = transport[header_bytes:]
    step = gso_size if kind != GSO_NONE else max(1, len(payload))
    assert kind == GSO_NONE or len(payload) > gso_size, "one segment needs no segmentation"
    parts = [payload[at : at + step] for at in range(0, len(payload), step)]
    return [_segment(packet, protocol, index, step, part, len(parts)) for index, part in enumerate(parts)]


def _segment(packet, protocol, index, step, part, count):
    identification = (int.from_bytes(packet[4:6], "big") + index) & 0xFFFF
    if protocol == UDP:
        return identification, None, None, part
    sequence = (int.from_bytes(packet[24:28], "big") + index * step) & 0xFFFFFFFF
    flags = packet[33]
    if index > 0:
        flags &= ~CWR
    if index < count - 1:
        flags &= ~(FIN | PSH)
    return identification, sequence, flags, part
