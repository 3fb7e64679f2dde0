"""What a datagram says comes back as it was, and what nobody can have meant is refused."""

from __future__ import annotations

import struct
from math import inf

import pytest
from exploring import examples
from hypothesis import example, given
from hypothesis import strategies as st

from geomx.errors import ProtocolError
from geomx.wire.flow.packets import (
    CLOSED_SHOWN,
    MOST_IN_GROUP,
    MOST_RUNS,
    MOST_TAILS,
    MOST_TOLD,
    PARITY_HEAD_BYTES,
    PIECE_HEAD_BYTES,
    Head,
    Packet,
    Parity,
    Piece,
    Probe,
    Probed,
    Receipt,
    Tail,
    unpack,
)

Runs = tuple[tuple[int, int], ...]
MOST_NUMBER = 1 << 48  # of datagrams
LONGEST = (1 << 16) - 1  # of a run, or of what is missing, in an acknowledgement
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
def acks(draw: st.DrawFn) -> Receipt:
    most = draw(st.sampled_from([2 * MOST_RUNS, 1 << 18, MOST_NUMBER])) - 1
    ends = draw(st.sets(st.integers(0, most), max_size=2 * MOST_RUNS))
    # So that they are apart.
    ordered = [2 * end for end in sorted(ends, reverse=True) if 2 * end < MOST_NUMBER]
    runs = tuple((first, last) for last, first in zip(ordered[::2], ordered[1::2], strict=False))
    return Receipt(draw(SECONDS), draw(U32), draw(st.integers(0, (1 << CLOSED_SHOWN) - 1)), runs)


tails = st.builds(
    Tail, st.lists(U32, min_size=1, max_size=MOST_TAILS).map(tuple), round_trip_s=SECONDS, grace_s=SECONDS
)
heads = st.builds(Head, U32, st.integers(0, (1 << 64) - 1), st.binary(max_size=1400))
parities = st.builds(
    Parity, U32, U16, st.integers(1, (1 << 16) - 1), st.integers(1, 255), st.integers(0, 1),
    st.integers(0, MOST_IN_GROUP - 1), st.binary(max_size=1500),
)  # fmt: skip
packets = st.one_of(
    pieces(),
    acks(),
    tails,
    heads,
    parities,
    st.builds(Probe, st.integers(3, (1 << 16) - 1)),
    st.builds(Probed, U16),
)


def same(packet: Packet) -> Packet:
    """As it can be compared: data as bytes, and microseconds, of which packing may cut one off."""
    if isinstance(packet, Piece | Parity):
        return packet._replace(data=bytes(packet.data))
    return packet


def told(runs: Runs) -> Runs:
    """What an acknowledgement tells of runs: up to the first that is far behind another, or long."""
    kept: list[tuple[int, int]] = []
    for first, last in runs[:MOST_TOLD]:
        if kept and kept[-1][0] - last - 1 > LONGEST:
            break
        kept.append((max(first, last - LONGEST + 1), last))
        if first != kept[-1][0]:
            break
    return tuple(kept)


@given(packets)
@example(Receipt(0.0, 0, 0, ((0, 0),)))
@example(Receipt(0.0, 0, 0, ((9 + LONGEST, 9 + LONGEST), (0, 8))))
@example(Receipt(0.0, 0, 0, ((10 + LONGEST, 10 + LONGEST), (0, 8))))
@example(Receipt(0.0, 0, 0, ((9, 8 + LONGEST), (3, 7))))
@example(Receipt(0.0, 0, 0, ((8, 8 + LONGEST), (3, 6))))
@example(Receipt(0.0, 0, 0, tuple((2 * number, 2 * number) for number in reversed(range(MOST_TOLD)))))
@example(Receipt(0.0, 0, 0, ((MOST_NUMBER - 1, MOST_NUMBER - 1), (0, MOST_NUMBER - 3))))
def test_a_packet_comes_back_as_it_was(packet: Packet) -> None:
    found = unpack(memoryview(packet.pack()))
    assert type(found) is type(packet)
    if isinstance(packet, Tail):
        assert found.loads == packet.loads
        assert found.round_trip_s == pytest.approx(packet.round_trip_s, abs=1.1e-6)
        assert found.grace_s == pytest.approx(packet.grace_s, abs=1.1e-6)
    elif isinstance(packet, Receipt):
        assert found[1:3] == packet[1:3]
        assert found.runs == told(packet.runs)
        assert found.held_s == pytest.approx(packet.held_s, abs=1.1e-6)
    else:
        assert same(found) == same(packet)
    assert unpack(found.pack()) == found or isinstance(packet, Tail | Receipt)


