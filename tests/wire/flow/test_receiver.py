"""The receiving end of a flow: when a load closes, what is kept, what is told, and who cannot have meant that."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geomx.errors import ProtocolError
from geomx.wire.flow.inbox import LEAST_PIECE_BYTES
from geomx.wire.flow.outbox import BlockOut, FlowTerms, Outbox
from geomx.wire.flow.packets import (
    CLOSED_SHOWN,
    MOST_OPEN,
    MOST_RUNS,
    MOST_TOLD,
    Head,
    Piece,
    Receipt,
    Tail,
    unpack,
)
from geomx.wire.flow.receiver import (
    ACK_DELAY_S,
    ACK_EVERY,
    EARLY_BYTES,
    LEAST_WINDOW_S,
    PIECE_COST_BYTES,
    Delivered,
    FlowReceiver,
)
from geomx.wire.flow_messages import Beside
from geomx.wire.messages import Push, Reading
from geomx.wire.presence import pack

SIZE, TRIP_S = 100, 0.1


def piece(load: int, block: int, level: int = 0, part: int = 0, parts: int = 1, size: int = SIZE) -> Piece:
    return Piece(load, block, part, parts, level, block, block + 1, bytes([block % 256]) * size)


def tail(*loads: int, round_trip_s: float = TRIP_S, grace_s: float = 0.0) -> Tail:
    return Tail(loads, round_trip_s, grace_s)


class Receiving:
    """A receiver and the clock; datagrams have numbers in the order in which they come, unless others are given."""

    def __init__(self) -> None:
        self.receiver = FlowReceiver()
        self.now = 0.0
        self.number = 0

    def announce(self, load: int, levels: Sequence[int], size: int | None = None) -> None:
        """A header; its message has the number of the load, plus 100, and is of a slice of its own."""
        reliable = pack([level == 0 for level in levels])
        beside = Beside(load, len(levels), reliable, SIZE * len(levels) if size is None else size)
        push = Push(1, load, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", Reading(), beside=beside)
        self.receiver.announced(load + 100, push, beside, self.now)

    def come(self, *packets: Piece | Tail, after_s: float = 0.0) -> None:
        self.now += after_s
        for packet in packets:
            self.receiver.received(self.number, packet, self.now)
            self.number += 1

    def closed(self) -> list[int]:
        """The loads that close now."""
        return [delivery.number - 100 for delivery in self.receiver.closed(self.now)]

    def delivery(self) -> Delivered:
        (found,) = self.receiver.closed(self.now)
        return found

    def ack(self) -> Receipt | None:
        """What is told now."""
        ack = self.receiver.ack(self.now)
        if ack is not None:
            found = unpack(ack.pack())
            assert isinstance(found, Receipt)
            assert found[1:] == ack[1:]
        return ack

    def closed_told(self) -> tuple[int, int]:
        """Which loads are told to be closed, at once."""
        ack = self.ack()
        assert ack is not None
        return ack.closed_below, ack.closed

    def told(self) -> Receipt:
        """What is told in a while."""
        self.now += ACK_DELAY_S
        ack = self.ack()
        assert ack is not None
        return ack


def announced(*loads: Sequence[int]) -> Receiving:
    """Loads of blocks of these classes."""
    receiving = Receiving()
    for load, levels in enumerate(loads):
        receiving.announce(load, levels)
    return receiving


# -- closing --------------------------------------------------------------------------------------------------


def test_a_load_closes_when_all_its_blocks_are_in() -> None:
    receiving = announced([0, 1, 0])
    receiving.come(piece(0, 2), piece(0, 0))
    assert receiving.closed() == []
    receiving.come(piece(0, 1, level=1))
    number, message, payload = receiving.delivery()
    assert number == 100
    assert message.beside.load == 0  # type: ignore[attr-defined]  # a Push
    assert payload.came == (True, True, True)
    assert [(block.start, block.stop, bytes(block.data)) for block in payload.blocks] == [
        (place, place + 1, bytes([place]) * SIZE) for place in range(3)
    ]
    assert payload.nbytes == 3 * SIZE
    assert receiving.closed() == []


def test_a_load_closes_without_others_when_its_tail_and_a_window_have_passed() -> None:
    receiving = announced([0, 1, 2, 0])
    receiving.come(piece(0, 0), piece(0, 3), piece(0, 2, level=2))
    receiving.now += 100.0
    assert receiving.closed() == []
    receiving.come(tail(0))
    assert receiving.closed() == []
    assert receiving.receiver.next_at() <= receiving.now
    assert receiving.ack() is not None
    due_at = receiving.receiver.next_at()
    assert due_at == receiving.now + LEAST_WINDOW_S
    receiving.now = due_at
    payload = receiving.delivery().payload
    assert payload.came == (True, False, True, True)
    assert [block.start for block in payload.blocks] == [0, 2, 3]


def test_reliable_blocks_are_awaited_however_long_it_takes() -> None:
    receiving = announced([0, 1, 0])
    receiving.come(piece(0, 0), tail(0))
    receiving.now += 1000.0
    assert receiving.closed() == []
    receiving.come(piece(0, 2))
    assert receiving.closed() == [0]


def test_without_a_whole_block_a_load_closes_behind_its_tail() -> None:
    receiving = Receiving()
    receiving.announce(0, [1, 1], size=LEAST_PIECE_BYTES)
    receiving.announce(1, [1, 1])
    receiving.come(piece(0, 0, 1, 0, 2, 10), tail(0), tail(1))
    receiving.now += LEAST_WINDOW_S
    payloads = [delivery.payload for delivery in receiving.receiver.closed(receiving.now)]
    assert [(each.came, each.blocks, each.nbytes) for each in payloads] == [((False, False), (), 0)] * 2


def test_the_sender_s_grace_is_granted_once() -> None:
    receiving = announced([1, 1], [1, 1])
    receiving.come(tail(0, 1, grace_s=0.5))
    receiving.come(tail(1, grace_s=0.5), after_s=0.4)  # a tail that is repeated moves nothing
    receiving.now += 0.1
    assert receiving.closed() == []
    receiving.come(piece(0, 1, level=1))
    receiving.now += LEAST_WINDOW_S
    assert [each.payload.came for each in receiving.receiver.closed(receiving.now)] == [
        (False, True),
        (False, False),
    ]


@pytest.mark.parametrize(("late_s", "window_s"), [(0.004, 0.008), (3.0, TRIP_S / 4)])
def test_the_window_follows_the_reordering_that_was_seen_up_to_a_quarter_of_a_round_trip(
    late_s: float, window_s: float
) -> None:
    receiving = Receiving()
    receiving.announce(0, [1] * 4)
    receiving.receiver.received(5, piece(0, 0, level=1), 0.0)
    receiving.receiver.received(3, piece(0, 1, level=1), late_s)  # overtaken
    receiving.receiver.received(6, tail(0), 5.0)
    assert list(receiving.receiver.closed(5.0 + 0.99 * window_s)) == []
    assert len(list(receiving.receiver.closed(5.0 + 1.01 * window_s))) == 1


def test_reordering_is_forgotten_in_time() -> None:
    receiving = Receiving()
    receiving.announce(0, [1] * 4)
    receiving.receiver.received(1000, piece(0, 0, level=1), 0.0)
    receiving.receiver.received(3, piece(0, 1, level=1), 0.02)
    assert receiving.receiver._numbers.overtaken_s == pytest.approx(0.02)
    for number in range(4, 104):
        receiving.receiver.received(number, tail(0), 0.0)
    assert receiving.receiver._numbers.overtaken_s < 0.001


# -- blocks in several pieces -----------------------------------------------------------------------------------


@given(st.permutations(range(5)), st.lists(st.integers(0, 4), max_size=6))
def test_a_block_is_the_bytes_of_its_pieces_in_order(order: list[int], again: list[int]) -> None:
    receiving = Receiving()
    receiving.announce(0, [0, 0], size=4 * LEAST_PIECE_BYTES)
    parts = [Piece(0, 1, part, 5, 0, 1, 2, bytes([part]) * (SIZE if part else 20)) for part in range(5)]
    for part in [*order[:-1], *[part for part in again if part != order[-1]], order[-1]]:
        assert receiving.closed() == []
        receiving.come(parts[part])
    receiving.come(*(parts[part] for part in again), piece(0, 0))
    _, block = receiving.delivery().payload.blocks
    assert block.data == b"".join(part.data for part in parts)
    assert receiving.receiver.came == {0: 6}


# -- early and late -------------------------------------------------------------------------------------------


def test_what_overtakes_its_header_is_kept() -> None:
    receiving = Receiving()
    receiving.come(piece(0, 1, level=1), piece(0, 0), tail(0, grace_s=0.2))
    assert receiving.told().runs == ((0, 2),)
    receiving.now += 10.0
    receiving.announce(0, [0, 1, 1])
    assert receiving.closed() == []
    receiving.now += 0.2 + LEAST_WINDOW_S
    assert receiving.delivery().payload.came == (True, True, False)
    assert receiving.receiver._early_bytes == 0
    assert receiving.receiver.came == {0: 1, 1: 1}
    receiving.come(piece(1, 0), piece(1, 1))
    receiving.announce(1, [0, 0])
    assert receiving.closed() == [1]


@pytest.mark.parametrize("size", [0, 1, 1400])
def test_what_is_early_is_kept_up_to_a_bound_and_no_more_is_acknowledged(size: int) -> None:
    receiving = Receiving()
    most = EARLY_BYTES // (size + PIECE_COST_BYTES)
    for place in range(most + 10):
        receiving.come(piece(place % 50, place // 50, size=size))
    kept = [each for pieces in receiving.receiver._early.values() for each in pieces]
    assert len(kept) == most
    assert receiving.receiver.dropped == 10
    assert receiving.told().runs == ((0, most - 1),)
    receiving.announce(0, [0] * 1000, size=1000 * 1400)
    receiving.come(piece(3, 900, size=size))  # there is room again
    assert receiving.receiver.dropped == 10
    assert receiving.told().runs[0] == (most + 10, most + 10)


def test_tails_of_loads_that_cannot_be_yet_are_not_remembered() -> None:
    receiving = Receiving()
    for first in range(0, 3 * MOST_OPEN, 64):
        receiving.come(tail(*range(first, first + 64)))
    receiving.come(tail((1 << 32) - 1), piece((1 << 32) - 1, 0))
    assert len(receiving.receiver._early_tails) == MOST_OPEN
    assert receiving.receiver.dropped == 1


def test_what_is_late_is_dropped_and_counted() -> None:
    receiving = announced([0, 1], [0])
    receiving.come(piece(0, 0), tail(0))
    receiving.now += 1.0
    assert receiving.closed() == [0]
    receiving.come(piece(0, 1, level=1), piece(0, 0), tail(0))
    assert receiving.receiver.late == {0: 1, 1: 1}
    assert receiving.receiver.came == {0: 1}
    assert receiving.closed() == []
    assert receiving.told().runs == ((0, 4),), "it is told nevertheless: nobody needs to send it again"


# -- what is told ---------------------------------------------------------------------------------------------


def test_an_acknowledgement_leaves_when_enough_has_come_or_a_while_has_passed() -> None:
    receiving = Receiving()
    receiving.announce(0, [0] * 100)
    assert (receiving.ack(), receiving.receiver.next_at()) == (None, inf)
    for place in range(ACK_EVERY - 1):
        receiving.come(piece(0, place), after_s=1e-4)
    assert receiving.ack() is None
    assert receiving.receiver.next_at() == pytest.approx(1e-4 + ACK_DELAY_S)
    receiving.come(piece(0, 50))
    ack = receiving.ack()
    assert ack is not None
    assert (ack.runs, ack.held_s) == (((0, ACK_EVERY - 1),), 0.0)
    assert receiving.ack() is None
    receiving.come(piece(0, 51))
    at = receiving.now = receiving.receiver.next_at()
    ack = receiving.ack()
    assert ack is not None
    assert ack.held_s == pytest.approx(ACK_DELAY_S)
    assert receiving.receiver.next_at() == inf
    for place in range(60, 60 + ACK_EVERY):
        assert receiving.ack() is None
        receiving.come(piece(0, place))
    assert receiving.ack() is not None
    receiving.come(tail(0), after_s=1.0)
    assert receiving.receiver.next_at() == at + 1.0, "a tail is answered at once"


def test_that_a_load_has_closed_is_told_at_once() -> None:
    receiving = Receiving()
    for load in range(3):
        receiving.announce(load, [0])
    receiving.come(piece(2, 0))
    assert receiving.ack() is None
    assert receiving.closed() == [2]
    assert receiving.closed_told() == (0, 0b100)
    receiving.come(piece(0, 0))
    assert receiving.closed() == [0]
    assert receiving.closed_told() == (1, 0b10)
    receiving.come(piece(1, 0))
    assert receiving.closed() == [1]
    assert receiving.closed_told() == (3, 0)


def test_loads_far_behind_an_open_one_are_told_later() -> None:
    receiving = Receiving()
    for load in range(CLOSED_SHOWN + 5):
        receiving.announce(load, [0])
        if load:
            receiving.come(piece(load, 0))
            assert receiving.closed() == [load]
    assert receiving.closed_told() == (0, (1 << CLOSED_SHOWN) - 2)
    receiving.come(piece(0, 0))
    assert receiving.closed() == [0]
    assert receiving.closed_told() == (CLOSED_SHOWN + 5, 0)


def runs_of(numbers: Iterable[int]) -> list[tuple[int, int]]:
    runs: list[tuple[int, int]] = []
    for number in sorted(set(numbers), reverse=True):
        if runs and runs[-1][0] == number + 1:
            runs[-1] = (number, runs[-1][1])
        else:
            runs.append((number, number))
    return runs


@given(st.lists(st.integers(0, 120), min_size=1, max_size=200))
def test_numbers_are_told_as_runs(numbers: list[int]) -> None:
    receiving = Receiving()
    receiving.announce(0, [1] * 1000)
    for place, number in enumerate(numbers):
        receiving.receiver.received(number, piece(0, place, level=1), 0.0)
    assert receiving.told().runs == tuple(runs_of(numbers))  # 61 at most: all fit
    assert receiving.receiver.came == {1: len(set(numbers))}


def test_only_the_newest_runs_are_kept_and_what_is_older_is_dropped() -> None:
    receiving = Receiving()
    receiving.announce(0, [0] * 1000)
    evens = range(0, 2 * (MOST_RUNS + 20), 2)
    for place, number in enumerate(evens):
        receiving.receiver.received(number, piece(0, place), 0.0)
    kept = runs_of(evens)[:MOST_RUNS]
    assert receiving.told().runs == tuple(kept[:MOST_TOLD])
    came = dict(receiving.receiver.came)
    for number in (0, 1, kept[-1][0] - 1):
        receiving.receiver.received(number, piece(0, 900 + number), 0.0)
    assert receiving.receiver.came == came, "nobody can tell whether these have come before"
    receiving.receiver.received(kept[-1][0] + 1, piece(0, 999), 0.0)
    assert receiving.receiver.came == {0: came[0] + 1}


# -- loads that come on the connection after all ------------------------------------------------------------------


def test_what_is_broken_is_closed_without_a_message() -> None:
    receiving = announced([0, 0], [0, 0])
    receiving.come(piece(0, 0), piece(2, 0), tail(2))
    receiving.receiver.forget(3)
    assert receiving.closed() == []
    assert receiving.closed_told() == (3, 0)
    assert not receiving.receiver._early
    assert not receiving.receiver._early_tails
    assert receiving.receiver._early_bytes == 0
    receiving.come(piece(0, 1), piece(1, 0), piece(2, 1))
    assert receiving.receiver.late == {0: 3}
    assert receiving.receiver.still_since == inf


def test_a_header_that_the_word_of_its_breaking_overtakes_opens_nothing() -> None:
    receiving = announced([0])
    receiving.receiver.forget(3)
    assert receiving.closed_told() == (3, 0), "though no datagram has come yet"
    receiving.announce(1, [0])
    receiving.announce(2, [0])
    assert receiving.receiver.still_since == inf
    assert receiving.closed() == []
    receiving.announce(3, [0])
    receiving.come(piece(3, 0))
    assert receiving.closed() == [3]


def test_loads_behind_the_broken_ones_stay_open() -> None:
    receiving = Receiving()
    for load in (0, 1, 2, 4):
        receiving.announce(load, [0, 0])
    receiving.come(piece(4, 0), piece(4, 1))
    assert receiving.closed() == [4]
    receiving.receiver.forget(2)
    receiving.come(piece(2, 0), piece(2, 1), piece(3, 0))
    assert receiving.closed() == [2]
    receiving.announce(3, [0])
    assert receiving.closed() == [3]
    assert receiving.told().closed_below == 5


# -- a sender that lies -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("levels", "packet", "why"),
    [
        ([0, 1], piece(0, 0, level=1), "announced as reliable"),
        ([0, 1], piece(0, 1, level=0), "may be lost"),
        ([0, 1], piece(0, 2), "block 2 of a load of 2"),
        ([0, 1], piece(0, 65_535), "block 65535"),
        ([0, 1], piece(0, 0, size=2 * SIZE + 1), "more bytes"),
    ],
)
@pytest.mark.parametrize("is_early", [False, True])
def test_a_piece_that_was_not_announced_so_is_refused(
    levels: list[int], packet: Piece, why: str, is_early: bool
) -> None:
    receiving = Receiving()
    if is_early:
        receiving.come(packet)
        with pytest.raises(ProtocolError, match=why):
            receiving.announce(0, levels)
    else:
        receiving.announce(0, levels)
        with pytest.raises(ProtocolError, match=why):
            receiving.come(packet)


@pytest.mark.parametrize(
    "second",
    [
        Piece(0, 0, 1, 3, 0, 0, 1, b"x"),
        Piece(0, 0, 1, 2, 0, 0, 2, b"x"),
        Piece(0, 0, 1, 2, 0, 1, 2, b"x"),
        Piece(0, 0, 0, 1, 0, 0, 1, b"x"),
    ],
)
def test_pieces_of_two_blocks_are_not_joined(second: Piece) -> None:
    receiving = Receiving()
    receiving.announce(0, [0, 0], size=2 * LEAST_PIECE_BYTES)
    receiving.come(Piece(0, 0, 0, 2, 0, 0, 1, b"x"))
    with pytest.raises(ProtocolError, match="belong to two blocks"):
        receiving.come(second)


def test_no_more_is_kept_of_a_load_than_was_announced() -> None:
    """Neither in whole blocks, nor in some that never become whole."""
    receiving = Receiving()
    receiving.announce(1, [0] * 10, size=5 * SIZE)
    receiving.come(*(piece(1, block) for block in range(5)))
    with pytest.raises(ProtocolError, match="more bytes"):
        receiving.come(piece(1, 5, size=1))
    receiving.announce(0, [1] * 10, size=10 * 1400)
    receiving.come(*(piece(0, block, 1, part, 3, 1400) for block in range(5) for part in range(2)))
    with pytest.raises(ProtocolError, match="more bytes"):
        receiving.come(piece(0, 5, 1, 0, 3, 1))


def test_a_load_has_no_more_pieces_than_its_bytes_need() -> None:
    """However small they are: what is kept for each takes room."""
    receiving = Receiving()
    receiving.announce(0, [0, 1, 0, 1], size=300 * LEAST_PIECE_BYTES)
    receiving.come(piece(0, 0, 0, 3, 255, 0), piece(0, 1, 1, 0, 47, 0))
    with pytest.raises(ProtocolError, match="more pieces than its bytes need"):
        receiving.come(piece(0, 2, 0, 0, 2, 0))
    receiving.come(piece(0, 0, 0, 254, 255, 0), piece(0, 3, 1, 0, 1, 0))


@given(st.lists(st.integers(1, 5 * LEAST_PIECE_BYTES), min_size=1, max_size=20))
@example([LEAST_PIECE_BYTES + 1] * 9)
@example([300 * LEAST_PIECE_BYTES, 1])
def test_no_sender_cuts_into_more_pieces(sizes: list[int]) -> None:
    outs = [BlockOut(place, place + 1, memoryview(bytes(size)), 0) for place, size in enumerate(sizes)]
    outbox = Outbox(0, 1, b"", outs, 1, LEAST_PIECE_BYTES, FlowTerms(), 0.0)
    receiving = Receiving()
    receiving.announce(0, [0] * len(sizes), sum(sizes))
    receiving.come(*(item.piece for item in outbox.items if isinstance(item.piece, Piece)))
    assert receiving.closed() == [0]


@pytest.mark.parametrize("state", ["open", "closed", "closed behind an open one"])
def test_a_header_that_comes_twice_changes_nothing(state: str) -> None:
    """It does: in a datagram and on the connection."""
    receiving = Receiving()
    load = int(state != "closed")
    for each in range(load + 1):
        receiving.announce(each, [0, 0])
    receiving.come(piece(load, 0))
    if state != "open":
        receiving.come(piece(load, 1))
        assert receiving.closed() == [load]
    receiving.announce(load, [0, 0])
    assert receiving.closed() == []
    if state == "open":
        receiving.come(piece(load, 1))
        assert receiving.closed() == [load]


@pytest.mark.parametrize("load", [MOST_OPEN + 2, 1 << 32, 1 << 60])
def test_a_load_that_cannot_be_yet_is_not_announced(load: int) -> None:
    receiving = Receiving()
    for each in range(2):
        receiving.announce(each, [0])
        receiving.come(piece(each, 0))
        assert receiving.closed() == [each]
    with pytest.raises(ProtocolError):
        receiving.announce(load, [0])
    receiving.announce(MOST_OPEN + 1, [0])


@pytest.mark.parametrize("below", [-1, MOST_OPEN + 1, 1 << 32, 1 << 60])
def test_loads_that_cannot_be_yet_are_not_broken(below: int) -> None:
    with pytest.raises(ProtocolError, match="broken"):
        Receiving().receiver.forget(below)


@pytest.mark.parametrize("reliable", [b"", b"\1\0", b"\4"])
def test_a_bitmap_that_is_not_one_of_its_blocks_is_refused(reliable: bytes) -> None:
    push = Push(1, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", Reading())
    with pytest.raises(ProtocolError, match="bitmap"):
        FlowReceiver().announced(1, push, Beside(0, 2, reliable, 100), 0.0)


def test_headers_in_datagrams_are_acknowledged_once() -> None:
    receiving = Receiving()
    head = Head(0, 7, b"header")
    assert receiving.receiver.received(0, head, 0.0)
    assert not receiving.receiver.received(0, head, 0.0)
    assert receiving.receiver.received(1, head, 0.0)
    assert receiving.told().runs == ((0, 1),)
    assert receiving.receiver.came == {}


def test_for_how_long_nothing_new_has_come_is_known() -> None:
    receiving = Receiving()
    assert receiving.receiver.still_since == inf
    receiving.now = 3.0
    receiving.announce(0, [0, 0])
    assert receiving.receiver.still_since == 3.0
    receiving.come(piece(0, 0), after_s=1.0)
    assert receiving.receiver.still_since == 4.0
    receiving.come(piece(0, 0), tail(0), piece(7, 0), after_s=1.0)
    assert receiving.receiver.still_since == 4.0, "nothing of that is new"
    receiving.come(piece(0, 1))
    assert receiving.closed() == [0]
    assert receiving.receiver.still_since == inf
