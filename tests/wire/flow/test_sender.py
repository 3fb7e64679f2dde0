"""The sending end of a flow: the order in which pieces leave, what is sent again, and when it ends."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterable
from itertools import pairwise
from math import inf

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from geomx.errors import ProtocolError
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.outbox import BlockOut, FlowTerms
from geomx.wire.flow.packets import (
    MOST_PIECES,
    MOST_TAILS,
    PIECE_HEAD_BYTES,
    Head,
    Parity,
    Piece,
    Receipt,
    Tail,
    unpack,
)
from geomx.wire.flow.sender import LARGE_BYTES, LARGE_LOST_S, LATER, LOST_KEPT, MOST_LARGE_LOST, FlowSender

PIECE_BYTES, TRIP_S = 1400, 0.1
ALWAYS = 1 << 30
HEAD = b"header"
Packet = Piece | Tail | Head | Parity


def block(place: int, level: int = 0, size: int = PIECE_BYTES) -> BlockOut:
    return BlockOut(place, place + 1, memoryview(bytes([place % 256]) * size), level)


def blocks(count: int, level: int = 0) -> list[BlockOut]:
    return [block(place, level) for place in range(count)]


class Sending:
    """A sender, the clock, and what has left: by number."""

    def __init__(
        self, tries: tuple[int, ...] = (1,), is_free: bool = True, protects: bool = False, **terms: float
    ) -> None:
        """`is_free`: as much may be under way as wants to be. `protects`: with parity, and headers sent twice."""
        self.congestion = Congestion(1500)
        self.sender = FlowSender(self.congestion, FlowTerms(tries, **terms))
        self.now = 0.0
        self.left: dict[int, Packet] = {}
        if not protects:
            self.sender._protect = lambda: None  # type: ignore[method-assign]
            self.sender._judge = lambda is_lost: None  # type: ignore[method-assign]
        if is_free:
            self.congestion.next_at = lambda: -inf  # type: ignore[method-assign]  # test_congestion.py has the rest

    def add(self, outs: Iterable[BlockOut], priority: int = 1) -> int:
        self.sender.add(self.sender.next_load + 100, HEAD, outs, priority, PIECE_BYTES, self.now)
        return self.sender.next_load - 1

    def drain(self) -> dict[int, Packet]:
        """What leaves now."""
        found: dict[int, Packet] = {}
        while (datagram := self.sender.next(self.now)) is not None:
            packet = unpack(datagram[1])
            assert isinstance(packet, Piece | Tail | Head | Parity)
            found[datagram[0]] = packet
        self.left |= found
        return found

    def ack(
        self, numbers: Iterable[int], closed_below: int = 0, closed: int = 0, after_s: float = TRIP_S
    ) -> None:
        """The receiver has these."""
        self.now += after_s
        runs: list[list[int]] = []
        for number in sorted(set(numbers), reverse=True):
            if runs and runs[-1][0] == number + 1:
                runs[-1][0] = number
            else:
                runs.append([number, number])
        ack = Receipt(0.0, closed_below, closed, tuple((first, last) for first, last in runs))
        self.sender.acknowledged(ack, self.now)

    def wait(self) -> None:
        """Until something has to be done."""
        at = self.sender.next_at()
        assert at < inf
        self.now = max(self.now, at)
        self.sender.time_out(self.now)

    def lose(self, *places: tuple[int, int]) -> dict[int, Packet]:
        """All has come but every sending of these blocks, by load and block; returns what leaves next."""
        come = [
            number for number, each in self.left.items() if isinstance(each, Tail) or each[:2] not in places
        ]
        self.ack(come)
        found = self.drain()
        for _ in range(20):
            if pieces(found):
                break
            self.wait()
            found |= self.drain()
        return found


def sent(outs: Iterable[BlockOut], tries: tuple[int, ...] = (1,), is_free: bool = True) -> Sending:
    """A load of these blocks has left."""
    sending = Sending(tries, is_free=is_free)
    sending.add(outs)
    sending.drain()
    return sending


def pieces(found: dict[int, Packet]) -> list[tuple[int, int]]:
    """Load and block of what is no tail."""
    return [(each.load, each.block) for each in found.values() if isinstance(each, Piece)]


def heads(found: dict[int, Packet]) -> list[Head]:
    return [each for each in found.values() if isinstance(each, Head)]


def first_piece(found: dict[int, Packet]) -> int:
    return next(number for number, each in found.items() if isinstance(each, Piece))


def tails(found: dict[int, Packet]) -> list[tuple[int, ...]]:
    return [each.loads for each in found.values() if isinstance(each, Tail)]


# -- order ------------------------------------------------------------------------------------------------------


def test_the_most_urgent_load_leaves_first_and_of_a_load_the_lowest_class() -> None:
    sending = Sending((3, 2, 1))
    levels = [2, 0, 3, 1, 0]
    outs = [block(place, level) for place, level in enumerate(levels)]
    slow, urgent, later = sending.add(outs, 5), sending.add(outs, 1), sending.add(outs, 5)
    order = [1, 4, 3, 0, 2]
    assert pieces(sending.drain()) == [(load, place) for load in (urgent, slow, later) for place in order]


def test_an_urgent_load_overtakes_what_has_begun() -> None:
    sending = Sending(is_free=False)
    slow = sending.add(blocks(40), 2)
    begun = pieces(sending.drain())
    assert 0 < len(begun) < 40
    urgent = sending.add(blocks(3), 1)
    sending.ack(sending.left)
    assert pieces(sending.drain())[:4] == [(urgent, 0), (urgent, 1), (urgent, 2), (slow, len(begun))]


def test_a_tail_follows_the_last_piece_and_names_all_that_are_open() -> None:
    sending = Sending(grace=2.0)
    sending.add(blocks(2))
    sending.add(blocks(1))
    found = sending.drain()
    kinds = [type(each).__name__ for each in found.values()]
    assert kinds == ["Head", "Piece", "Piece", "Tail", "Head", "Piece", "Tail"]
    assert tails(found) == [(0,), (1, 0)]
    (tail, _) = [each for each in found.values() if isinstance(each, Tail)]
    assert tail.grace_s == pytest.approx(2.0 * tail.round_trip_s)


def test_tails_are_repeated_ever_more_seldom_until_they_are_acknowledged() -> None:
    sending = Sending()
    sending.add(blocks(1), 1)
    sent = sending.drain()
    (piece,) = [number for number, each in sent.items() if isinstance(each, Piece)]
    sending.ack([piece])
    gaps, before = [], sending.now
    for _ in range(40):
        while not tails(found := sending.drain()):
            sending.wait()
        assert not pieces(found)
        gaps.append(sending.now - before)
        before = sending.now
    assert max(gaps) >= 8 * min(gap for gap in gaps if gap)
    sending.ack([max(sending.left)], closed_below=1)
    assert not sending.sender.open_loads
    assert not sending.drain()
    sending.now += 100.0
    assert not sending.drain()
    assert sending.sender.next_at() in (inf, sending.sender._times_out_at())


def test_one_tail_names_no_more_loads_than_fit() -> None:
    sending = Sending()
    for _ in range(MOST_TAILS + 10):
        sending.add(blocks(1))
    *_, last = tails(sending.drain())
    assert last == tuple(range(MOST_TAILS + 9, 9, -1))


@pytest.mark.parametrize(
    ("size", "count"), [(0, 1), (1, 1), (1400, 1), (1401, 2), (14_000, 10), (1 << 20, MOST_PIECES)]
)
def test_a_block_is_cut_into_as_many_pieces_as_it_needs(size: int, count: int) -> None:
    sending = Sending()
    whole = bytes(number % 251 for number in range(size))
    sending.add([BlockOut(7, 9, memoryview(whole), 0)])
    found = [each for each in sending.drain().values() if isinstance(each, Piece)]
    assert b"".join(each.data for each in found) == whole
    assert {(each.block, each.start, each.stop, each.pieces, each.level) for each in found} == {
        (0, 7, 9, len(found), 0)
    }
    assert [each.piece for each in found] == list(range(len(found)))
    assert len(found) == count


# -- what is sent again -----------------------------------------------------------------------------------------


def test_a_reliable_piece_is_sent_until_it_has_come() -> None:
    sending = Sending()
    load = sending.add(blocks(20))
    sending.drain()
    for _ in range(3):
        assert pieces(sending.lose((load, 3))) == [(load, 3)]
    assert sending.sender.sent == {0: 20}
    assert sending.sender.again == {0: 3}
    sending.ack(sending.left)
    for _ in range(20):
        assert not pieces(sending.drain())
        sending.wait()
    sending.ack(sending.left, closed_below=1)
    assert not sending.sender.open_loads
    assert not sending.drain()
    assert sending.sender.next_at() == inf


def test_a_header_is_sent_until_it_has_come() -> None:
    sending = Sending()
    sending.add(blocks(20))
    first, *_ = sending.drain().values()
    assert first == Head(0, 100, HEAD)
    for _ in range(3):
        sending.ack(number for number, each in sending.left.items() if not isinstance(each, Head))
        while not heads(found := sending.drain()):
            sending.wait()
        assert heads(found) == [first]
        assert not pieces(found)
    assert sending.sender.again == {}, "blocks alone are counted"
    sending.ack(sending.left)
    sending.wait()
    assert not heads(sending.drain())


@pytest.mark.parametrize(("more_bytes", "count"), [(0, 1), (1, 0)])
def test_a_header_that_fits_into_no_datagram_is_not_sent(more_bytes: int, count: int) -> None:
    sending = Sending()
    sending.sender.add(7, bytes(PIECE_BYTES + more_bytes), blocks(2), 1, PIECE_BYTES, 0.0)
    found = sending.drain()
    assert [type(each) for each in found.values()].count(Head) == count
    assert max(len(each.pack()) for each in found.values()) <= PIECE_BYTES + PIECE_HEAD_BYTES
    assert pieces(found) == [(0, 0), (0, 1)]


def test_others_are_sent_as_often_as_their_class_allows() -> None:
    """Classes behind the last have its tries."""
    sending = Sending((3, 2))
    sending.add([block(0, 0), block(1, 1), block(2, 2), block(3, 7)])
    for _ in range(60):
        sending.drain()
        sending.lose(*((0, place) for place in range(4)))
    assert [pieces(sending.left).count((0, place)) for place in (1, 2, 3)] == [3, 2, 2]
    assert pieces(sending.left).count((0, 0)) > 3
    assert sending.sender.sent == {0: 1, 1: 1, 2: 1, 7: 1}
    assert {level: count for level, count in sending.sender.again.items() if level} == {1: 2, 2: 1, 7: 1}


@pytest.mark.parametrize("leaving", [[(0, 0)], []])
def test_what_stays_here_is_not_sent_and_not_awaited(leaving: list[tuple[int, int]]) -> None:
    """A load of which all stays here is a tail."""
    sending = Sending()
    sending.add([block(0, len(leaving) - 1), block(1, -1), block(2, -1)])
    found = sending.drain()
    assert (pieces(found), tails(found)) == (leaving, [(0,)])
    sending.ack(found, closed_below=1)
    assert not sending.sender.open_loads


@pytest.mark.parametrize("shown", ["below", "beside"])
def test_what_the_receiver_has_closed_is_sent_no_more(shown: str) -> None:
    sending = Sending((ALWAYS,), is_free=False)
    closed, other = sending.add(blocks(30, 1), 1), sending.add(blocks(3, 1), 2)
    begun = sending.drain()
    assert 0 < len(begun) < 30
    sending.ack([], closed_below=1) if shown == "below" else sending.ack([0], closed=1)
    assert list(sending.sender.open_loads) == [other]
    for _ in range(20):
        assert {load for load, _ in pieces(sending.drain())} <= {other}
        assert all(closed not in loads for loads in tails(sending.drain()))
        sending.wait()


def test_a_datagram_is_lost_when_later_ones_have_come() -> None:
    sending = sent(blocks(10))
    lost = first_piece(sending.left)
    before = range(lost)
    sending.ack([*before, *range(lost + 1, lost + LATER)])
    assert not pieces(sending.drain())
    sending.ack([*before, *range(lost + 1, lost + LATER + 1)], after_s=0.0)
    assert (0, 0) in pieces(sending.drain())


@pytest.mark.parametrize(("round_trips", "is_lost"), [(1 / 16, False), (1 / 7, True)])
def test_a_datagram_is_lost_when_one_that_left_much_later_has_come(round_trips: float, is_lost: bool) -> None:
    sending = Sending()
    sending.add(blocks(10))
    sending.ack(sending.drain(), closed_below=1)
    load = sending.add(blocks(1))
    sending.drain()
    sending.now += round_trips * sending.congestion.round_trip_s
    sending.add(blocks(1))
    newest = min(sending.drain())
    assert newest - first_piece({n: each for n, each in sending.left.items() if each[0] == load}) < LATER
    sending.ack([newest], closed_below=1, after_s=0.09)
    assert ((load, 0) in pieces(sending.drain())) == is_lost


def test_what_is_sent_again_leaves_first() -> None:
    sending = Sending(is_free=False)
    sending.add(blocks(40))
    begun = len(pieces(sending.drain()))
    lost = first_piece(sending.left) + 2
    sending.ack(number for number in sending.left if number != lost)
    assert pieces(sending.drain())[:2] == [(0, 2), (0, begun)]


def late_once(sending: Sending, by_s: float) -> bool:
    """A load's first datagram comes later than what left so many seconds behind it. Whether it was sent again."""
    load = sending.add(blocks(1))
    first = first_piece(sending.drain())
    sending.now += by_s
    sending.add(blocks(2 * LATER))
    sending.drain()
    sending.ack((number for number in sending.left if number != first), closed_below=load)
    was_sent_again = (load, 0) in pieces(sending.drain())
    sending.ack(sending.left, closed_below=sending.sender.next_load, after_s=0.001)
    return was_sent_again


