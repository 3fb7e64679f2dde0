import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import SOURCE, TARGET, ends, icmp, on_the_wire, plain_sum, summed, tcp, udp

from lab.nat import FIRST_PORT, LAST_PORT, Nat
from lab.packets import VNET_BYTES

OUTSIDE = bytes([10, 77, 1, 253])
INSIDE, PEER = (SOURCE, 5000), (TARGET, 6000)


def answer(seen, make=udp, payload=b"answer", peer=PEER):
    return make(payload, 1000, source=peer[0], target=seen[0], ports=(peer[1], seen[1]))


@given(
    st.sampled_from([tcp, udp]),
    st.binary(min_size=1, max_size=3000),
    st.integers(1, 255),
    st.integers(0, 0xFFFF),
    st.booleans(),
)
def test_a_flow_goes_out_and_back_with_checksums_that_hold(make, payload, host, port, is_whole):
    nat, inside = Nat(1), (bytes([10, 77, 1, host]), port)
    payload = payload[:99] if is_whole else payload
    given = summed if is_whole else bytes
    packet = given(make(payload, 1000, source=inside[0], ports=(port, 6000)))
    out = nat.outward(packet)
    seen, target = ends(out)
    assert (seen[0], target) == (OUTSIDE, PEER)
    assert is_whole or on_the_wire(out) == on_the_wire(packet)
    assert ends(nat.inward(given(answer(seen, make)))) == (PEER, inside)
    assert nat.refused == 0


def test_a_datagram_without_a_checksum_stays_without():
    packet = bytearray(udp(b"x", 1000))
    packet[0] = 0
    packet[VNET_BYTES + 26 : VNET_BYTES + 28] = bytes(2)
    assert Nat(1).outward(bytes(packet))[VNET_BYTES + 26 : VNET_BYTES + 28] == bytes(2)


def test_a_checksum_of_zero_is_not_taken_for_none():
    """What the port outside will be is known; the payload is such that the sum is then 0."""
    zero = summed(udp(bytes(2), 1000, source=OUTSIDE, ports=(FIRST_PORT, 6000)))
    payload = zero[VNET_BYTES + 26 : VNET_BYTES + 28]
    assert zero[VNET_BYTES + 26 : VNET_BYTES + 28] != bytes(2)
    out = Nat(1).outward(summed(udp(payload, 1000)))
    assert out[VNET_BYTES + 26 : VNET_BYTES + 28] == b"\xff\xff"
    ends(out)


def test_each_flow_has_a_port_of_its_own_and_keeps_it():
    nat = Nat(1)
    flows = [{"ports": (5000, 6000)}, {"ports": (5001, 6000)}, {"ports": (5000, 6001)}]
    seen = [ends(nat.outward(udp(b"x", 1000, **flow)))[0] for flow in flows]
    assert len(set(seen)) == nat.mappings == 3
    assert [ends(nat.outward(udp(b"y", 1000, **flow)))[0] for flow in flows] == seen


@pytest.mark.parametrize("peer", [(TARGET, 6001), (bytes([10, 77, 3, 1]), 6000)])
def test_only_whom_a_flow_was_sent_to_may_answer(peer):
    nat = Nat(1)
    seen, _ = ends(nat.outward(udp(b"x", 1000)))
    assert nat.inward(answer(seen, peer=peer)) is None
    assert nat.inward(answer(seen, tcp)) is None
    assert nat.refused == 2


def test_rebinding_forgets_datagrams_and_keeps_streams():
    nat = Nat(1)
    datagrams, stream = ends(nat.outward(udp(b"x", 1000)))[0], ends(nat.outward(tcp(b"x", 1000)))[0]
    nat.rebind()
    assert nat.inward(answer(datagrams)) is None
    assert ends(nat.inward(answer(stream, tcp)))[1] == INSIDE
    assert ends(nat.outward(tcp(b"x", 1000)))[0] == stream
    again = ends(nat.outward(udp(b"x", 1000)))[0]
    assert again != datagrams
    assert ends(nat.inward(answer(again)))[1] == INSIDE


