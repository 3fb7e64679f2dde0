"""BBR begun anew before it would stand still, and held at what the link carries.

About every ten seconds BBR sends next to nothing for 0.2 s: the queue empties, and it sees the round trip. Each flow
does so at a time of its own, and a synchronous round waits for all of them. So BBR is told to begin anew before that:
Linux does so for a socket that is given another congestion control, and BBR again. Best where nothing is under way,
between two rounds; in a round that lasts longer, in the middle of it. The window is kept, and what loss made BBR
believe is forgotten.

A BBR that begins sends faster and faster until no more comes through, which overflows the queue. It ends that when
three round trips brought nothing more, but only counts those in which there always was something to send. Slices that
come one by one are sent as fast as they come, so that it may never end: each round is sent at three times the rate that
the link has. And a BBR that has begun believes the fastest of ten round trips, some percent more than the link has: a
queue as long as a round trip stands before the link, and all that a round waits for goes through it. So the socket may
send but little faster than what had come through, until more comes through than that.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from geomx.channels import kernel
from geomx.channels.congestion import SO_MAX_PACING_RATE, choose, works

NAME = "bbr"
# BBR begins anew: between rounds, so that those of up to 5 s have none of the pauses; in a round, in time before one.
EVERY_S, LATEST_S = 5.0, 9.0
UNKNOWN_S = 2.0  # between rounds, while it is not known what the link carries
HEADROOM = 1.02
# So many times what was found came through: the link carries more. The first where there is no queue, nor a guess.
MORE, SURELY_MORE = 1.005, 1.25
# What has to be sent without a stop for the rate that came through to be the link's, and how it shows in round trips.
ENOUGH_ROUND_TRIPS = 3
ENOUGH_BYTES = 1 << 18  # less overflows no queue. Greetings, sent bit by bit, take round trips too
QUEUED = 0.25  # of a round trip: else it is processors that send no faster
FAR_S = 1e-3  # a shorter round trip is as long as processors take it to be
FEW_BYTES = 1024  # heartbeats and acknowledgements of ours: they show BBR nothing, and hold nothing up
READINGS = 6  # of the rate: where loss made one smaller, another has it
# After so many round trips it is sent steadily; what comes through in so many more tells the rate to a percent.
STEADY_ROUND_TRIPS, EXACT_ROUND_TRIPS = 5, 10
UNDISTURBED = 0.9  # of what BBR believes: less than that is what loss has left
LOOK_EVERY_S = 0.02

_RATE = struct.Struct("@L")


class Bbr:
    """The BBR of one connected socket; see `of`."""

    def __init__(self, sock: Any, clock: Callable[[], float]) -> None:
        self._sock = sock
        self._clock = clock
        now = clock()
        self._begin_at, self._begin_latest_at = now + UNKNOWN_S, now + LATEST_S
        self._look_at = now
        self._found: deque[int] = deque(maxlen=READINGS)  # bytes a second
        self._is_exact = self._carries_more = False  # what was found; and the link, than that
        self._pace: bytes | None = None  # what the socket's was, while it is held
        self._stretch = self._longest = Stretch(now)

    def before(self, size_bytes: int) -> None:
        """So much is about to be written, on a socket that has not ended."""
        if size_bytes <= FEW_BYTES:
            return
        now = self._clock()
        stopped = kernel.under_way(self._sock) <= FEW_BYTES
        if now >= (self._begin_at if stopped else self._begin_latest_at):
            self._begin_anew(now)
        elif stopped:
            self._stretch = Stretch(now)
        if now >= self._look_at:
            self._look_at = now + LOOK_EVERY_S
            self._look(now)
        self._stretch.size_bytes += size_bytes
        if self._stretch.size_bytes > self._longest.size_bytes:
            self._longest = self._stretch

    def _look(self, now: float) -> None:
        seen = kernel.read(self._sock)
        self._stretch.look(now, seen)
        if self._carries_more and seen.has_settled:
            self._let_go(now)

    def _begin_anew(self, now: float) -> None:
        self._learn(kernel.read(self._sock))
        if self._found:
            self._hold(int(HEADROOM * max(self._found)))
        choose(self._sock, "reno")  # every Linux has it
        choose(self._sock, NAME)
        self._begin_at = now + (EVERY_S if self._found else UNKNOWN_S)
        self._begin_latest_at = now + LATEST_S
        self._look_at = now + LOOK_EVERY_S
        self._stretch = self._longest = Stretch(now)

    def _learn(self, seen: kernel.Seen) -> None:
        """What the link carries, if that shows; or that it carries more than was found."""
        self._carries_more = False
        enough_bytes = max(ENOUGH_ROUND_TRIPS * seen.rate * seen.round_trip_s, ENOUGH_BYTES)
        if not seen.rate or self._longest.size_bytes < enough_bytes:
            return
        is_exact = self._longest.rate >= UNDISTURBED * seen.rate
        rate = min(seen.rate, self._longest.rate) if is_exact else seen.rate
        is_queued = seen.round_trip_s >= FAR_S and seen.queued_s >= QUEUED * seen.round_trip_s
        is_as_exact = is_exact or not self._is_exact
        more = MORE if is_as_exact and not is_queued else SURELY_MORE
        self._carries_more = bool(self._found) and rate > more * max(self._found)
        if self._carries_more or (is_queued and is_as_exact):
            if is_exact != self._is_exact:
                self._found.clear()
            self._found.append(rate)
            self._is_exact = is_exact

    def _hold(self, rate: int) -> None:
        if self._pace is None:
            self._pace = self._sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, _RATE.size)
        (pace,) = _RATE.unpack(self._pace)
        self._sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, _RATE.pack(min(pace, rate)))

    def _let_go(self, now: float) -> None:
        """The link carries more, and BBR, which does not begin any more, may find how much."""
        self._carries_more = False
        self._sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, self._pace)
        self._pace = None
        self._stretch = self._longest = Stretch(now)


class Stretch:
    """A time without a stop.

    `size_bytes`: that were written in it. `rate`: bytes a second that came through while it was sent steadily; 0 where
    that was too short to tell.
    """

    def __init__(self, now: float) -> None:
        self.size_bytes = 0
        self.rate = 0
        self._steady_from = now  # but for the first round trips
        self._mark: tuple[float, int] | None = None

    def look(self, now: float, seen: kernel.Seen) -> None:
        """The socket is seen so."""
        if not seen.waiting_bytes or not seen.has_settled:
            self._steady_from, self._mark = now, None
        elif self._mark is None:
            if now >= self._steady_from + STEADY_ROUND_TRIPS * seen.round_trip_s:
                self._mark = now, seen.delivered
        elif now >= self._mark[0] + EXACT_ROUND_TRIPS * seen.round_trip_s:
            at, delivered = self._mark
            segments = (seen.delivered - delivered) % (1 << 32)
            self.rate = int(segments * seen.segment_bytes / (now - at))


def of(sock: Any, clock: Callable[[], float] = time.monotonic) -> Bbr | None:
    """None for a socket that does not use BBR, or where the kernel does not let this process choose it again."""
    if sys.platform != "linux":
        return None
    used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    return Bbr(sock, clock) if used == NAME and works(NAME) and kernel.knows_bbr(sock) else None
