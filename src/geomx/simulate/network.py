"""The simulated network: what its links make of whole messages, and what stands on them.

A message that is lost does not come, and one may come twice or late: then sessions must resend
(`Patience.resend_s`). Where a `Network` does none of that, a connection behaves like TCP.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import count
from random import Random
from typing import Protocol

from geomx.channels.emulation.link import Line, LinkSpec

LATE_S = 0.05  # at most, of a message that others overtake
Waiting = tuple[
    int, int, int, Callable[[], None], bool
]  # priority, number, bytes that have not left; see `put`


@dataclass(frozen=True, slots=True)
class Network(LinkSpec):
    """How the links behave. What is lost are messages; rates count their bytes alone, without headers of packets."""

    duplicate: float = 0.0  # share of messages that come twice
    reorder: float = 0.0  # share of messages that are held up, so that later ones overtake them
    keeps_streams: bool = False  # all that happens to datagrams alone: what travels on connections comes once


class MessageLine(Line[Network]):
    """A line for whole messages: some are lost, others come twice, or late."""

    def arrivals(self, left_at: float, surely: bool) -> Iterable[float]:
        """When a message that has left comes; `surely`: once."""
        at, spec, chance = self.arrival(left_at), self.spec, self._chance
        if surely:
            copies = 1
        elif self.losing and not self.losing.survivors(1):
            copies = 0
        else:
            copies = 2 if spec.duplicate and chance.random() < spec.duplicate else 1
        if not spec.reorder:
            return (at,) * copies
        late = (chance.random() < spec.reorder for _ in range(copies))
        return [at + chance.uniform(0.0, LATE_S) if is_late else at for is_late in late]


class Clock(Protocol):
    """What lets time pass."""

    now: float

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time of the clock."""


class SimulatedLink:
    """One direction between two nodes: between the chunks of a message, one that is more urgent overtakes."""

    def __init__(self, network: Network, clock: Clock, chance: Random, chunk_bytes: int) -> None:
        self.silent_until = 0.0  # nothing arrives before, whatever leaves
        self.sent_bytes = 0
        self._left_bytes, self._busy_s, self._busy_since = 0, 0.0, 0.0
        self._line = MessageLine(network, chance)
        self._clock = clock
        self._chunk_bytes = chunk_bytes
        self._queue: list[Waiting] = []
        self._sending: Waiting
        self._leaving_bytes = 0
        self._numbers = count()
        self._busy = False

    @property
    def network(self) -> Network:
        """How the link behaves."""
        return self._line.spec

    def change(self, network: Network) -> None:
        """From the next chunk on the link is so."""
        self._line.change(network)
        if not self._busy:
            self._transmit()

    def put(self, size_bytes: int, priority: int, arrive: Callable[[], None], surely: bool) -> None:
        """A message wants to leave. `surely`: it arrives once, whatever happens to others."""
        self.sent_bytes += size_bytes
        if self._passes_at_once():
            self._left_bytes += size_bytes
            self._travel(arrive, surely)
            return
        heapq.heappush(self._queue, (priority, next(self._numbers), size_bytes, arrive, surely))
        if not self._busy:
            self._transmit()

    @property
    def left(self) -> tuple[int, float]:
        """How many bytes have left, and for how many seconds some were waiting to leave."""
        since = self._clock.now - self._busy_since if self._busy else 0.0
        return self._left_bytes, self._busy_s + since

    def _passes_at_once(self) -> bool:
        network = self._line.spec
        return not (network.rate_mbps or network.cut or self._busy)

    def _transmit(self) -> None:
        """Send one chunk of the most urgent message."""
        was_busy, now = self._busy, self._clock.now
        self._busy = bool(self._queue) and not self._line.spec.cut
        if was_busy != self._busy:
            self._busy_s += now - self._busy_since if was_busy else 0.0
            self._busy_since = now
        if self._busy:
            priority, number, size_bytes, arrive, surely = heapq.heappop(self._queue)
            chunk_bytes = min(size_bytes, self._chunk_bytes)
            self._leaving_bytes = chunk_bytes
            self._sending = (priority, number, size_bytes - chunk_bytes, arrive, surely)
            self._send(chunk_bytes)

    def _send(self, size_bytes: int) -> None:
        """Call `_sent` when so much has left."""
        self._clock.at(self._line.send(size_bytes, self._clock.now), self._sent)

    def _sent(self) -> None:
        _, _, size_bytes, arrive, surely = self._sending
        self._left_bytes += self._leaving_bytes
        if size_bytes:
            heapq.heappush(self._queue, self._sending)
        else:
            self._travel(arrive, surely)
        self._transmit()

    def _travel(self, arrive: Callable[[], None], surely: bool) -> None:
        left_at = max(self._clock.now, self.silent_until)
        for arrival in self._line.arrivals(left_at, surely):
            self._clock.at(arrival, arrive)
