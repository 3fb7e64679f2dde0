"""One directed link: what happens to a packet, and when. It reads no clock and no device.

This puts packets on a `Line` of `geomx.channels.emulation.link`. A segment that arrives finds room in the queue or
overflows, and waits until those before it have left; what the line loses nobody sends again. Packets of many segments
go through this in slices of at most two milliseconds of wire time, each handed on when its last segment has left
the wire: a message's last byte comes on time, and a large packet on a slow link does not come late as a
whole.

Beside what the line does, a link can refuse packets at its near end (UDP, and what is larger than its MTU), and at its
far end let segments come twice, or so late that others overtake them.

Where a queue is fair, packets from each site to each other wait in a queue of their own. The next slice is of the pair
that has sent the least while it waited: A. Demers, S. Keshav and S. Shenker's fair queueing (1989), by slices in place
of bits.

Slices start lazily, whenever somebody looks: all that started before `now` is computed then. This is exact,
because conditions only change through `change`, which looks first.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import chain, count
from math import inf
from random import Random

from geomx.channels.emulation.link import Line, LinkSpec, geometric
from lab.packets import UDP, Packet

SLICE_S = 0.002
Pair = tuple[int, int]  # numbers of sites: from, to


@dataclass(frozen=True, slots=True)
class Conditions(LinkSpec):
    """A link at one moment. Rates count IP packets as they are on the wire, headers and all."""

    queue_ms: float = 100.0  # how long the last segment that still finds room will wait, at the present rate
    fair: bool = False  # packets of each pair of sites have a queue of their own, and these take turns
    reorder: float = 0.0  # share of segments that are held up, so that later ones overtake them
    reorder_ms: float = 20.0  # for how long at most
    duplicate: float = 0.0  # share of segments that come twice
    mtu: int = 0  # bytes of the largest IP packet that passes; 0: any
    mtu_icmp: bool = False  # who sends larger ones is told so; else they vanish
    udp_blocked: bool = False  # UDP does not pass

    def bytes_in(self, seconds: float) -> float:
        """How much leaves in so long."""
        return self.rate_mbps * 125_000.0 * seconds


@dataclass(slots=True)
class Counters:
    """What became of the segments of one directed link; bytes as on the wire, headers of each segment included."""

    offered_segments: int = 0
    offered_bytes: int = 0
    delivered_segments: int = 0
    delivered_bytes: int = 0
    lost_segments: int = 0  # by chance
    overflowed_segments: int = 0  # found no room in the queue
    cut_segments: int = 0  # met, waited for or travelled on a link that was cut
    blocked_segments: int = 0  # of UDP, where it does not pass
    oversized_segments: int = 0  # larger than the MTU
    duplicated_segments: int = 0  # came a second time, or will: delivered once more than offered
    held_segments: int = 0  # so that others could overtake

    @property
    def under_way(self) -> int:
        """Segments that wait or travel."""
        refused = self.blocked_segments + self.oversized_segments + self.overflowed_segments
        gone = self.delivered_segments + self.lost_segments + self.cut_segments + refused
        return self.offered_segments + self.duplicated_segments - gone


class _Waiting:
    """The segments of one packet that have not started yet."""

    __slots__ = ("end", "first", "packet")

    def __init__(self, packet: Packet, end: int) -> None:
        self.packet = packet
        self.first = 0
        self.end = end


class _FairQueue:
    """In place of a deque: its first element belongs to the pair of sites that has sent the least while it waited."""

    def __init__(self) -> None:
        self._queues: dict[Pair, deque[_Waiting]] = {}
        self._waiting_bytes: dict[Pair, int] = {}
        self._sent_bytes: dict[Pair, int] = {}  # whoever begins to wait begins with the least of the others
        self._turn: Pair = (0, 0)

    def __len__(self) -> int:
        return len(self._queues)

    def __iter__(self) -> Iterator[_Waiting]:
        return chain.from_iterable(self._queues.values())

    def append(self, waiting: _Waiting) -> None:
        """Behind those of the same pair."""
        packet = waiting.packet
        pair = (packet.source, packet.target)
        if pair not in self._queues:
            self._queues[pair] = deque()
            self._sent_bytes[pair] = min(self._sent_bytes.values(), default=0)
        self._queues[pair].append(waiting)
        size_bytes = packet.run_bytes(waiting.first, waiting.end)
        self._waiting_bytes[pair] = self._waiting_bytes.get(pair, 0) + size_bytes

    def __getitem__(self, _: int) -> _Waiting:
        self._turn = min(self._sent_bytes, key=self._sent_bytes.__getitem__)
        return self._queues[self._turn][0]

    def has_sent(self, size_bytes: int) -> None:
        """Of the first element."""
        self._sent_bytes[self._turn] += size_bytes
        self._waiting_bytes[self._turn] -= size_bytes

    def popleft(self) -> None:
        """The first element is gone."""
        queue = self._queues[self._turn]
        queue.popleft()
        if not queue:
            for each in (self._queues, self._sent_bytes, self._waiting_bytes):
                del each[self._turn]

    def clear(self) -> None:
        """Nothing waits any more."""
        for each in (self._queues, self._sent_bytes, self._waiting_bytes):
            each.clear()

    def room(self, room_bytes: float, packet: Packet) -> float:
        """What is left for a packet's pair, if pairs share the room evenly."""
        pair = (packet.source, packet.target)
        pairs = len(self._queues) + (pair not in self._queues)
        return room_bytes / pairs - self._waiting_bytes.get(pair, 0)