def test_what_comes_late_widens_the_window_for_reordering_up_to_a_bound() -> None:
    sending = Sending()
    assert late_once(sending, 0.004)
    for _ in range(6):
        late_once(sending, 0.004)
    assert not late_once(sending, 0.004)
    for _ in range(30):
        assert late_once(sending, TRIP_S / 2)
    assert 0.0 < sending.sender._reorder_s <= 1.001 * sending.congestion.round_trip_s / 4


def test_what_came_late_is_not_sent_again() -> None:
    sending = Sending(is_free=False)
    sending.add(blocks(1))
    sending.add(blocks(40), 2)
    first = first_piece(sending.drain())
    sending.congestion.next_at = lambda: inf  # type: ignore[method-assign]
    others = [number for number in sending.left if number != first]
    sending.ack(others)
    assert sending.sender._lost
    sending.ack([first, *others])
    assert not sending.sender._lost
    sending.congestion.next_at = lambda: -inf  # type: ignore[method-assign]
    assert (0, 0) not in pieces(sending.drain())


def test_of_a_load_that_is_over_nothing_is_kept() -> None:
    sending = Sending()
    sending.add(blocks(20))
    outbox = weakref.ref(sending.sender._loads[0])
    sending.drain()
    sending.ack([max(sending.left)])
    lost = next(iter(sending.sender._lost))
    sending.ack(list(sending.sender._under_way), closed_below=1)
    sending.drain()
    gc.collect()
    assert outbox() is None
    sending.ack([lost], closed_below=1)
    assert sending.sender._reorder_s > 0.0, "that it was only overtaken is still seen"