@examples(50)
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
        elif isinstance(packet, Parity):
            assert size >= PARITY_HEAD_BYTES
        elif isinstance(packet, Head):
            assert packet.head.startswith(found.head)
        elif isinstance(packet, Receipt):
            assert found.runs == told(packet.runs)[: len(found.runs)]
        else:
            assert isinstance(packet, Tail)
            assert found.loads == packet.loads[: len(found.loads)]
            assert found.loads


@given(
    st.one_of(
        st.binary(max_size=200),
        st.builds(lambda kind, rest: bytes([kind]) + rest, st.integers(0, 7), st.binary(max_size=80)),
    )
)
def test_any_bytes_are_a_packet_or_refused(body: bytes) -> None:
    try:
        found = unpack(body)
    except ProtocolError:
        return
    assert isinstance(found, Packet)
    if isinstance(found, Piece):
        assert found.piece < found.pieces
        assert found.start < found.stop
    elif isinstance(found, Receipt):
        numbers = [number for first, last in found.runs for number in (last, first)]
        assert numbers == sorted(numbers, reverse=True)
    elif isinstance(found, Tail):
        assert 0 < len(found.loads) <= MOST_TAILS


def ack_of(newest: int, *lengths: int) -> bytes:
    """`lengths`: in turn of what has come, and of what is missing before it."""
    return struct.pack(f"<BIIQIH{len(lengths)}H", 3, 0, 0, 0, newest & 0xFFFFFFFF, newest >> 32, *lengths)


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
        pytest.param(ack_of(2, 2) + b"\0", id="an acknowledgement and a byte"),
        pytest.param(ack_of(2, 2)[:-1], id="an acknowledgement, cut"),
        pytest.param(ack_of(0)[:-1], id="an acknowledgement's head, cut"),
        pytest.param(ack_of(3, 0), id="a run of nothing"),
        pytest.param(ack_of(3, 1, 1, 0), id="a run of nothing behind another"),
        pytest.param(ack_of(3, 1, 0, 1), id="two runs that are one"),
        pytest.param(ack_of(3, 1, 1), id="something missing before nothing"),
        pytest.param(ack_of(3, 5), id="a run that begins below 0"),
        pytest.param(ack_of(3, 1, 3, 1), id="a run below 0"),
        pytest.param(ack_of(2 * MOST_TOLD + 2, *[1] * (2 * MOST_TOLD + 1)), id="too many runs"),
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


@examples(50)
@given(acks())
def test_an_acknowledgement_has_what_its_runs_have(ack: Receipt) -> None:
    for first, last in ack.runs:
        assert ack.has(first)
        assert ack.has(last)
        assert ack.has((first + last) // 2)
    edges = {first - 1 for first, _ in ack.runs} | {last + 1 for _, last in ack.runs}
    for number in edges:
        assert ack.has(number) == any(first <= number <= last for first, last in ack.runs)


def test_an_acknowledgement_tells_which_loads_are_closed() -> None:
    ack = Receipt(0.0, 10, 0b101 | 1 << 63, ())
    closed = [load for load in range(200) if ack.has_closed(load)]
    assert closed == [*range(10), 10, 12, 73]


@pytest.mark.parametrize(
    ("given_s", "found_s"), [(-1.0, 0.0), (1e9, (2**32 - 1) / 1e6), (inf, (2**32 - 1) / 1e6), (0.25, 0.25)]
)
def test_times_out_of_range_are_the_nearest_in_range(given_s: float, found_s: float) -> None:
    tail = unpack(Tail((1,), given_s, given_s).pack())
    assert isinstance(tail, Tail)
    assert (tail.round_trip_s, tail.grace_s) == (found_s, found_s)
    ack = unpack(Receipt(given_s, 0, 0, ()).pack())
    assert isinstance(ack, Receipt)
    assert ack.held_s == found_s


def test_a_piece_s_bytes_are_not_copied() -> None:
    body = Piece(1, 2, 0, 1, 0, 5, 6, b"abc").pack()
    found = unpack(body)
    assert isinstance(found, Piece)
    assert isinstance(found.data, memoryview)
    assert found.data.obj is body
