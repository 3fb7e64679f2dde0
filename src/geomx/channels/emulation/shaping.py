"""Streams and datagrams on an emulated link, in user space: try a WAN on a laptop, without root.

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

Datagrams use the same line, and really are lost: each counts as one segment, and takes what it has plus 28 bytes of
headers. They wait in a queue that holds `QUEUE_S` of the line's rate, as a router's does; what finds no room is
dropped. They take turns with the streams, byte for byte. **Not modelled:** a stream's chunks never stand in that queue,
since streams wait at the sender. A cut loses all datagrams.
"""

from __future__ import annotations

import heapq
import math
from collections import deque
from collections.abc import Callable, Hashable, Iterable
from itertools import count
from random import Random
from typing import NamedTuple, Protocol

from geomx.channels.emulation.link import Line, LinkSpec

SEGMENT_BYTES, PACKET_BYTES = 1448, 1500  # of TCP with time stamps, over IPv4
HEADERS = PACKET_BYTES / SEGMENT_BYTES
MOST_ROUNDS = 16  # of loss, for one segment: real connections have given up by then
UDP_BYTES = 28  # headers of a datagram over IPv4
QUEUE_S = 0.1  # of the line's rate: how much of datagrams may wait; the lab's `queue_ms` has the same default


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

    def transmit_datagram(self, size_bytes: int, ready_at: float) -> float | None:
        """Put a datagram on the link, `size_bytes` with headers; when it is delivered. None: it is lost."""
        left_at = self.send(size_bytes, ready_at)
        arrives_at = self.arrival(left_at)
        return None if self.losing and not self.losing.survivors(1) else arrives_at

    @property
    def room_bytes(self) -> float:
        """How much of datagrams may wait for the line."""
        return QUEUE_S / self._s_per_byte if self._s_per_byte else math.inf


class PacedStream(Hashable, Protocol):
    """One stream that wants to use an `EmulatedLink`."""

    def urgency(self) -> int | None:
        """The priority of its next chunk; None: it has none, or may not send now."""

    def take(self) -> Iterable[bytes | memoryview]:
        """The next chunk leaves."""

    def deliver(self, chunk: Iterable[bytes | memoryview]) -> None:
        """A chunk has arrived at the far end of the link."""


class _Waiting(NamedTuple):
    """A datagram in the queue."""

    size_bytes: int  # on the wire
    offered_at: float
    deliver: Callable[[], None]


class EmulatedLink:
    """Streams and datagrams that share one direction of a link.

    Of streams the most urgent chunk goes first, then by turns. Behind each chunk it is the datagrams' turn, for as many
    bytes. It reads no clock: `run(now)` does what is due and says when there is more to do.
    """

    def __init__(self, spec: LinkSpec, seed: int = 0) -> None:
        self._line = StreamLine(spec, Random(seed))
        self._waiting: list[PacedStream] = []
        self._ready_at = -math.inf  # since when somebody was always waiting
        self._flying: list[tuple[float, int, PacedStream, Iterable[bytes | memoryview]]] = []
        self._numbers = count()
        self._delivered_at: dict[PacedStream, float] = {}
        self._queue: deque[_Waiting] = deque()  # datagrams
        self._queued_bytes = 0
        self._arriving: deque[tuple[float, Callable[[], None]]] = deque()  # datagrams: none overtakes another
        self._turn_bytes = 0  # how much of datagrams may leave before the next chunk

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

    def offer(self, size_bytes: int, deliver: Callable[[], None], now: float) -> None:
        """A datagram leaves its sender. `size_bytes`: without headers. `deliver`: called if and when it arrives."""
        if self.spec.cut:
            return
        on_wire = size_bytes + UDP_BYTES
        if self._is_full(on_wire):
            self._leave(now)  # a timer that fires late makes no queue longer
        if not self._is_full(on_wire):
            self._queue.append(_Waiting(on_wire, now, deliver))
            self._queued_bytes += on_wire

    def _is_full(self, size_bytes: int) -> bool:
        """An empty queue takes a datagram of any size."""
        return bool(self._queue) and self._queued_bytes + size_bytes > self._line.room_bytes

    def change(self, spec: LinkSpec, now: float) -> None:
        """From now on the link is so; call `run` before, and after."""
        heals = self.spec.cut and not spec.cut
        self._line.change(spec)
        if spec.cut:
            self._queue.clear()
            self._arriving.clear()
            self._queued_bytes = 0
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
        while self._arriving and self._arriving[0][0] <= now:
            self._arriving.popleft()[1]()
        self._leave(now)
        flying = self._flying[0][0] if self._flying else math.inf
        arriving = self._arriving[0][0] if self._arriving else math.inf
        sending = self._line.free_at if self._waiting or self._queue else math.inf
        due = min(flying, arriving, sending)
        return None if due == math.inf else due

    def _leave(self, now: float) -> None:
        """Put on the line whatever has its turn by now."""
        while self._line.free_at <= now:
            sender = self._next()
            if self._is_turn_of_datagrams(sender):
                self._send_datagram()
            elif sender is not None:
                self._send(sender)
            else:
                return

    def _is_turn_of_datagrams(self, sender: PacedStream | None) -> bool:
        """`sender`: the stream that would be next."""
        if not self._queue or sender is None:
            return bool(self._queue)
        could_begin = max(self._line.free_at, self._queue[0].offered_at)
        stream_could = max(self._line.free_at, self._ready_at)
        if could_begin != stream_could:  # of a line that fell idle before a late timer fired
            return could_begin < stream_could
        return self._turn_bytes > 0

    def _send_datagram(self) -> None:
        size_bytes, offered_at, deliver = self._queue.popleft()
        self._queued_bytes -= size_bytes
        self._turn_bytes -= size_bytes
        at = self._line.transmit_datagram(size_bytes, offered_at)
        if at is not None:
            self._arriving.append((at, deliver))

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
        after, size_bytes = self._delivered_at.get(sender, -math.inf), sum(map(len, chunk))
        at = self._line.transmit(size_bytes, self._ready_at, after)
        self._turn_bytes = size_bytes
        self._delivered_at[sender] = at
        heapq.heappush(self._flying, (at, next(self._numbers), sender, chunk))
