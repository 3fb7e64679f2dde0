import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import ACK, SYN, ends, icmp, plain_sum, same_sum, summed, tcp, udp

from lab.headers import (
    add_to_checksum,
    add_to_sum,
    difference,
    fragmentation_needed,
    may_be_answered,
    with_mss_within,
)
from lab.packets import VNET_BYTES

MSS_OPTION = b"\2\4" + (1460).to_bytes(2, "big")
words = st.binary(min_size=4, max_size=4)


@given(words, words, st.binary(min_size=2, max_size=40))
def test_a_sum_changes_by_what_changed_below_it(before, after, rest):
    change = difference(before, after)
    field = bytearray(plain_sum(before + rest).to_bytes(2, "big"))
    add_to_sum(field, 0, change)
    assert same_sum(int.from_bytes(field, "big"), plain_sum(after + rest))
    inverse = bytearray((0xFFFF - plain_sum(before + rest)).to_bytes(2, "big"))
    add_to_checksum(inverse, 0, change)
    assert same_sum(int.from_bytes(inverse, "big"), 0xFFFF - plain_sum(after + rest))


def announced(data, option_at):
    return int.from_bytes(data[VNET_BYTES + 40 + option_at + 2 :][:2], "big")


@pytest.mark.parametrize("whole", [False, True], ids=["partial checksum", "whole checksum"])
@pytest.mark.parametrize("flags", [SYN, SYN | ACK])
@pytest.mark.parametrize(
    ("options", "at"),
    [(MSS_OPTION, 0), (b"\1\1\4\2" + MSS_OPTION, 4), (b"\1" + MSS_OPTION + b"\1\1\1", 1)],
    ids=["first", "behind others", "at an odd place"],
)
def test_the_mss_of_a_syn_is_lowered_and_its_checksum_holds(options, at, flags, whole):
    packet = tcp(b"", 1448, flags=flags, options=options)
    packet = summed(packet) if whole else packet
    lowered = with_mss_within(packet, 1300)
    assert announced(lowered, at) == 1260
    ends(lowered)  # verifies them
    assert with_mss_within(packet, 1500) == packet


@pytest.mark.parametrize(
    "packet",
    [
        tcp(b"data", 1448, options=MSS_OPTION),
        tcp(b"", 1448, flags=SYN, options=b""),
        tcp(b"", 1448, flags=SYN, options=b"\0\0\0\0" + MSS_OPTION),
        tcp(b"", 1448, flags=SYN, options=b"\2\0\2\0"),
        tcp(b"", 1448, flags=SYN, options=b"\5\x28\2\4"),
        tcp(b"", 1448, flags=SYN, options=MSS_OPTION)[: VNET_BYTES + 30],
        udp(bytes(40), 1448),
    ],
    ids=["no SYN", "no option", "behind the end", "no length", "too long", "cut short", "UDP"],
)
def test_what_announces_no_mss_is_left_as_it_is(packet):
    assert with_mss_within(packet, 600) == packet


def test_the_answer_to_a_packet_that_is_too_large_quotes_it():
    packet = udp(bytes(1400), 1400, source=bytes([10, 77, 9, 8]))
    answer = fragmentation_needed(packet, 1300)[VNET_BYTES:]
    assert len(answer) == int.from_bytes(answer[2:4], "big") == 20 + 8 + 28
    assert plain_sum(answer[:20]) == plain_sum(answer[20:]) == 0xFFFF
    assert answer[16:20] == bytes([10, 77, 9, 8])
    assert struct.unpack(">BBHHH", answer[20:28])[::4] == (3, 1300)
    assert answer[28:] == packet[VNET_BYTES:][:28]


def test_no_error_is_sent_about_an_error_or_a_later_fragment():
    whole = udp(bytes(40), 100)
    fragment = bytearray(whole)
    fragment[VNET_BYTES + 7] = 9
    assert may_be_answered(whole)
    assert may_be_answered(icmp(8, 0, bytes(30)))
    assert not may_be_answered(bytes(fragment))
    assert not may_be_answered(icmp(3, 3, bytes(4) + whole[VNET_BYTES:]))