def test_of_what_is_dropped_nothing_is_kept() -> None:
    sending = Sending()
    sending.add(blocks(20))
    outbox = weakref.ref(sending.sender._loads[0])
    assert sending.sender.next(sending.now) is not None
    sending.sender.drop()
    gc.collect()
    assert outbox() is None


# -- silence ------------------------------------------------------------------------------------------------------


def test_without_an_answer_all_is_sent_again_ever_more_seldom() -> None:
    sending = sent(blocks(3))
    times = [0.0]
    while sending.now < 100.0:
        sending.wait()
        found = pieces(sending.drain())
        if found:
            assert set(found) == {(0, 0), (0, 1), (0, 2)}
            times.append(sending.now)
    gaps = [later - earlier for earlier, later in pairwise(times)]
    assert gaps[0] >= sending.sender.first_round_trip_s
    assert gaps == sorted(gaps)
    assert 3 <= len(gaps) <= 8
    assert len(set(sending.left)) == sending.sender._next_number, "each sending has a number of its own"


@given(st.floats(0.0, 1e6), st.floats(1e-3, 2.0), st.integers(1, 12))
@example(0.525, 0.5, 12)
def test_a_time_out_always_gets_on(began_at: float, round_trip_s: float, times: int) -> None:
    """At the very moment that it is planned for, whatever rounding makes of that."""
    sending = Sending()
    sending.now, sending.sender.first_round_trip_s = began_at, round_trip_s
    sending.add(blocks(3))
    sending.drain()
    sending.sender._tails.clear()
    for _ in range(times):
        before = sending.now
        sending.wait()
        assert pieces(sending.drain())
        assert sending.now > before


