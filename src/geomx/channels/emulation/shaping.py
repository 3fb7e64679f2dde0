"""Streams on an emulated link, in user space: try a WAN on a laptop, without root.

A `StreamLine` adds to the model of `link.py` what a reliable stream makes of it:

    size    = (size_bytes + 1448 · lost) · 1500/1448
    deliver = max(arrival + rounds · 2 · delay, delivery before it on the same stream)

`lost` counts the 1,448-byte segments that were lost; one that is sent again occupies the link again, and may be lost
again. `rounds` is how often the unluckiest segment of the chunk was lost: each time holds its stream up by one more
round trip, and no other stream. The rate is that of the wire: each segment of 1,448 bytes takes 1,500 there, with its
headers. The handshake is not delayed. **Not modelled:** the growth of a congestion window at the start, and its
collapse on loss; real links that lose are slower than this one, by as much as their congestion control is timid.
Acknowledgements are free.

Streams take turns on a line by chunks. A cut holds everything up: what was on its way is lost, and leaves again, before
all else, when the cut is over.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Hashable, Iterable
from itertools import count
from random import Random
from typing import Protocol

from geomx.channels.emulation.link import Line, LinkSpec

SEGMENT_BYTES, PACKET_BYTES = 1448, 1500  # of TCP with time stamps, over IPv4
HEADERS = PACKET_BYTES / SEGMENT_BYTES
MOST_ROUNDS = 16  # of loss, for one segment: real connections have given up by then


def s_per_byte(rate_mbps: float) -> float:
    """The seconds that a byte of a stream takes on the wire, with its share of headers."""
    return LinkSpec(rate_mbps).s_per_byte * HEADERS


class StreamLine(Line[LinkSpec]):
    """A line for streams: what is lost is sent again."""

    def transmit(self, size_bytes: int, ready_at: float, after: float = -math.inf) -> float:
        """Put a chunk on the link; when it is delivered. `after`: the delivery before it on the same stream."""
        lost = rounds = 0
        sent = math.ceil(size_bytes / SEGMENT_BYTES)
        while self.losing and sent and rounds < MOST_ROUNDS:
            for first, end in self.losing.survivors(sent):
                sent -= end - first  # what is left is sent again
            lost += sent
            rounds += sent > 0
        left_at = self.send((size_bytes + lost * SEGMENT_BYTES) * HEADERS, ready_at)
        return max(self.arrival(left_at) + rounds * 2 * self.delay_s, after)


class PacedStream(Hashable, Protocol):
    """One stream that wants to use an `EmulatedLink`."""

    def urgency(self) -> int | None:
        """The priority of its next chunk; None: it has none, or may not send now."""

    def take(self) -> Iterable[bytes | memoryview]:
        """The next chunk leaves."""

    def deliver(self, chunk: Iterable[bytes | memoryview]) -> None:
        """A chunk has arrived at the far end of the link."""


class EmulatedLink:
    """Streams that share one direction of a link: the most urgent chunk first, then by turns.

    It reads no clock: `run(now)` does what is due and says when there is more to do.
    """

    def __init__(self, spec: LinkSpec, seed: int = 0) -> None:
        self._line = StreamLine(spec, Random(seed))
        self._waiting: list[PacedStream] = []
        self._ready_at = -math.inf  # since when somebody was always waiting
        self._flying: list[tuple[float, int, PacedStream, Iterable[bytes | memoryview]]] = []
        self._numbers = count()
        self._delivered_at: dict[PacedStream, float] = {}

    @property
    def spec(self) -> LinkSpec:
        """How the link is."""
        return self._line.spec

    def want(self, sender: PacedStream, now: float) -> None:
        """A stream has something to send. It keeps its turn until its `urgency` is None."""
        if sender in self._waiting:
            return
        if not self._waiting:
            self._ready_at = now
        self._waiting.append(sender)

    def change(self, spec: LinkSpec, now: float) -> None:
        """From now on the link is so; call `run` before, and after."""
        heals = self.spec.cut and not spec.cut
        self._line.change(spec)
        if heals:
            self._line.clear()
            self._ready_at = now
            self._delivered_at.clear()
            lost, self._flying = sorted(self._flying, key=lambda flight: flight[1]), []
            for _, _, sender, chunk in lost:
                self._fly(sender, chunk)

    def forget(self, sender: PacedStream) -> None:
        """A stream has ended; nothing of it is delivered any more."""
        self._waiting = [other for other in self._waiting if other is not sender]
        self._flying = [flight for flight in self._flying if flight[2] is not sender]
        heapq.heapify(self._flying)
        self._delivered_at.pop(sender, None)

    def run(self, now: float) -> float | None:
        """Send and deliver what is due; returns when to call again, None: after the next `want` or `change`."""
        if self._line.spec.cut:
            return None
        while self._flying and self._flying[0][0] <= now:
            _, _, sender, chunk = heapq.heappop(self._flying)
            sender.deliver(chunk)
        while self._line.free_at <= now and (sender_or_none := self._next()) is not None:
            self._send(sender_or_none)
        flying = self._flying[0][0] if self._flying else math.inf
        sending = self._line.free_at if self._waiting else math.inf
        due = min(flying, sending)
        return None if due == math.inf else due

    def _next(self) -> PacedStream | None:
        """Whose turn it is; those who have nothing to send lose their place."""
        urgent = [(urgency, sender) for sender in self._waiting if (urgency := sender.urgency()) is not None]
        self._waiting = [sender for _, sender in urgent]
        return min(urgent, key=lambda pair: pair[0])[1] if urgent else None

    def _send(self, sender: PacedStream) -> None:
        self._fly(sender, sender.take())
        self._waiting.remove(sender)
        if sender.urgency() is not None:
            self._waiting.append(sender)

    def _fly(self, sender: PacedStream, chunk: Iterable[bytes | memoryview]) -> None:
        after = self._delivered_at.get(sender, -math.inf)
        at = self._line.transmit(sum(map(len, chunk)), self._ready_at, after)
        self._delivered_at[sender] = at
        heapq.heappush(self._flying, (at, next(self._numbers), sender, chunk))
