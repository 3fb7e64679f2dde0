"""How fast TCP delivers, as Linux measures it for each connection.

Bursts that are smaller than the congestion window leave at once, however slow the link: when they were written says
nothing. The kernel counts what was acknowledged over the time that it took, and knows whether there was always
something to send. Source: "Delivery Rate Estimation", draft-cheng-iccrg-delivery-rate-estimation.
"""

from __future__ import annotations

import socket
import struct
import sys
from typing import Any

_TCP_INFO = struct.Struct(
    "=7xB152xQ"
)  # struct tcp_info: whether the application was the limit, tcpi_delivery_rate


def is_told() -> bool:
    """Whether this system's kernel tells it."""
    return sys.platform == "linux"


def delivery_rate(sock: Any) -> float | None:
    """Bytes a second, of late; None: there was not always something to send, or the kernel does not tell."""
    try:
        told = sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        limited, rate = _TCP_INFO.unpack(told)
    except (OSError, struct.error, AttributeError):
        return None
    return None if limited & 1 or not rate else float(rate)