class _Share:
    """Picks a share of the segments that pass one by one, by chance."""

    def __init__(self, chance: Random, share: float) -> None:
        self._chance = chance
        self._share = share
        self._passing = geometric(chance, share)  # segments until one is picked

    def of(self, first: int, end: int) -> list[int]:
        """Those that are picked of the segments from `first` up to `end`."""
        picked = []
        at = first + self._passing
        while at < end:
            picked.append(int(at))
            at += 1 + geometric(self._chance, self._share)
        self._passing = at - end
        return picked


class Link:
    """The way from one site to another. Times are seconds on any one clock."""

    def __init__(self, conditions: Conditions, chance: Random) -> None:
        self._line = Line(conditions, chance)
        self._chance = chance
        self._queue: deque[_Waiting] | _FairQueue = deque()
        self._queued_bytes = 0
        self._travelling: deque[tuple[float, Packet, int, int]] = deque()
        self._held: list[
            tuple[float, int, Packet, int, int]
        ] = []  # a heap: of those travelling, the late ones
        self._numbers = count()
        self._ready_at = -inf  # since when something always waited
        self.counters = Counters()
        self._prepare(conditions)

    def _prepare(self, conditions: Conditions) -> None:
        self._refusing = conditions.cut or conditions.udp_blocked or conditions.mtu > 0
        self._late = _Share(self._chance, conditions.reorder) if conditions.reorder else None
        self._twice = _Share(self._chance, conditions.duplicate) if conditions.duplicate else None
        if conditions.fair is not isinstance(self._queue, _FairQueue):
            waiting = list(self._queue)
            self._queue = _FairQueue() if conditions.fair else deque()
            for each in waiting:
                self._queue.append(each)
        self._disorderly = self._late is not None or self._twice is not None

    @property
    def conditions(self) -> Conditions:
        """What holds now."""
        return self._line.spec

    def change(self, conditions: Conditions, now: float) -> None:
        """From `now` on other conditions hold. What is on its way keeps its time; a cut loses all of it."""
        if conditions == self.conditions:
            return
        self._start(now)
        self._line.change(conditions)
        self._prepare(conditions)
        if conditions.cut:
            self.counters.cut_segments += sum(waiting.end - waiting.first for waiting in self._queue)
            self.counters.cut_segments += sum(end - first for *_, first, end in self._travelling)
            self.counters.cut_segments += len(self._held)
            self._queue.clear()
            self._travelling.clear()
            self._held.clear()
            self._queued_bytes = 0
            self._line.clear()

    def arrive(self, packet: Packet, now: float) -> bool:
        """A packet reaches the near end. Whether its sender is to be told that it was too large."""
        counters = self.counters
        counters.offered_segments += packet.segments
        counters.offered_bytes += packet.wire_bytes
        answer = False
        if self._refusing:
            passing, answer = self._inspect(packet)
            if passing is None:
                return answer
            packet = passing
        self._start(now)
        fitting = self._fitting(packet)
        counters.overflowed_segments += packet.segments - fitting
        if not fitting:
            return answer
        if not self._queue:
            self._ready_at = now
        self._queue.append(_Waiting(packet, fitting))
        self._queued_bytes += packet.run_bytes(0, fitting)
        self._start(now)
        return answer

    def _inspect(self, packet: Packet) -> tuple[Packet | None, bool]:
        """What of a packet is not refused, and whether its sender is to be told; a last segment may be small enough."""
        conditions, counters, end = self.conditions, self.counters, packet.segments
        if conditions.cut:
            counters.cut_segments += end
            return None, False
        if conditions.udp_blocked and packet.protocol == UDP:
            counters.blocked_segments += end
            return None, False
        if not conditions.mtu or packet.segment_bytes <= conditions.mtu:
            return packet, False
        if end > 1 and packet.run_bytes(end - 1, end) <= conditions.mtu:
            counters.oversized_segments += end - 1
            return Packet(packet.run(end - 1, end)), conditions.mtu_icmp
        counters.oversized_segments += end
        return None, conditions.mtu_icmp

    def _fitting(self, packet: Packet) -> int:
        """How many of its segments find room; an empty queue always takes one."""
        conditions, queue = self.conditions, self._queue
        room = conditions.bytes_in(conditions.queue_ms / 1e3)
        if isinstance(queue, _FairQueue):
            room = queue.room(room, packet)
        else:
            room -= self._queued_bytes
        if packet.wire_bytes <= room:
            return packet.segments
        fitting = max(0, int(room // packet.segment_bytes))
        return fitting if fitting or queue else 1

    def _start(self, now: float) -> None:
        """Put on the wire every slice whose turn came at or before `now`."""
        line = self._line
        while self._queue and line.free_at <= now:
            waiting = self._queue[0]
            packet, first = waiting.packet, waiting.first
            slice_segments = max(1, int(line.spec.bytes_in(SLICE_S) / packet.segment_bytes))
            end = min(waiting.end, first + slice_segments)
            size_bytes = packet.run_bytes(first, end)
            self._queued_bytes -= size_bytes
            if isinstance(self._queue, _FairQueue):
                self._queue.has_sent(size_bytes)
            self._travel(packet, first, end, line.arrival(line.send(size_bytes, self._ready_at)))
            if end == waiting.end:
                self._queue.popleft()
            else:
                waiting.first = end

    def _travel(self, packet: Packet, first: int, end: int, arrival: float) -> None:
        """Draw who survives of those that have left."""
        survivors, losing = 0, self._line.losing
        for begin, stop in losing.survivors(end - first) if losing else ((0, end - first),):
            if self._disorderly:
                self._disorder(arrival, packet, first + begin, first + stop)
            else:
                self._travelling.append((arrival, packet, first + begin, first + stop))
            survivors += stop - begin
        self.counters.lost_segments += end - first - survivors

    def _disorder(self, arrival: float, packet: Packet, first: int, end: int) -> None:
        """Draw which of those that survive come twice, behind the others, and then which of all are late."""
        copies = self._twice.of(first, end) if self._twice else ()
        self.counters.duplicated_segments += len(copies)
        for begin, stop in ((first, end), *((copy, copy + 1) for copy in copies)):
            at = begin
            for late in self._late.of(begin, stop) if self._late else ():
                if late > at:
                    self._travelling.append((arrival, packet, at, late))
                hold_s = self._chance.uniform(0.0, self.conditions.reorder_ms / 1e3)
                heapq.heappush(self._held, (arrival + hold_s, next(self._numbers), packet, late, late + 1))
                self.counters.held_segments += 1
                at = late + 1
            if stop > at:
                self._travelling.append((arrival, packet, at, stop))

    def next_at(self) -> float:
        """When to look again; inf where nothing is on its way.

        While something travels nobody needs to look before it arrives: what starts later arrives later.
        """
        at = inf
        if self._travelling:
            at = self._travelling[0][0]
        elif self._queue:
            at = self._line.free_at
        return min(at, self._held[0][0]) if self._held else at

    def due(self, now: float) -> list[bytes]:
        """The packets that have reached the far end by `now`, in the order in which they did."""
        self._start(now)
        if self._held:
            self._join_the_held(now)
        arrived = []
        while self._travelling and self._travelling[0][0] <= now:
            _, packet, first, end = self._travelling.popleft()
            self.counters.delivered_segments += end - first
            self.counters.delivered_bytes += packet.run_bytes(first, end)
            arrived.append(packet.run(first, end))
        return arrived

    def _join_the_held(self, now: float) -> None:
        """Those that are due take their places among the others, by the time of arrival."""
        travelling, place = self._travelling, 0
        while self._held and self._held[0][0] <= now:
            arrival, _, packet, first, end = heapq.heappop(self._held)
            while place < len(travelling) and travelling[place][0] <= arrival:
                place += 1
            travelling.insert(place, (arrival, packet, first, end))