def test_where_all_ports_are_taken_the_oldest_mapping_ends():
    nat = Nat(1)
    count = LAST_PORT + 1 - FIRST_PORT
    seen = [ends(nat.outward(udp(b"", 1000, ports=(port, 6000))))[0] for port in range(count + 1)]
    assert seen[0] == seen[-1]
    assert nat.mappings == count
    assert ends(nat.inward(answer(seen[-1])))[1] == (SOURCE, count)


def test_an_echo_and_its_reply_pass():
    nat = Nat(1)
    out = nat.outward(icmp(8, 0, b"\x12\x34\0\1" + b"ping"))[VNET_BYTES:]
    assert plain_sum(out[:20]) == plain_sum(out[20:]) == 0xFFFF
    assert out[12:16] == OUTSIDE
    back = nat.inward(icmp(0, 0, out[24:28] + b"ping", source=TARGET, target=OUTSIDE))[VNET_BYTES:]
    assert plain_sum(back[:20]) == plain_sum(back[20:]) == 0xFFFF
    assert (back[16:20], back[24:28]) == (SOURCE, b"\x12\x34\0\1")


def test_an_error_about_a_flow_finds_who_sent_it():
    nat = Nat(1)
    out = nat.outward(udp(b"x", 1000))
    error = icmp(3, 3, bytes(4) + out[VNET_BYTES:], source=TARGET, target=OUTSIDE)
    back = nat.inward(error)[VNET_BYTES:]
    quoted = back[28:]
    assert plain_sum(back[:20]) == plain_sum(back[20:]) == plain_sum(quoted[:20]) == 0xFFFF
    assert (back[12:16], back[16:20]) == (TARGET, SOURCE)
    assert (quoted[12:16], quoted[16:20], quoted[20:22]) == (SOURCE, TARGET, (5000).to_bytes(2, "big"))


def test_an_error_about_an_answer_shows_the_peer_its_own_packet():
    nat = Nat(1)
    seen, _ = ends(nat.outward(udp(b"x", 1000)))
    came = nat.inward(answer(seen))
    out = nat.outward(icmp(3, 3, bytes(4) + came[VNET_BYTES:]))[VNET_BYTES:]
    quoted = out[28:]
    assert plain_sum(out[:20]) == plain_sum(out[20:]) == plain_sum(quoted[:20]) == 0xFFFF
    assert (out[12:16], out[16:20]) == (OUTSIDE, TARGET)
    assert (quoted[12:16], quoted[16:20]) == (TARGET, OUTSIDE)
    assert int.from_bytes(quoted[22:24], "big") == seen[1]


def odd(at, value, packet=None):
    changed = bytearray(packet or udp(b"12345678", 1000))
    changed[VNET_BYTES + at] = value
    return bytes(changed)


@pytest.mark.parametrize(
    "packet",
    [
        pytest.param(odd(0, 0x46), id="options"),
        pytest.param(odd(6, 0x20), id="first fragment"),
        pytest.param(odd(7, 0x05), id="later fragment"),
        pytest.param(odd(9, 132), id="SCTP"),
        pytest.param(icmp(13, 0, bytes(16)), id="timestamp"),
        pytest.param(
            icmp(3, 3, bytes(4) + udp(b"y", 1000, ports=(1, 2))[VNET_BYTES:]), id="error about nothing"
        ),
        pytest.param(icmp(3, 3, bytes(9)), id="short error"),
        pytest.param(udp(b"x", 1000)[: VNET_BYTES + 22], id="short"),
    ],
)
def test_what_is_no_flow_is_refused_both_ways(packet):
    nat = Nat(1)
    assert nat.outward(packet) is None
    assert nat.inward(packet) is None
    assert (nat.refused, nat.mappings) == (2, 0)
