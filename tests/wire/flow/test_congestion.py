"""Congestion control on a bottleneck in small: a rate, a delay, a queue, losses behind it; acknowledgements in groups.

Times are virtual and seeds are fixed, so every figure is the same in each run.
"""

from heapq import heappop, heappush
from itertools import count
from math import inf, nan
from random import Random
from statistics import median

import pytest

from geomx.wire.flow.congestion import Congestion

DATAGRAM_BYTES = 1428
TRIP_S = 0.1


class World:
    """What will happen, in the order of time."""

    def __init__(self):
        self.now, self._coming, self._order = 0.0, [], count()

    def at(self, when, what, *arguments):
        heappush(self._coming, (when, next(self._order), what, arguments))

    def run(self, until):
        while self._coming and self._coming[0][0] <= until:
            self.now, _, what, arguments = heappop(self._coming)
            what(*arguments)
        self.now = until


class Bottleneck:
    """Carries what is put on it, one packet after another; what does not fit into the queue is dropped.

    Losses are behind it, so they cost its time: in groups of `burst` packets on average, `loss` of all.
    """

    def __init__(self, world, mbps=20.0, trip_s=TRIP_S, loss=0.0, burst=1, queue=1.0, seed=1):
        self.world, self.trip_s, self.loss, self.burst = world, trip_s, loss, burst
        self.rate = mbps * 125_000
        self.queue_bytes = queue * self.rate * trip_s
        self._chance, self._is_bad = Random(seed), False
        self._free_at = self._last_arrival = 0.0
        self.carried_bytes = 0
        self.waits_s = []

    def put(self, size, arrive, *arguments):
        wait_s = max(self._free_at - self.world.now, 0.0)
        if wait_s * self.rate + size > self.queue_bytes:
            return
        self._free_at = self.world.now + wait_s + size / self.rate
        self.world.at(self._free_at, self._carried, size, wait_s)
        if not self._loses():
            self._last_arrival = max(self._free_at + self.trip_s / 2, self._last_arrival)
            self.world.at(self._last_arrival, arrive, *arguments)

    def _carried(self, size, wait_s):
        self.carried_bytes += size
        self.waits_s.append(wait_s)

    def _loses(self):
        if self.burst == 1:
            return self._chance.random() < self.loss
        leave = 1.0 / self.burst
        enter = self.loss * leave / (1.0 - self.loss)
        self._is_bad = self._chance.random() < (1.0 - leave if self._is_bad else enter)
        return self._is_bad


