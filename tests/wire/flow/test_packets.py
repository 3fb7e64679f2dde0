"""What a datagram says comes back as it was, and what nobody can have meant is refused."""

from __future__ import annotations

import struct
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geomx.errors import ProtocolError
from geomx.wire.flow.packets import (
    CLOSED_SHOWN,
    MOST_NUMBER,
    MOST_RUNS,
    MOST_TAILS,
    PIECE_HEAD_BYTES,
    Ack,
    Head,
    Packet,
    Piece,
    Probe,
    Probed,
    Tail,
    unpack,
)

U8, U16, U32 = (st.integers(0, (1 << bits) - 1) for bits in (8, 16, 32))
SECONDS = st.integers(0, (1 << 32) - 1).map(lambda microseconds: microseconds / 1e6)


@st.composite
def pieces(draw: st.DrawFn) -> Piece:
    count = draw(st.integers(1, 255))
    stop = draw(st.integers(1, (1 << 32) - 1))
    return Piece(
        draw(U32), draw(U16), draw(st.integers(0, count - 1)), count, draw(U8), draw(st.integers(0, stop - 1)), stop,
        draw(st.binary(max_size=1500)),
    )  # fmt: skip


@st.composite
def acks(draw: st.DrawFn) -> Ack:
    ends = draw(st.sets(st.integers(0, MOST_NUMBER - 1), max_size=2 * MOST_RUNS))
    ordered = sorted(ends, reverse=True)
    runs = tuple((first, last) for last, first in zip(ordered[::2], ordered[1::2], strict=False))
    return Ack(draw(SECONDS), draw(U32), draw(st.integers(0, (1 << CLOSED_SHOWN) - 1)), runs)


tails = st.builds(
    Tail, st.lists(U32, min_size=1, max_size=MOST_TAILS).map(tuple), round_trip_s=SECONDS, grace_s=SECONDS
)
heads = st.builds(Head, U32, st.integers(0, (1 << 64) - 1), st.binary(max_size=1400))
packets = st.one_of(
    pieces(), acks(), tails, heads, st.builds(Probe, st.integers(3, (1 << 16) - 1)), st.builds(Probed, U16)
)


def same(packet: Packet) -> Packet:
    """As it can be compared: data as bytes, and microseconds, of which packing may cut one off."""
    if isinstance(packet, Piece):
        return packet._replace(data=bytes(packet.data))
    return packet


@given(packets)
@example(Ack(0.0, 0, 0, ((0, 0),)))
@example(Ack(0.0, 0, 0, ((MOST_NUMBER - 1, MOST_NUMBER - 1), (0, MOST_NUMBER - 3))))
def test_a_packet_comes_back_as_it_was(packet: Packet) -> None:
    found = unpack(memoryview(packet.pack()))
    assert type(found) is type(packet)
    if isinstance(packet, Tail):
        assert found.loads == packet.loads
        assert found.round_trip_s == pytest.approx(packet.round_trip_s, abs=1.1e-6)
        assert found.grace_s == pytest.approx(packet.grace_s, abs=1.1e-6)
    elif isinstance(packet, Ack):
        assert found[1:] == packet[1:]
        assert found.held_s == pytest.approx(packet.held_s, abs=1.1e-6)
    else:
        assert same(found) == same(packet)
    assert unpack(found.pack()) == found or isinstance(packet, Tail | Ack)


@given(packets)
def test_no_shorter_one_passes_for_another_packet(packet: Packet) -> None:
    """Only bytes and lists may end earlier: they say what they have by their length."""
    body = packet.pack()
    for size in range(len(body)):
        try:
            found = unpack(body[:size])
        except ProtocolError:
            continue
        assert type(found) is type(packet)
        if isinstance(packet, Piece):
            assert size >= PIECE_HEAD_BYTES
        elif isinstance(packet, Head):
            assert packet.head.startswith(found.head)
        elif isinstance(packet, Ack):
            assert found.runs == packet.runs[: len(found.runs)]
        else:
            assert isinstance(packet, Tail)
            assert found.loads == packet.loads[: len(found.loads)]
            assert found.loads


@given(st.binary(max_size=200))
def test_any_bytes_are_a_packet_or_refused(body: bytes) -> None:
    try:
        found = unpack(body)
    except ProtocolError:
        return
    assert isinstance(found, Piece | Tail | Ack | Probe | Probed | Head)


@given(st.integers(0, 6), st.binary(max_size=80))
def test_any_bytes_of_a_known_kind_are_a_packet_or_refused(kind: int, rest: bytes) -> None:
    try:
        found = unpack(bytes([kind]) + rest)
    except ProtocolError:
        return
    if isinstance(found, Piece):
        assert found.piece < found.pieces
        assert found.start < found.stop
    elif isinstance(found, Ack):
        numbers = [number for first, last in found.runs for number in (last, first)]
        assert numbers == sorted(numbers, reverse=True)
    elif isinstance(found, Tail):
        assert 0 < len(found.loads) <= MOST_TAILS


