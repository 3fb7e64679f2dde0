"""BBR's startup, ended where it would not end.

BBR begins at 2.9 times the rate that has come through, until three round trips have brought no more. It counts only
those in which there always was something to send. What leaves faster than slices come in never is such a one: the
connection stays in startup for the whole run, and fills the queue of its link in each round: what comes back waits
behind it. Source: "BBR: Congestion-Based Congestion Control", ACM Queue 14(5), 2016, and Linux's net/ipv4/tcp_bbr.c.

So where three round trips in startup were full and brought no more, the kernel is told to send but little faster than
what comes through. Then there always is something to send: BBR sees it, ends its startup, and the limit is taken away.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections.abc import Callable
from typing import Any

_TCP_CC_INFO, _SO_MAX_PACING_RATE = 26, 47  # of Linux; Python has no names for them
_BBR_INFO = struct.Struct(
    "=QIII"
)  # struct tcp_bbr_info: bytes a second, round trip in µs, gains of pace and window
_TCP_INFO = struct.Struct("=16xI4xI")  # struct tcp_info: tcpi_snd_mss, tcpi_unacked
_RATE = struct.Struct("@L")
STARTUP_GAIN = 700  # of the pace, in 256ths: 739 in startup, and never more than 320 behind it
FULL = 1.5  # of what comes through in a round trip, so much is under way
GROWTH, ROUND_TRIPS = 1.25, 3  # less is no more, and so often in turn: BBR's own rule
HEADROOM = 1.05
LOOK_EVERY_S = 0.02


class Startup:
    """That of one connected socket. `has_ended`: there is nothing to look at any more."""

    def __init__(self, sock: Any, clock: Callable[[], float] = time.monotonic) -> None:
        self.has_ended = False
        self._sock, self._clock = sock, clock
        self._look_at = self._count_at = clock()
        self._highest = self._times = 0
        self._pace = 0  # what was set last
        self._own_pace: int | None = None  # what the socket's was, while it is held

    def look(self) -> None:
        """Something is about to be written. Raises OSError or struct.error where the kernel does not tell."""
        now = self._clock()
        if now < self._look_at:
            return
        self._look_at = now + LOOK_EVERY_S
        told = self._sock.getsockopt(socket.IPPROTO_TCP, _TCP_CC_INFO, _BBR_INFO.size)
        rate, round_trip_us, gain, _ = _BBR_INFO.unpack(told)
        if (
            self._own_pace is None
            and gain >= STARTUP_GAIN
            and self._has_filled(now, rate, 1e-6 * round_trip_us)
        ):
            option = self._sock.getsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _RATE.size)
            (self._own_pace,) = _RATE.unpack(option)
        self.has_ended = rate > 0 and gain < STARTUP_GAIN  # before the first bytes it has neither
        if self._own_pace is not None:
            self._hold(
                self._own_pace
                if self.has_ended
                else min(int(HEADROOM * max(rate, self._highest)), self._own_pace)
            )

    def _hold(self, pace: int) -> None:
        if pace != self._pace:
            self._sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, _RATE.pack(pace))
            self._pace = pace

    def _has_filled(self, now: float, rate: int, round_trip_s: float) -> bool:
        """Whether the way was full in `ROUND_TRIPS`, and they have brought no more."""
        told = self._sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        segment_bytes, under_way = _TCP_INFO.unpack(told)
        is_full = under_way * segment_bytes >= FULL * rate * round_trip_s
        if is_full and now >= self._count_at:
            self._count_at = now + round_trip_s
            if rate >= GROWTH * self._highest:
                self._highest, self._times = rate, 0
            else:
                self._times += 1
        return self._times >= ROUND_TRIPS


def startup_of(sock: Any) -> Startup | None:
    """That of this socket, if Linux sends on it by BBR."""
    if sys.platform != "linux":
        return None
    name = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16)
    return Startup(sock) if name.rstrip(b"\0") == b"bbr" else None
