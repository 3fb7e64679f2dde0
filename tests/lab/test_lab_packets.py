import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import ACK, CWR, FIN, PSH, on_the_wire, tcp, udp

from lab.packets import VNET_BYTES, Packet


@st.composite
def large_packets(draw):
    payload = draw(st.binary(min_size=1, max_size=400))
    mss = draw(st.integers(1, 200))
    identification = draw(st.integers(0, 0xFFFF))
    if draw(st.booleans()):
        return udp(payload, mss, identification), mss
    flags = ACK | draw(st.sampled_from([0, FIN, PSH, CWR, FIN | PSH | CWR]))
    return tcp(payload, mss, draw(st.integers(0, 0xFFFFFFFF)), flags, identification), mss


@given(large_packets(), st.data())
def test_the_runs_of_a_packet_are_its_segments_and_no_others(packet, data):
    raw, _ = packet
    whole = Packet(raw)
    segments = on_the_wire(raw)
    assert whole.segments == len(segments)
    first = data.draw(st.integers(0, whole.segments - 1))
    end = data.draw(st.integers(first + 1, whole.segments))
    run = whole.run(first, end)
    assert on_the_wire(run) == segments[first:end]
    assert Packet(run).wire_bytes == whole.run_bytes(first, end)


@given(large_packets())
def test_bytes_on_the_wire_count_the_headers_of_each_segment(packet):
    raw, _ = packet
    whole = Packet(raw)
    payload_bytes = sum(len(part) for *_, part in on_the_wire(raw))
    headers = len(raw) - VNET_BYTES - payload_bytes
    assert whole.wire_bytes == payload_bytes + whole.segments * headers
    assert sum(whole.run_bytes(at, at + 1) for at in range(whole.segments)) == whole.wire_bytes


def test_a_whole_packet_is_handed_on_as_it_came():
    raw = tcp(bytes(5000), 1000)
    assert Packet(raw).run(0, 5) is raw


def test_the_site_is_read_from_the_destination():
    assert Packet(tcp(b"x", 1000, target=bytes([10, 77, 42, 3]))).target == 42


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        bytes(40),
        bytes(VNET_BYTES) + b"\x60" + bytes(60),
        b"\0\x04" + tcp(bytes(99), 9)[2:],
        tcp(bytes(99), 9)[:62],
    ],
    ids=["nothing", "zeros", "IPv6", "TCP over IPv6", "headers alone"],
)
def test_what_is_no_packet_for_the_router_is_refused(raw):
    with pytest.raises(ValueError, match=r"IPv4|segment"):
        Packet(raw)