def test_an_answer_ends_the_doubling() -> None:
    sending = sent(blocks(30))
    for _ in range(12):
        sending.wait()
        sending.drain()
    assert sending.sender._backoff > 1
    sending.ack([max(sending.left)])
    assert sending.sender._backoff == 0


def test_silence_counts_from_when_something_was_to_be_heard_of() -> None:
    sending = Sending()
    sending.now = 50.0
    assert sending.sender.silent_since == inf
    sending.add(blocks(3))
    sending.drain()
    assert sending.sender.silent_since == 50.0
    sending.ack([0], after_s=1.0)
    assert sending.sender.silent_since == 51.0
    sending.ack(sending.left, closed_below=1, after_s=0.0)
    assert sending.sender.silent_since == inf
    sending.now = 100.0
    sending.add(blocks(1))
    assert sending.sender.silent_since == 100.0


LARGE, SMALL = LARGE_BYTES + 1, 100


def lose_all_that_are_large(sending: Sending, for_s: float) -> None:
    """For so long, of a small and a large piece that leave every 50 ms, only the small one comes."""
    until = sending.now + for_s
    while sending.now < until:
        sending.add([block(0, 1, LARGE), block(1, 1, SMALL)])
        came = [n for n, each in sending.drain().items() if not isinstance(each, Piece) or each.block == 1]
        sending.ack(came, closed_below=sending.sender.next_load, after_s=0.05)


