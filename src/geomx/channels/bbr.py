"""BBR begun anew before it would stand still, and held at what the link carries.

*Begun anew.* About every ten seconds BBR sends next to nothing for 0.2 s: the queue empties, and it sees the round
trip. Each flow does so at a time of its own, and a synchronous round waits for all of them. Linux begins BBR anew on a
socket that is given another congestion control, and BBR again. That is done between two rounds, when nothing is under
way, or else in time before the pause. The window is kept, and what loss made BBR believe is forgotten.

*Held.* While BBR begins, it sends faster and faster until no more comes through, and where slices come one by one it
never sees that it could end. Later it believes the fastest of ten round trips, some percent more than the link has.
Either way a queue stands before the link. So the socket may send but little faster than what had come through, until
more comes through than that.

*Left alone.* BBR begins with the shortest round trip of the last five minutes. Where the way has become far longer, it
would send but a part of what the link carries; by its pause it finds out, and then it must not begin anew.
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
from geomx.channels.congestion import choose, pace_of, set_pace, works

NAME, OTHER = "bbr", "reno"
# BBR begins anew: between rounds, so that those of up to 5 s have none of the pauses; in a round, in time before one.
EVERY_S, LATEST_S = 5.0, 9.0
UNKNOWN_S = 2.0  # between rounds, while it is not known what the link carries
HEADROOM = 1.02
# So many times what was found came through: the link carries more. The first where there is no queue, nor a guess.
MORE, SURELY_MORE = 1.005, 1.25
# A stretch tells what the link carries if it was so long, and its end found a queue of so many round trips. Less than
# `ENOUGH_BYTES` overflows few queues, and a greeting takes round trips for a few bytes.
ENOUGH_ROUND_TRIPS, ENOUGH_BYTES = 2.5, 1 << 18
# What is no more than so many round trips carry fits into BBR's window: all may leave before any has come through,
# unless it is held so that it takes so many round trips to leave.
WINDOW_ROUND_TRIPS, BLIND_ROUND_TRIPS = 5, 1.25
# Less is no queue: it is processors that send no faster, or, where so many segments take long, acknowledgements that
# wait for a second segment.
QUEUED, QUEUED_SEGMENTS = 0.25, 3
FAR_S = 1e-3  # a shorter round trip is as long as processors take it to be
FEW_BYTES = 1024  # heartbeats and acknowledgements of ours: they show BBR nothing, and hold nothing up
READINGS = 6  # of the rate: where loss made one smaller, another has it
# After so many round trips it is sent steadily; what comes through in so many more tells the rate to a percent.
STEADY_ROUND_TRIPS, EXACT_ROUND_TRIPS = 5, 10
UNDISTURBED = 0.9  # of what BBR believes: less than that is what loss has left
LOOK_EVERY_S = 0.02
# So many times the shortest round trip: the way may have become longer if less comes through than was found, and a
# pause shows it; BBR has found it so.
MAYBE_LONGER, LONGER = 2.0, 1.5
PAUSE_S, PAUSE_EVERY_S = 11.0, 60.0  # left alone for so long, BBR pauses; that is worth it so often


class Bbr:
    """The BBR of one connected socket; see `of`."""

    def __init__(self, sock: Any, clock: Callable[[], float]) -> None:
        self._sock = sock
        self._clock = clock
        now = clock()
        self._begin_at, self._begin_latest_at = now + UNKNOWN_S, now + LATEST_S
        self._look_at = self._pause_at = now
        self._found: deque[int] = deque(maxlen=READINGS)  # bytes a second
        self._is_exact = self._carries_more = False  # what was found; and the link, than that
        self._pace: int | None = None  # what the socket's was, while it is held
        self._stretch = self._longest = Stretch(now)

    def before(self, size_bytes: int) -> None:
        """So much is about to be written, on a socket that has not ended. Raises OSError where the kernel refuses."""
        stopped = kernel.under_way(self._sock) <= FEW_BYTES
        if stopped and not self._stretch.has_ended:
            self._stretch.end(kernel.read(self._sock))
        if size_bytes <= FEW_BYTES:
            return
        now = self._clock()
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
        seen = kernel.read(self._sock)
        if not self._stretch.has_ended:
            self._stretch.end(seen)
        if self._is_left_alone(now, seen):
            self._begin_at = self._begin_latest_at = now + PAUSE_S
        else:
            self._learn(seen)
            if self._found:
                self._hold(int(HEADROOM * max(self._found)))
            choose(self._sock, OTHER)
            choose(self._sock, NAME)
            self._begin_at = now + (EVERY_S if self._found else UNKNOWN_S)
            self._begin_latest_at = now + LATEST_S
        self._look_at = now + LOOK_EVERY_S
        self._stretch = self._longest = Stretch(now)

    def _is_left_alone(self, now: float, seen: kernel.Seen) -> bool:
        """Whether the way is longer than BBR would begin with; where it may be, BBR is to find out now and then."""
        if seen.round_trip_s >= max(FAR_S, LONGER * seen.remembered_s):
            return True
        now_s = seen.round_trip_s + self._longest.queued_s
        comes_through = seen.rate >= UNDISTURBED * max(self._found, default=0)  # then it is only a queue
        if comes_through or now_s < MAYBE_LONGER * seen.remembered_s or now < self._pause_at:
            return False
        self._pause_at = now + PAUSE_EVERY_S
        return True

    def _learn(self, seen: kernel.Seen) -> None:
        """What the link carries, and whether that is more than was found, if the longest stretch shows it.

        A stretch that tells its own rate is exact; else there is what BBR believes. An exact rate gives way to a
        guess only where that is far higher; a guess gives way to what is exact.
        """
        self._carries_more = False
        stretch = self._longest
        enough_bytes = max(ENOUGH_ROUND_TRIPS * seen.rate * seen.round_trip_s, ENOUGH_BYTES)
        if not seen.rate or stretch.size_bytes < enough_bytes:
            return
        is_exact = stretch.rate >= UNDISTURBED * seen.rate
        rate = min(seen.rate, stretch.rate) if is_exact else self._guess(seen, stretch.size_bytes)
        queue_s = max(QUEUED * seen.round_trip_s, QUEUED_SEGMENTS * seen.segment_bytes / seen.rate)
        is_queued = seen.round_trip_s >= FAR_S and stretch.queued_s >= queue_s
        is_as_exact = is_exact or not self._is_exact
        more = MORE if is_as_exact and not is_queued else SURELY_MORE
        self._carries_more = bool(self._found) and rate > more * max(self._found)
        if self._carries_more or (is_queued and is_as_exact):
            if is_exact != self._is_exact:
                self._found.clear()
            self._found.append(rate)
            self._is_exact = is_exact

    def _guess(self, seen: kernel.Seen, size_bytes: int) -> int:
        """What BBR believes; but where all may have left in the first round trip, without that one.

        Nothing comes through in it, and BBR divides by it, too. If it need not have, that is too much for once: what is
        sent at that pace takes longer to leave.
        """
        blind_bytes = seen.rate * seen.round_trip_s
        blind_s = BLIND_ROUND_TRIPS * seen.round_trip_s
        leaves_later = self._pace is not None and size_bytes >= blind_s * pace_of(self._sock)
        if leaves_later or size_bytes >= WINDOW_ROUND_TRIPS * blind_bytes:
            return seen.rate
        return int(seen.rate * size_bytes / (size_bytes - blind_bytes))

    def _hold(self, rate: int) -> None:
        if self._pace is None:
            self._pace = pace_of(self._sock)
        set_pace(self._sock, min(self._pace, rate))

    def _let_go(self, now: float) -> None:
        """The link carries more, and BBR, which does not begin any more, may find how much."""
        self._carries_more = False
        if self._pace is not None:
            set_pace(self._sock, self._pace)
        self._pace = None
        self._stretch = self._longest = Stretch(now)


class Stretch:
    """A time without a stop.

    `size_bytes`: that were written in it. `rate`: bytes a second that came through while it was sent steadily; 0 where
    that was too short to tell. `queued_s`: how much longer a round trip was than the shortest, at its end.
    """

    def __init__(self, now: float) -> None:
        self.size_bytes = 0
        self.rate = 0
        self.queued_s = 0.0
        self.has_ended = False
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

    def end(self, seen: kernel.Seen) -> None:
        """It has stopped, and the socket is seen so: later, heartbeats alone would tell of the round trip."""
        self.has_ended = self.size_bytes > 0
        self.queued_s = seen.queued_s


def of(sock: Any, clock: Callable[[], float] = time.monotonic) -> Bbr | None:
    """None for a socket that does not use BBR, or where the kernel does not let this process choose it and look at it.

    For a socket on which nothing is under way.
    """
    if sys.platform != "linux":
        return None
    used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    if used != NAME or not works(NAME):  # what is in use may always be chosen again, but not behind another
        return None
    try:
        kernel.read(sock)
        pace_of(sock)
        choose(sock, OTHER)
        choose(sock, NAME)
    except (OSError, struct.error):
        return None
    return Bbr(sock, clock)