def ack_of(*runs: tuple[int, int]) -> bytes:
    return Ack(0.0, 0, 0, runs).pack()


def long_ack(runs: int) -> bytes:
    return Ack(0.0, 0, 0, ()).pack() + b"".join(
        struct.pack("<IHIH", number, 0, number, 0) for number in range(2 * runs, 0, -2)
    )


@pytest.mark.parametrize(
    "body",
    [
        pytest.param(b"", id="nothing"),
        pytest.param(b"\0" * 40, id="kind 0"),
        pytest.param(b"\7" + b"\0" * 40, id="kind 7"),
        pytest.param(Head(1, 2, b"").pack()[:-1], id="a header's own head, cut"),
        pytest.param(b"\xff", id="kind 255"),
        pytest.param(Piece(1, 2, 0, 1, 0, 5, 6, b"").pack()[:-1], id="a piece's head, cut"),
        pytest.param(Piece(1, 2, 1, 1, 0, 5, 6, b"x").pack(), id="piece 1 of 1"),
        pytest.param(Piece(1, 2, 0, 0, 0, 5, 6, b"x").pack(), id="piece 0 of 0"),
        pytest.param(Piece(1, 2, 0, 1, 0, 6, 6, b"x").pack(), id="no elements"),
        pytest.param(Piece(1, 2, 0, 1, 0, 7, 6, b"x").pack(), id="elements in the wrong order"),
        pytest.param(Tail((), 0.1, 0.0).pack(), id="a tail of nothing"),
        pytest.param(Tail((1,) * (MOST_TAILS + 1), 0.1, 0.0).pack(), id="a tail of too many"),
        pytest.param(Tail((1,), 0.1, 0.0).pack() + b"\0", id="a tail and a byte"),
        pytest.param(Tail((1,), 0.1, 0.0).pack()[:8], id="a tail, cut"),
        pytest.param(ack_of((1, 2)) + b"\0", id="an acknowledgement and a byte"),
        pytest.param(ack_of((1, 2))[:-1], id="an acknowledgement, cut"),
        pytest.param(ack_of()[:-1], id="an acknowledgement's head, cut"),
        pytest.param(ack_of((3, 2)), id="a run that ends before it begins"),
        pytest.param(ack_of((1, 2), (3, 4)), id="runs in the wrong order"),
        pytest.param(ack_of((3, 4), (2, 3)), id="runs that overlap"),
        pytest.param(ack_of((3, 4), (3, 4)), id="a run twice"),
        pytest.param(long_ack(MOST_RUNS + 1), id="too many runs"),
        pytest.param(Probe(100).pack()[:-1], id="a probe that is shorter than it says"),
        pytest.param(Probe(100).pack() + b"\0", id="a probe that is longer than it says"),
        pytest.param(b"\4", id="a probe, cut"),
        pytest.param(b"\4\0\0", id="a probe of no bytes"),
        pytest.param(Probed(100).pack()[:-1], id="an answer, cut"),
        pytest.param(Probed(100).pack() + b"\0", id="an answer and a byte"),
    ],
)
def test_what_nobody_can_have_meant_is_refused(body: bytes) -> None:
    with pytest.raises(ProtocolError):
        unpack(body)


def test_as_many_runs_as_there_may_be_pass() -> None:
    found = unpack(long_ack(MOST_RUNS))
    assert isinstance(found, Ack)
    assert len(found.runs) == MOST_RUNS


@given(acks())
def test_an_acknowledgement_has_what_its_runs_have(ack: Ack) -> None:
    for first, last in ack.runs:
        assert ack.has(first)
        assert ack.has(last)
        assert ack.has((first + last) // 2)
    edges = {first - 1 for first, _ in ack.runs} | {last + 1 for _, last in ack.runs}
    for number in edges:
        assert ack.has(number) == any(first <= number <= last for first, last in ack.runs)


def test_an_acknowledgement_tells_which_loads_are_closed() -> None:
    ack = Ack(0.0, 10, 0b101 | 1 << 63, ())
    closed = [load for load in range(200) if ack.has_closed(load)]
    assert closed == [*range(10), 10, 12, 73]


@pytest.mark.parametrize(
    ("given_s", "found_s"), [(-1.0, 0.0), (1e9, (2**32 - 1) / 1e6), (inf, (2**32 - 1) / 1e6), (0.25, 0.25)]
)
def test_times_out_of_range_are_the_nearest_in_range(given_s: float, found_s: float) -> None:
    tail = unpack(Tail((1,), given_s, given_s).pack())
    assert isinstance(tail, Tail)
    assert (tail.round_trip_s, tail.grace_s) == (found_s, found_s)
    ack = unpack(Ack(given_s, 0, 0, ()).pack())
    assert isinstance(ack, Ack)
    assert ack.held_s == found_s


def test_a_piece_s_bytes_are_not_copied() -> None:
    body = Piece(1, 2, 0, 1, 0, 5, 6, b"abc").pack()
    found = unpack(body)
    assert isinstance(found, Piece)
    assert isinstance(found.data, memoryview)
    assert found.data.obj is body