@pytest.mark.parametrize("one_comes", [False, True])
def test_where_large_datagrams_come_no_more_it_is_noticed_although_each_is_tried_but_once(
    one_comes: bool,
) -> None:
    """One that comes now and then is enough."""
    sending = Sending((1,))
    for _ in range(10 if one_comes else 2):
        assert not sending.sender.is_stuck
        lose_all_that_are_large(sending, 0.9 * LARGE_LOST_S)
        if one_comes:
            sending.add([block(0, 1, LARGE)])
            sending.ack(sending.drain(), closed_below=sending.sender.next_load)
    assert sending.sender.is_stuck != one_comes
    sending.sender.drop()
    assert not sending.sender.is_stuck


def test_a_burst_of_losses_is_no_sign_of_a_size_that_does_not_pass() -> None:
    sending = sent([block(place, 0, LARGE) for place in range(10 * MOST_LARGE_LOST)])
    sending.ack([max(n for n, each in sending.left.items() if isinstance(each, Tail))])
    assert len(sending.sender._lost) == LOST_KEPT
    assert not sending.sender.is_stuck


def test_where_nothing_comes_no_piece_is_held_to_be_stuck() -> None:
    sending = Sending()
    sending.add(blocks(5))
    while sending.now < 100.0:
        sending.drain()
        sending.wait()
    assert pieces(sending.left).count((0, 0)) > 4
    sending.ack([max(sending.left)])
    sending.drain()
    assert not sending.sender.is_stuck


