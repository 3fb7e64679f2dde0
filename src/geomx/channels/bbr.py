"""BBR begun anew between two rounds, so that it does not stand still in the middle of one; and not too fast.

About every ten seconds BBR sends next to nothing for 0.2 s: the queue empties, and it sees the round trip. Each flow
does so at a time of its own, and a synchronous round waits for all of them. But a flow with nothing under way sees the
round trip without that. So before it sends again, BBR is told to begin anew: Linux does so for a socket that is
given another congestion control, and BBR again. The window is kept, and what loss made BBR believe is forgotten.

A BBR that begins sends faster and faster until no more comes through, which overflows the queue. It ends that when
three round trips brought nothing more, but only counts those in which there always was something to send. Slices that
come one by one are sent as fast as they come, so that it may never end: each round is sent at three times the rate that
the link has. So while BBR begins, the socket may send but little faster than what had come through.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from geomx.channels.congestion import SO_MAX_PACING_RATE, choose, works

if sys.platform == "linux":
    import fcntl
    import termios

NAME = "bbr"
EVERY_S = 5.0  # rounds of up to 5 s then have none of the pauses, which come 10 s after the last
HELD_S = 2.0  # at least: the beginning takes three or four round trips
HEADROOM = 1.05
# What has to be sent without a stop for the rate that came through to be the link's, and how it shows in round trips.
ENOUGH_ROUND_TRIPS = 3
ENOUGH_BYTES = 1 << 18  # less overflows no queue. Greetings, sent bit by bit, take round trips too
QUEUED, QUEUED_S = 0.25, 1e-3  # of a round trip, and at least: else it is processors that send no faster
FEW_BYTES = 1024  # heartbeats and acknowledgements of ours: they show BBR nothing, and hold nothing up
READINGS = 6  # of the rate, one every 5 s: where loss halved one, another still has it

_TCP_CC_INFO = 26  # of Linux; Python has no name for it
_INFO = struct.Struct("=QIII")  # bytes a second; the round trip; gains of pace and window, in 256ths
_INFO_BYTES = 20
_SETTLED_GAIN = 320  # 1.25: it looks for a little more. While it begins, it is 2.9
_TCP_INFO = struct.Struct("=68xI")  # of Linux's struct tcp_info, `tcpi_rtt`
_RATE = struct.Struct("@L")


class Bbr:
    """The BBR of one connected socket; see `of`."""

    def __init__(self, sock: Any, clock: Callable[[], float]) -> None:
        self._sock = sock
        self._clock = clock
        self._begin_at = clock() + HELD_S
        self._let_go_at = 0.0
        self._found: deque[int] = deque(maxlen=READINGS)  # bytes a second; 0: it could not be told
        self._pace: bytes | None = None  # what the socket's was, while it is held
        self._at_once = self._most_at_once = 0  # bytes written without a stop

    def before(self, size_bytes: int) -> None:
        """So much is about to be written, on a socket that has not ended."""
        if size_bytes <= FEW_BYTES:
            return
        now = self._clock()
        stopped = _under_way(self._sock) <= FEW_BYTES
        if stopped and now >= self._begin_at:
            self._begin_anew()
            self._begin_at = now + (EVERY_S if any(self._found) else HELD_S)
            self._let_go_at = now + HELD_S
            self._most_at_once = 0
        elif self._pace is not None and now >= self._let_go_at and _read(self._sock).has_settled:
            self._let_go()
        self._at_once = size_bytes if stopped else self._at_once + size_bytes
        self._most_at_once = max(self._most_at_once, self._at_once)

    def _begin_anew(self) -> None:
        seen = _read(self._sock)
        enough = max(ENOUGH_ROUND_TRIPS * seen.rate * seen.round_trip_s, ENOUGH_BYTES)
        queued_s = _round_trip_now_s(self._sock) - seen.round_trip_s
        fills = self._most_at_once >= enough and queued_s >= max(QUEUED * seen.round_trip_s, QUEUED_S)
        self._found.append(seen.rate if fills else 0)
        if self._pace is None:
            self._pace = self._sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, _RATE.size)
        if any(self._found):
            (pace,) = _RATE.unpack(self._pace)
            held = min(pace, int(HEADROOM * max(self._found)))
            self._sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, _RATE.pack(held))
        else:
            self._let_go()
        choose(self._sock, "reno")  # every Linux has it
        choose(self._sock, NAME)

    def _let_go(self) -> None:
        self._sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, self._pace)
        self._pace = None


def of(sock: Any, clock: Callable[[], float] = time.monotonic) -> Bbr | None:
    """None for a socket that does not use BBR, or where the kernel does not let this process choose it again."""
    if sys.platform != "linux":
        return None
    used = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()
    if used != NAME or not works(NAME) or len(_info(sock)) != _INFO_BYTES:
        return None
    return Bbr(sock, clock)


def _under_way(sock: Any) -> int:
    """Bytes that the peer has not acknowledged, or that were not sent yet."""
    (size,) = struct.unpack("@i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
    return int(size)


class _Seen(NamedTuple):
    """What BBR believes. `rate`: that the way carries, in bytes a second; 0 where it has seen nothing.

    `round_trip_s`: the shortest.
    """

    rate: int
    round_trip_s: float
    has_settled: bool


def _read(sock: Any) -> _Seen:
    rate, round_trip_us, gain, _ = _INFO.unpack(_info(sock))
    return _Seen(rate, 1e-6 * round_trip_us, rate > 0 and gain <= _SETTLED_GAIN)


def _round_trip_now_s(sock: Any) -> float:
    """As TCP has smoothed it over the last ones."""
    (round_trip_us,) = _TCP_INFO.unpack(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size))
    return 1e-6 * float(round_trip_us)


def _info(sock: Any) -> bytes:
    return bytes(sock.getsockopt(socket.IPPROTO_TCP, _TCP_CC_INFO, _INFO_BYTES))
