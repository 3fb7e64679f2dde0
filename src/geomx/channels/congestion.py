"""The congestion control of one TCP connection: `system`, or the name of one that this machine has. And its pace.

Two connections that fill a link in both directions hold each other's acknowledgements up in its queues: cubic loses a
fifth of the rate to that, BBR a tenth. Whoever sends a little slower than the link leaves its queue empty.
"""

from __future__ import annotations

import socket
import struct
import sys
from pathlib import Path
from typing import Any

from geomx.errors import ConfigError, Fault

SYSTEM = "system"
_SO_MAX_PACING_RATE = 47  # of Linux; Python has no name for it
_RATE, _SMALL_RATE = struct.Struct("@L"), struct.Struct("=I")  # bytes a second
_UNLIMITED = 2 ** (8 * _RATE.size) - 1
_LISTS = ("tcp_available_congestion_control", "tcp_allowed_congestion_control")


def available() -> tuple[str, ...]:
    """The names that this process may choose, `system` first."""
    if not hasattr(socket, "TCP_CONGESTION"):
        return (SYSTEM,)
    names = {name for file in _LISTS for name in _read(Path("/proc/sys/net/ipv4") / file)}
    return (SYSTEM, *sorted(name for name in names if _works(name)))


def check(name: str) -> None:
    """Raise `ConfigError` if connections on this machine cannot use this congestion control."""
    if name != SYSTEM and not _works(name):
        raise ConfigError(
            "channel",
            [
                Fault(
                    "congestion",
                    repr(name),
                    ", ".join(available()),
                    f"on Linux, root loads it: `modprobe tcp_{name}`",
                )
            ],
        )


def choose(sock: Any, name: str) -> None:
    """Use it on a connected socket (or what a transport has in its place)."""
    if name != SYSTEM:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())


def pace(sock: Any, mbps: float) -> None:
    """Send at most so many 10^6 bits of payload a second; nothing happens where the kernel cannot."""
    if sys.platform == "linux":
        bytes_per_s = min(int(mbps * 125_000), _UNLIMITED)
        form = _SMALL_RATE if bytes_per_s < 2**32 - 1 else _RATE  # Linux 4 knows the small one alone
        sock.setsockopt(socket.SOL_SOCKET, _SO_MAX_PACING_RATE, form.pack(bytes_per_s))


def _read(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except OSError:
        return []


def _works(name: str) -> bool:
    """Whether this process may choose it."""
    if not hasattr(socket, "TCP_CONGESTION"):
        return False
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as trial:
        try:
            choose(trial, name)
        except (OSError, ValueError):
            return False
    return True