# -- the end ------------------------------------------------------------------------------------------------------


def test_what_is_dropped_is_told_and_leaves_no_more() -> None:
    sending = Sending((1,), is_free=False)
    one, two, three = sending.add(blocks(1)), sending.add(blocks(30)), sending.add(blocks(2, 1))
    first = sending.drain()
    sending.ack([0, 1], closed_below=1)
    assert sending.sender.drop() == [two, three]
    assert sending.congestion.under_way == 0
    assert not sending.sender.open_loads
    assert sending.sender.next_at() == inf
    assert not sending.drain()
    sending.ack(first)  # what comes of it is no news
    assert not sending.drain()
    assert one not in (two, three)
    assert sending.add(blocks(1)) == 3, "numbers of loads never repeat"
    assert {load for load, _ in pieces(sending.drain())} == {3}


@given(
    st.lists(st.tuples(st.integers(0, 3), st.lists(st.integers(-1, 3), min_size=1, max_size=12)), max_size=6)
)
def test_every_piece_leaves_once_before_its_tail_and_numbers_rise(loads: list[tuple[int, list[int]]]) -> None:
    sending = Sending((2, 1, 1))
    for priority, levels in loads:
        sending.add([block(place, level) for place, level in enumerate(levels)], priority)
    found = sending.drain()
    assert list(found) == list(range(len(found)))
    assert sorted(pieces(found)) == [
        (load, place)
        for load, (_, levels) in enumerate(loads)
        for place, level in enumerate(levels)
        if level >= 0
    ]
    told: set[int] = set()
    for each in found.values():
        if isinstance(each, Tail):
            told.update(each.loads)
        elif isinstance(each, Piece):
            assert each.load not in told
    assert told == set(range(len(loads)))
    assert sending.congestion.under_way == sum(len(each.pack()) for each in found.values())


# -- a receiver that lies -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "ack",
    [
        Receipt(0.0, 0, 0, ((0, 5),)),  # a number behind the last
        Receipt(0.0, 0, 0, ((0, (1 << 48) - 1),)),
        Receipt(0.0, 0, 0, ((1 << 40, 1 << 41), (0, 1))),
        Receipt(0.0, 2, 0, ((0, 1),)),  # loads below one that was not sent
        Receipt(0.0, 1, 1, ((0, 1),)),
        Receipt(0.0, (1 << 32) - 1, (1 << 64) - 1, ((0, 1),)),
    ],
)
def test_what_was_never_sent_cannot_have_come(ack: Receipt) -> None:
    sending = Sending()
    sending.add(blocks(3))
    assert list(sending.drain()) == [0, 1, 2, 3, 4]
    with pytest.raises(ProtocolError, match="were sent"):
        sending.sender.acknowledged(ack, 1.0)
    assert list(sending.sender.open_loads) == [0]


# -- what protects ------------------------------------------------------------------------------------------------


def parities(found: dict[int, Packet]) -> list[Parity]:
    return [each for each in found.values() if isinstance(each, Parity)]


def lossy(share: float) -> Sending:
    """With nothing under way, and this loss measured."""
    sending = Sending(protects=True)
    sending.sender._loss, sending.sender._judged = share, 10**9
    return sending


def test_where_nothing_is_lost_there_is_no_parity_and_headers_leave_twice_at_the_end() -> None:
    sending = lossy(0.0)
    load = sending.add(blocks(50))
    found = sending.drain()
    assert not parities(found)
    assert [each.load for each in heads(found)] == [load] * 2


@pytest.mark.parametrize(("share", "behind", "at_the_end"), [(0.01, 3, 1), (0.05, 10, 3)])
def test_parity_is_what_the_loss_makes_likely_and_more_at_the_end(
    share: float, behind: int, at_the_end: int
) -> None:
    sending = lossy(share)
    sending.add(blocks(100))
    kinds = [type(each) for each in sending.drain().values()]
    assert (
        kinds[: 101 + behind] == [Head] + [Piece] * 100 + [Parity] * behind or Tail in kinds[: 102 + behind]
    )
    assert kinds.count(Parity) == pytest.approx(behind + at_the_end, abs=2)
    assert sending.sender.parities == kinds.count(Parity)


