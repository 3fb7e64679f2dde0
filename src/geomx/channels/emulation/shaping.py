"""A link of limited rate, with delay, jitter and loss, in user space: try a WAN on a laptop, without root.

Model, for one direction of a link

    start   = max(time the link is free, time something was there to be sent)
    free    = start + 8 · (size_bytes + 1448 · lost) · 1500/1448 / rate
    deliver = max(free + delay ± jitter + rounds · 2 · delay, delivery before it on the same stream)

`lost` counts the 1,448-byte segments that were lost, each with probability `loss`; one that is sent again
occupies the link again, and may be lost again. `rounds` is how often the unluckiest segment of the chunk was
lost: each time holds its stream up by one more round trip. A stream is never reordered. The rate is that of the wire:
each segment of 1,448 bytes takes 1,500 there, with its headers. The handshake is not delayed. **Not modelled:** the
growth of a congestion window at the start, and its collapse on loss; real links that lose are slower than this one,
by as much as their congestion control is timid. Acknowledgements are free.

A link may change while it is in use. Chunks that have begun to leave keep their rate and their time, all others
leave as the link is by then. A cut holds everything up: what was on its way is lost, and leaves again, before all else,
when the cut is over.

Times are virtual: `free` is accumulated and owes nothing to when a timer fired. A sender that always had
something to send gets the exact rate, however late it was woken.
"""

from __future__ import annotations

import heapq
import math
import random
from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from itertools import count
from typing import Protocol

SEGMENT_BYTES, PACKET_BYTES = 1448, 1500  # of TCP with time stamps, over IPv4
MOST_SEGMENTS = 1 << 62  # between two losses, however rare they are
MOST_ROUNDS = 16  # of loss, for one segment: real connections have given up by then


class LinkSpec(Protocol):
    """One edge's link, the same in both directions."""

    @property
    def rate_mbps(self) -> float | None:
        """10^6 bits a second; None: as fast as it goes."""

    @property
    def delay_ms(self) -> float:
        """One way."""

    @property
    def jitter_ms(self) -> float:
        """Uniform, at most this much to either side of the delay."""

    @property
    def loss(self) -> float:
        """The share of segments that are lost, in [0, 1)."""


@dataclass(frozen=True, slots=True)
class PlainLink:
    """The plainest `LinkSpec`."""

    rate_mbps: float | None = None
    delay_ms: float = 0.0
    jitter_ms: float = 0.0
    loss: float = 0.0


def s_per_byte(rate_mbps: float | None) -> float:
    """The seconds that a byte of a stream takes on the wire, with its share of headers."""
    return 8e-6 / rate_mbps * PACKET_BYTES / SEGMENT_BYTES if rate_mbps else 0.0


class Shaper:
    """When chunks leave and arrive, on one direction of a link. Times in seconds, on the caller's clock."""

    def __init__(self, link: LinkSpec, seed: int = 0) -> None:
        self.free_at = -math.inf  # when the link can take the next chunk
        self._random = random.Random(seed)
        self.change(link)

    def change(self, link: LinkSpec) -> None:
        """From the next chunk on the link is so."""
        self.delay_s = link.delay_ms / 1e3
        self._jitter_s = link.jitter_ms / 1e3
        self._s_per_byte = s_per_byte(link.rate_mbps)
        self._loss = link.loss
        self._until_loss = self._gap()

    def transmit(self, size_bytes: int, ready_at: float, after: float = -math.inf) -> float:
        """Put a chunk on the link; returns when it is delivered.

        `ready_at`: since when something was there to be sent, without a break. `after`: the delivery before
        it on the same stream.
        """
        lost, rounds = self._losses(math.ceil(size_bytes / SEGMENT_BYTES))
        start = max(self.free_at, ready_at)
        self.free_at = start + (size_bytes + lost * SEGMENT_BYTES) * self._s_per_byte
        wander = self._random.uniform(-self._jitter_s, self._jitter_s) if self._jitter_s else 0.0
        travel = max(self.delay_s + wander, 0.0) + rounds * 2 * self.delay_s
        return max(self.free_at + travel, after)

    def _losses(self, segments: int) -> tuple[int, int]:
        """How many transmissions of these segments were lost, and the most of any one of them."""
        total = rounds = 0
        while segments and self._loss and rounds < MOST_ROUNDS:
            segments = self._lost_of(segments)
            total += segments
            rounds += segments > 0
        return total, rounds

    def _lost_of(self, segments: int) -> int:
        """One transmission of each segment; draws a number for each loss, none for each segment."""
        lost = 0
        while segments > self._until_loss:
            segments -= self._until_loss + 1
            lost += 1
            self._until_loss = self._gap()
        self._until_loss -= segments
        return lost

    def _gap(self) -> int:
        """How many segments pass before the next that is lost."""
        if not self._loss:
            return 0
        segments = math.log(1.0 - self._random.random()) / math.log1p(-self._loss)
        return int(min(segments, MOST_SEGMENTS))


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

    def __init__(self, shaper: Shaper) -> None:
        self.is_cut = False
        self._shaper = shaper
        self._waiting: list[PacedStream] = []
        self._ready_at = -math.inf  # since when somebody was always waiting
        self._flying: list[tuple[float, int, PacedStream, Iterable[bytes | memoryview]]] = []
        self._numbers = count()
        self._delivered_at: dict[PacedStream, float] = {}

    @property
    def delay_s(self) -> float:
        return self._shaper.delay_s

    def want(self, sender: PacedStream, now: float) -> None:
        """A stream has something to send. It keeps its turn until its `urgency` is None."""
        if sender in self._waiting:
            return
        if not self._waiting:
            self._ready_at = now
        self._waiting.append(sender)

    def change(self, link: LinkSpec, cut: bool, now: float) -> None:
        """From now on the link is so; call `run` before, and after."""
        self._shaper.change(link)
        if self.is_cut and not cut:
            self._shaper.free_at, self._ready_at = -math.inf, now
            self._delivered_at.clear()
            lost, self._flying = sorted(self._flying, key=lambda flight: flight[1]), []
            for _, _, sender, chunk in lost:
                self._fly(sender, chunk)
        self.is_cut = cut

    def forget(self, sender: PacedStream) -> None:
        """A stream has ended; nothing of it is delivered any more."""
        self._waiting = [other for other in self._waiting if other is not sender]
        self._flying = [flight for flight in self._flying if flight[2] is not sender]
        heapq.heapify(self._flying)
        self._delivered_at.pop(sender, None)

    def run(self, now: float) -> float | None:
        """Send and deliver what is due; returns when to call again, None: after the next `want` or `change`."""
        if self.is_cut:
            return None
        while self._flying and self._flying[0][0] <= now:
            _, _, sender, chunk = heapq.heappop(self._flying)
            sender.deliver(chunk)
        while self._shaper.free_at <= now and (sender_or_none := self._next()) is not None:
            self._send(sender_or_none)
        flying = self._flying[0][0] if self._flying else math.inf
        sending = self._shaper.free_at if self._waiting else math.inf
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
        at = self._shaper.transmit(sum(map(len, chunk)), self._ready_at, after)
        self._delivered_at[sender] = at
        heapq.heappush(self._flying, (at, next(self._numbers), sender, chunk))
