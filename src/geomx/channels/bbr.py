"""BBR begun anew between two rounds, so that it does not stand still in the middle of one.

About every ten seconds BBR sends next to nothing for 0.2 s: the queue empties, and it sees the round trip. Each flow
does so at a time of its own, and a synchronous round waits for all of them. But a flow with nothing under way sees the
round trip without that. So before it sends again, BBR is told to begin anew: Linux does so for a socket that is
given another congestion control, and BBR again. The window is kept, and what loss made BBR believe is forgotten.

A BBR that begins sends faster and faster until no more comes through, which would overflow the queue of a link that is
known by now. So for its first moments the socket may send but little faster than BBR had found it can.
"""

from __future__ import annotations

import socket
import struct
import sys
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from geomx.channels.congestion import SO_MAX_PACING_RATE, choose, works

if sys.platform == "linux":
    import fcntl
    import termios

NAME = "bbr"
EVERY_S = 5.0  # rounds of up to 5 s then have none of the pauses, which come 10 s after the last
HELD_S = 2.0  # the beginning takes three or four round trips
HEADROOM = 1.05
FEW_BYTES = 1024  # heartbeats and acknowledgements of ours: they show BBR nothing, and hold nothing up
READINGS = 6  # of the rate, one every 5 s: where loss halved one, another still has it

_TCP_CC_INFO = 26  # of Linux; Python has no name for it
_INFO = struct.Struct("=QIII")  # bytes a second; the round trip; gains of pace and window, in 256ths
_INFO_BYTES = 20
_SETTLED_GAIN = 320  # 1.25: it looks for more. At the beginning it is 2.9
_RATE = struct.Struct("@L")


class Bbr:
    """The BBR of one connected socket; see `of`."""

    def __init__(self, sock: Any, clock: Callable[[], float]) -> None:
        self._sock = sock
        self._clock = clock
        self._look_at = clock() + EVERY_S
        self._found: deque[int] = deque(maxlen=READINGS)
        self._pace: bytes | None = None  # what the socket's was, while it is held

    def before(self, size_bytes: int) -> None:
        """So much is about to be written, on a socket that has not ended."""
        now = self._clock()
        if now < self._look_at:
            return
        if self._pace is not None:
            self._let_go()
            self._look_at = now + EVERY_S - HELD_S
        elif _under_way(self._sock) <= FEW_BYTES < size_bytes:
            self._begin_anew()
            self._look_at = now + HELD_S

    def _begin_anew(self) -> None:
        rate, gain = _read(self._sock)
        if rate and gain <= _SETTLED_GAIN:  # else it is still looking for the rate
            self._found.append(rate)
        self._pace = self._sock.getsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, _RATE.size)
        if self._found:
            (pace,) = _RATE.unpack(self._pace)
            held = min(pace, int(HEADROOM * max(self._found)))
            self._sock.setsockopt(socket.SOL_SOCKET, SO_MAX_PACING_RATE, _RATE.pack(held))
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


def _read(sock: Any) -> tuple[int, int]:
    """What it believes the way to carry, in bytes a second, and by what it multiplies that now, in 256ths."""
    rate, _, gain, _ = _INFO.unpack(_info(sock))
    return rate, gain


def _info(sock: Any) -> bytes:
    return bytes(sock.getsockopt(socket.IPPROTO_TCP, _TCP_CC_INFO, _INFO_BYTES))