def test_no_more_parity_is_made_while_others_wait_nor_of_what_has_come() -> None:
    one, both = lossy(0.05), lossy(0.05)
    one.add(blocks(100))
    for _ in range(2):
        both.add(blocks(100))
    first = [each for each in parities(both.drain()) if each.load == 0]
    assert 0 < len(first) <= len(parities(one.drain()))
    one.ack(one.left)
    one.add(blocks(1))
    assert {each.load for each in parities(one.drain())} <= {1}


def test_the_loss_is_measured() -> None:
    sending = Sending(protects=True)
    for _ in range(5):
        sending.add(blocks(100))
        sending.ack(sending.drain(), closed_below=sending.sender.next_load)
    assert sending.sender._loss == 0.0
    for _ in range(20):
        sending.add(blocks(100))
        found = sending.drain()
        sending.ack([n for n in found if n % 5], closed_below=sending.sender.next_load)
    assert sending.sender._loss == pytest.approx(0.2, abs=0.05)


def guarded() -> Sending:
    """A load of eight blocks has left, with two parity pieces."""
    sending = Sending(protects=True, parity_share=0.25)
    sending.add([block(place, size=20) for place in range(8)])
    sending.drain()
    return sending


def all_but(sending: Sending, lost: int) -> list[int]:
    """What has left, without the first so many pieces."""
    numbers = [number for number, each in sending.left.items() if isinstance(each, Piece)]
    return [number for number in sending.left if number not in numbers[:lost]]


def behind(sending: Sending, numbers: Iterable[int], after_s: float = TRIP_S) -> dict[int, Packet]:
    """What leaves when these have come, but for tails."""
    sending.ack(numbers, after_s=after_s)
    return {number: each for number, each in sending.drain().items() if not isinstance(each, Tail)}


def blocks_after(sending: Sending, seconds: float) -> set[int]:
    """Of what has to be sent again when nothing is heard for so long."""
    sending.now += seconds
    sending.sender.time_out(sending.now)
    return {place for _, place in pieces(sending.drain())}


def test_parity_leaves_once_behind_its_group() -> None:
    """And the header once more, as nothing else is left to be sent."""
    kinds = [type(each) for each in guarded().left.values()]
    assert kinds == [Head, *[Piece] * 8, Tail, *[Parity] * 2, Head]


@pytest.mark.parametrize(("lost", "again"), [(1, 0), (2, 0), (4, 2)])
def test_only_so_many_pieces_are_sent_again_as_parity_cannot_rebuild(lost: int, again: int) -> None:
    sending = guarded()
    left = behind(sending, all_but(sending, lost))
    assert len(set(pieces(left))) == again
    assert left or not sending.sender.again


def test_while_parity_is_under_way_nothing_is_sent_again() -> None:
    sending = guarded()
    came = [0, *(number for number in all_but(sending, 2) if isinstance(sending.left[number], Piece))]
    parity = next(number for number, each in sending.left.items() if isinstance(each, Parity))
    assert not behind(sending, came)
    assert not behind(sending, [*came, parity], 0.01)
    (again,) = blocks_after(sending, 5.0)  # the other parity piece is lost
    assert again in (0, 1)


def test_what_waits_to_be_sent_again_is_not_sent_once_the_group_is_rebuilt() -> None:
    sending = guarded()
    came = all_but(sending, 3)
    sending.ack(came)
    assert not behind(sending, [*came, first_piece(sending.left) + 1], 0.001)


def test_pieces_that_were_only_overtaken_count() -> None:
    sending = guarded()
    came = all_but(sending, 3)
    ((_, again),) = set(pieces(behind(sending, came)))
    late = first_piece(sending.left) + (again + 1) % 3
    assert not behind(sending, [*came, late], 0.001)
    assert not blocks_after(sending, 9.0)
