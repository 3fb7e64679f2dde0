"""What Linux tells of a connected TCP socket, and of the BBR that sends on it.

Source: struct tcp_info and struct tcp_bbr_info in Linux's include/uapi/linux.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any, NamedTuple

if sys.platform == "linux":
    import fcntl
    import termios

_TCP_CC_INFO = 26  # Python has no name for it
_BBR_INFO = struct.Struct("=QIII")  # bytes a second; the round trip; gains of pace and window, in 256ths
# tcpi_snd_mss, tcpi_rtt, tcpi_notsent_bytes, tcpi_min_rtt, tcpi_delivered
_TCP_INFO = struct.Struct("=16xI48xI72xII40xI")
_SETTLED_GAIN = 320  # 1.25: it looks for a little more. While it begins, it is 2.9


class Seen(NamedTuple):
    """What is known of a socket. `rate`: that BBR believes the way carries, in bytes a second; 0: it has seen nothing.

    `has_settled`: BBR does not begin any more. `round_trip_s`: the shortest that BBR knows of. `remembered_s`: that TCP
    remembers, of the last five minutes, with which BBR begins. `queued_s`: how much longer than BBR's it is now,
    smoothed. `waiting_bytes`: not sent yet. `segment_bytes`: of a full one. `delivered`: how many have come through so
    far, modulo 2^32.
    """

    rate: int
    has_settled: bool
    round_trip_s: float
    remembered_s: float
    queued_s: float
    waiting_bytes: int
    segment_bytes: int
    delivered: int


def read(sock: Any) -> Seen:
    """What is known now. Raises OSError or struct.error where the kernel tells less (before Linux 4.18)."""
    told = sock.getsockopt(socket.IPPROTO_TCP, _TCP_CC_INFO, _BBR_INFO.size)
    rate, round_trip_us, gain, _ = _BBR_INFO.unpack(told)
    info = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
    segment_bytes, now_us, waiting_bytes, remembered_us, delivered = _TCP_INFO.unpack(info)
    return Seen(
        rate=rate,
        has_settled=rate > 0 and gain <= _SETTLED_GAIN,
        round_trip_s=1e-6 * round_trip_us,
        remembered_s=1e-6 * remembered_us,
        queued_s=1e-6 * (now_us - round_trip_us),
        waiting_bytes=waiting_bytes,
        segment_bytes=segment_bytes,
        delivered=delivered,
    )


def under_way(sock: Any) -> int:
    """Bytes that the peer has not acknowledged, or that were not sent yet."""
    (size,) = struct.unpack("@i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))
    return int(size)