class Flow:
    """A sender and a receiver: acknowledges every 8 packets or 5 ms; lost is what three later ones overtook."""

    def __init__(self, link, gap_s=0.0, most_mbps=0.0):
        """`gap_s`: acknowledgements come back only at its multiples, as over some wireless links."""
        self.link, self.world, self._gap_s = link, link.world, gap_s
        self.congestion = Congestion(DATAGRAM_BYTES, most_mbps)
        self._marks, self._waiting = {}, 0
        self._next, self._oldest, self._newest, self._pending = 0, 0, -1, []
        self._wake_at, self._heard_at, self._held_since = nan, 0.0, nan
        self.arrived_bytes, self.arrived_at = 0, 0.0

    def send(self, size=inf):
        self._waiting += size
        self._pump()

    def stop(self):
        self._waiting = 0
        self.congestion.limited()

    def _pump(self):
        while self._waiting > 0:
            at = self.congestion.next_at()
            if at > self.world.now:
                if at < inf and at != self._wake_at:
                    self._wake_at = at
                    self.world.at(at, self._pump)
                return
            self._marks[self._next] = self.congestion.sent(DATAGRAM_BYTES, self.world.now, not self._marks)
            if len(self._marks) == 1:
                self._heard_at = self.world.now
                self.world.at(self.world.now + 1.0, self._give_up)
            self.link.put(DATAGRAM_BYTES, self._arrive, self._next)
            self._next += 1
            self._waiting -= DATAGRAM_BYTES
        self.congestion.limited()

    def _arrive(self, number):
        self.arrived_bytes += DATAGRAM_BYTES
        self.arrived_at = self.world.now
        self._pending.append(number)
        if len(self._pending) == 1:
            self._held_since = self.world.now
            self.world.at(self.world.now + 0.005, self._acknowledge, self._held_since)
        if len(self._pending) == 8:
            self._acknowledge(self._held_since)

    def _acknowledge(self, held_since):
        if self._pending and held_since == self._held_since:
            back_at = self.world.now + self.link.trip_s / 2
            if self._gap_s:
                back_at = -(-back_at // self._gap_s) * self._gap_s
            self.world.at(back_at, self._acked, self._pending, self.world.now - self.arrived_at)
            self._pending = []

    def _acked(self, numbers, delay_s):
        self._heard_at = self.world.now
        for number in numbers:
            mark = self._marks.pop(number, None)
            if mark is not None:
                self.congestion.acked(mark, self.world.now, delay_s)
                self._newest = max(self._newest, number)
        self._lose(self._newest - 3)
        self._pump()

    def _lose(self, end):
        for number in range(self._oldest, end):
            mark = self._marks.pop(number, None)
            if mark is not None:
                self.congestion.lost(mark)
        self._oldest = max(self._oldest, end)

    def _give_up(self):
        """Silence of a second means that all is lost."""
        if self._marks and self.world.now >= self._heard_at + 1.0:
            self._lose(self._next)
            self._pump()
        if self._marks:
            self.world.at(max(self._heard_at, self.world.now) + 1.0, self._give_up)


def share_carried(link, for_s):
    """How much of its time the link carries."""
    before = link.carried_bytes
    link.world.run(link.world.now + for_s)
    return (link.carried_bytes - before) / (link.rate * for_s)


def started(for_s=3.0, gap_s=0.0, **conditions):
    link = Bottleneck(World(), **conditions)
    flow = Flow(link, gap_s)
    flow.send()
    link.world.run(for_s)
    return link, flow


LOSSES = [(0.0, 1), (0.001, 1), (0.01, 1), (0.03, 1), (0.05, 1), (0.1, 1), (0.01, 8), (0.05, 8), (0.1, 8)]


CASES = [(*loss, n % 4, 1.0) for n, loss in enumerate(LOSSES)]
SHORT_QUEUES = [(0.0, 1, 0, 0.2), (0.03, 1, 0, 0.2), (0.1, 8, 0, 0.2)]


@pytest.mark.parametrize(("loss", "burst", "link", "queue"), CASES + SHORT_QUEUES)
def test_the_link_is_filled_and_its_queue_is_short_whatever_is_lost(loss, burst, link, queue):
    mbps, trip_s = [(20.0, 0.1), (100.0, 0.03), (10.0, 0.3), (50.0, 0.01)][link]
    link, _ = started(15 * trip_s, mbps=mbps, trip_s=trip_s, loss=loss, burst=burst, queue=queue)
    link.waits_s.clear()
    assert share_carried(link, 50 * trip_s) > 0.95
    assert median(link.waits_s) < 0.45 * trip_s


def test_start_up_takes_a_few_round_trips():
    link, _ = started(0.8)
    assert share_carried(link, 0.3) > 0.99


def test_a_link_that_gets_faster_is_filled_again():
    link, _ = started()
    link.rate *= 4
    link.world.run(link.world.now + 15 * TRIP_S)
    assert share_carried(link, 2.0) > 0.95


def test_a_link_that_gets_slower_stays_full_and_its_queue_becomes_short():
    link, flow = started()
    link.rate /= 4
    assert share_carried(link, 8.0) > 0.9
    link.waits_s.clear()
    assert share_carried(link, 4.0) > 0.95
    assert median(link.waits_s) < 0.35 * TRIP_S
    assert flow.congestion.rate == pytest.approx(link.rate, rel=0.1)


@pytest.mark.parametrize(
    ("trip_s", "settles_s", "for_s", "rel"),
    [(0.02, 1.0, 5.0, 0.2), (0.3, 3.0, 5.0, 0.2), (0.13, 0.0, 12.0, 0.1)],
)
def test_another_route_does_not_starve_it_and_is_noticed_in_time(trip_s, settles_s, for_s, rel):
    link, flow = started()
    link.trip_s = trip_s
    link.world.run(link.world.now + settles_s)
    assert share_carried(link, for_s) > 0.95
    assert flow.congestion.least_round_trip_s == pytest.approx(trip_s, rel=rel)


def test_acknowledgements_that_come_at_once_leave_no_gaps():
    link, flow = started(gap_s=0.03)
    assert share_carried(link, 5.0) > 0.95
    assert flow.congestion.rate < 1.2 * link.rate


def test_after_a_pause_it_goes_on_at_the_known_rate():
    link, flow = started(loss=0.01)
    flow.stop()
    for _ in range(5):
        link.world.run(link.world.now + 60.0)
        began_at = link.world.now
        flow.send(1_000_000)
        link.world.run(began_at + 5.0)
        assert flow.arrived_at - began_at < 1.15 * 1_000_000 / link.rate + TRIP_S / 2


def test_small_bursts_do_not_lower_the_rate():
    link, flow = started()
    flow.stop()
    link.world.run(link.world.now + 1.0)
    known = flow.congestion.rate
    for _ in range(40):
        flow.send(20_000)
        link.world.run(link.world.now + 0.3)
    assert flow.congestion.rate >= 0.98 * known


def test_it_recovers_when_nothing_passed_for_a_while():
    link, _ = started()
    link.loss = 1.0
    link.world.run(link.world.now + 3.0)
    link.loss = 0.0
    link.world.run(link.world.now + 2.0)
    assert share_carried(link, 3.0) > 0.95


@pytest.mark.parametrize(("later_s", "mbps"), [(0.0, 20.0), (5.0, 8.0)])
def test_two_flows_share(later_s, mbps):
    link, first = started(later_s, mbps=mbps)
    second = Flow(link)
    second.send()
    link.world.run(later_s + 10.0)
    before = first.arrived_bytes, second.arrived_bytes
    link.world.run(later_s + 40.0)
    one, other = first.arrived_bytes - before[0], second.arrived_bytes - before[1]
    assert 0.35 < one / (one + other) < 0.65
    assert one + other > 0.95 * 30.0 * link.rate


class Cubic:
    """A window that shrinks where something is lost, and grows as CUBIC's does (RFC 9438); in place of `Congestion`."""

    def __init__(self, world):
        self.world, self.under_way = world, 0
        self._window, self._threshold, self._highest = 10.0, inf, 0.0  # packets
        self._cut_at = -inf

    def next_at(self):
        return -inf if self.under_way + DATAGRAM_BYTES <= self._window * DATAGRAM_BYTES else inf

    def sent(self, size, now, idle):
        self.under_way += size
        return now

    def limited(self):
        pass

    def acked(self, mark, now, delay_s=0.0):
        self.under_way -= DATAGRAM_BYTES
        if self._window < self._threshold:
            self._window += 1.0
        else:
            since_s = now - self._cut_at - (0.75 * self._highest) ** (1 / 3)  # 0.75 = (1 - 0.7) / 0.4
            self._window += max(0.4 * since_s**3 + self._highest - self._window, 0.5) / self._window

    def lost(self, mark):
        self.under_way -= DATAGRAM_BYTES
        if mark > self._cut_at:
            self._highest, self._cut_at = self._window, self.world.now
            self._window = self._threshold = max(0.7 * self._window, 2.0)


@pytest.mark.parametrize("later_s", [-5.0, 5.0])
def test_beside_cubic_neither_starves(later_s):
    """What a full queue drops is no loss that one could make up for by having more under way."""
    world = World()
    link = Bottleneck(world, mbps=8.0)
    ours, other = Flow(link), Flow(link)
    other.congestion = Cubic(world)
    world.at(max(-later_s, 0.0), ours.send)
    world.at(max(later_s, 0.0), other.send)
    world.run(30.0)
    before = ours.arrived_bytes, other.arrived_bytes
    world.run(90.0)
    mine, its = ours.arrived_bytes - before[0], other.arrived_bytes - before[1]
    assert 0.35 < mine / (mine + its) < 0.65


def test_it_is_never_faster_than_the_limit():
    link = Bottleneck(World())
    flow = Flow(link, most_mbps=5.0)
    flow.send()
    link.world.run(2.0)
    assert share_carried(link, 10.0) == pytest.approx(0.25, rel=0.01)


def test_at_first_a_few_datagrams_may_leave_at_once():
    congestion = Congestion(1000)
    sent = 0
    while congestion.next_at() <= 0.0:
        congestion.sent(1000, 0.0, sent == 0)
        sent += 1
    assert sent == 16
    assert congestion.next_at() == inf
    assert congestion.under_way == 16_000


def test_what_is_acknowledged_after_it_was_taken_for_lost_was_delivered():
    congestion = Congestion(1000)
    marks = [congestion.sent(1000, 0.0, number == 0) for number in range(10)]
    for mark in marks:
        congestion.lost(mark)
    assert congestion.under_way == 0
    for mark in marks:
        congestion.acked(mark, 0.1)
        congestion.lost(mark)
    assert congestion.under_way == 0
    assert congestion.rate == pytest.approx(10_000 / 0.1)


def test_how_long_the_receiver_held_an_acknowledgement_is_no_part_of_the_round_trip():
    congestion = Congestion(1000)
    congestion.acked(congestion.sent(1000, 1.0, True), 1.35, 0.25)
    assert congestion.round_trip_s == pytest.approx(0.1)
    assert congestion.least_round_trip_s == pytest.approx(0.1)
    assert congestion.wander_s == pytest.approx(0.0375)  # RFC 6298, as for a second measurement of 0.1 s


def test_the_newest_packet_of_an_acknowledgement_counts_for_the_round_trip():
    congestion = Congestion(1000)
    first = congestion.sent(1000, 0.0, True)
    congestion.acked(first, 0.1)
    marks = [congestion.sent(1000, at, False) for at in (0.1, 0.15, 0.2)]
    for mark in marks:
        congestion.acked(mark, 0.38)
    assert congestion.round_trip_s == pytest.approx(0.1 + (0.18 - 0.1) / 8)
