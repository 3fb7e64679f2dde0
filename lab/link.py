"""One directed link: what happens to a packet, and when. It reads no clock and no device.

This puts packets on a `Line` of `geomx.channels.emulation.link`. A segment that arrives finds room in the queue or
overflows, and waits until those before it have left; what the line loses nobody sends again. Packets of many segments
go through this in slices of at most two milliseconds of wire time, each handed on when its last segment has left
the wire: a message's last byte comes on time, and a large packet on a slow link does not come late as a
whole.

Slices start lazily, whenever somebody looks: all that started before `now` is computed then. This is exact,
because conditions only change through `change`, which looks first.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from random import Random

from geomx.channels.emulation.link import Line, LinkSpec
from lab.packets import Packet

SLICE_S = 0.002


@dataclass(frozen=True, slots=True)
class Conditions(LinkSpec):
    """A link at one moment. Rates count IP packets as they are on the wire, headers and all."""

    queue_ms: float = 100.0  # how long the last segment that still finds room will wait, at the present rate

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

    @property
    def under_way(self) -> int:
        """Segments that wait or travel."""
        gone = self.delivered_segments + self.lost_segments + self.overflowed_segments + self.cut_segments
        return self.offered_segments - gone


class _Waiting:
    """The segments of one packet that have not started yet."""

    __slots__ = ("end", "first", "packet")

    def __init__(self, packet: Packet, end: int) -> None:
        self.packet = packet
        self.first = 0
        self.end = end


class Link:
    """The way from one site to another. Times are seconds on any one clock."""

    def __init__(self, conditions: Conditions, chance: Random) -> None:
        self._line = Line(conditions, chance)
        self._queue: deque[_Waiting] = deque()
        self._queued_bytes = 0
        self._travelling: deque[tuple[float, Packet, int, int]] = deque()
        self._ready_at = -inf  # since when something always waited
        self.counters = Counters()

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
        if conditions.cut:
            self.counters.cut_segments += sum(waiting.end - waiting.first for waiting in self._queue)
            self.counters.cut_segments += sum(end - first for _, _, first, end in self._travelling)
            self._queue.clear()
            self._travelling.clear()
            self._queued_bytes = 0
            self._line.clear()

    def arrive(self, packet: Packet, now: float) -> None:
        """A packet reaches the near end."""
        counters = self.counters
        counters.offered_segments += packet.segments
        counters.offered_bytes += packet.wire_bytes
        if self.conditions.cut:
            counters.cut_segments += packet.segments
            return
        self._start(now)
        fitting = self._fitting(packet)
        counters.overflowed_segments += packet.segments - fitting
        if not fitting:
            return
        if not self._queue:
            self._ready_at = now
        self._queue.append(_Waiting(packet, fitting))
        self._queued_bytes += packet.run_bytes(0, fitting)
        self._start(now)

    def _fitting(self, packet: Packet) -> int:
        """How many of its segments find room; an empty queue always takes one."""
        conditions = self.conditions
        room = conditions.bytes_in(conditions.queue_ms / 1e3) - self._queued_bytes
        if packet.wire_bytes <= room:
            return packet.segments
        fitting = max(0, int(room // packet.segment_bytes))
        return fitting if fitting or self._queue else 1

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
            self._travel(packet, first, end, line.arrival(line.send(size_bytes, self._ready_at)))
            if end == waiting.end:
                self._queue.popleft()
            else:
                waiting.first = end

    def _travel(self, packet: Packet, first: int, end: int, arrival: float) -> None:
        """Draw who survives of those that have left."""
        survivors, losing = 0, self._line.losing
        for begin, stop in losing.survivors(end - first) if losing else ((0, end - first),):
            self._travelling.append((arrival, packet, first + begin, first + stop))
            survivors += stop - begin
        self.counters.lost_segments += end - first - survivors

    def next_at(self) -> float:
        """When to look again; inf where nothing is on its way.

        While something travels nobody needs to look before it arrives: what starts later arrives later.
        """
        if self._travelling:
            return self._travelling[0][0]
        return self._line.free_at if self._queue else inf

    def due(self, now: float) -> list[bytes]:
        """The packets that have reached the far end by `now`, in order."""
        self._start(now)
        arrived = []
        while self._travelling and self._travelling[0][0] <= now:
            _, packet, first, end = self._travelling.popleft()
            self.counters.delivered_segments += end - first
            self.counters.delivered_bytes += packet.run_bytes(first, end)
            arrived.append(packet.run(first, end))
        return arrived
