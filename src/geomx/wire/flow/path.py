"""Whether datagrams pass between two nodes, and how large they may be.

States, and what moves a path between them:

    WAITING  nothing leaves
             --`begin`-->   TRYING
    TRYING   probes of every size leave every `EVERY_S`
             --the largest has come, or `SETTLE_S` after the first that has-->   OPEN
             --`LIMIT_S` without any-->   BLOCKED
    OPEN     datagrams of `datagram_bytes` pass
             --nothing is heard any more of what was sent (`lost`)-->   TRYING
             --nothing was ever heard of it, though probes came-->   BLOCKED, each time for twice as long
    BLOCKED  probes leave every `RETRY_S`
             --one has come-->   TRYING
"""

from __future__ import annotations

from math import inf
from typing import Literal

from geomx.wire.flow.packets import Probe

# Bodies of datagrams behind envelopes of 26 bytes: over IPv4 and IPv6 with 1,500 bytes, through most tunnels, and over
# what every path of IPv6 has to carry.
SIZES = (1446, 1426, 1350, 1206)
EVERY_S, SETTLE_S, LIMIT_S, RETRY_S = 0.1, 0.25, 2.0, 10.0
MOST_DOUBLINGS = 5

State = Literal["waiting", "trying", "open", "blocked"]


class Path:
    """See the module's text. It reads no clock; times are seconds."""

    def __init__(self) -> None:
        self.state: State = "waiting"
        self.datagram_bytes = 0
        self._since = self._next_at = self._opens_at = inf
        self._futile = 0  # how often in a row probes passed, and nothing else
        self.round_trip_s = 0.5  # before one was measured

    def begin(self, now: float) -> None:
        """Something may leave."""
        if self.state == "waiting":
            self._try(now)

    def _try(self, now: float) -> None:
        self.state = "trying"
        self.datagram_bytes = 0
        self._since = self._next_at = now
        self._opens_at = inf

    @property
    def is_open(self) -> bool:
        return self.state == "open"

    def next_at(self) -> float:
        """When to call `probes`; inf: not before something happens."""
        return min(self._next_at, self._opens_at)

    def probes(self, now: float) -> list[Probe]:
        """The probes that leave now; what has taken too long is noticed here."""
        if now >= self._opens_at:
            self._open()
        if now < self._next_at:
            return []
        if self.state == "trying" and not self.datagram_bytes and now - self._since >= LIMIT_S:
            self.state = "blocked"
        self._next_at = now + (EVERY_S if self.state == "trying" else RETRY_S)
        return [Probe(size) for size in SIZES if size > self.datagram_bytes]

    def probed(self, size: int, now: float) -> None:
        """A probe of this size has come."""
        if size not in SIZES or self.state in ("waiting", "open"):
            return
        if self.state == "blocked":
            self._try(now)
        else:
            self.round_trip_s = max(now - self._since, 1e-3) if not self.datagram_bytes else self.round_trip_s
        self.datagram_bytes = max(self.datagram_bytes, size)
        self._opens_at = now if size == SIZES[0] else min(self._opens_at, now + SETTLE_S)
        if self._opens_at <= now:
            self._open()

    def _open(self) -> None:
        self.state = "open"
        self._next_at = self._opens_at = inf

    def lost(self, now: float, was_of_use: bool = True) -> None:
        """Nothing is heard any more of what is sent. `was_of_use`: something was, since the path is open."""
        if self.state != "open":
            return
        self._try(now)
        self._futile = 0 if was_of_use else self._futile + 1
        if self._futile:
            self.state = "blocked"
            self._next_at = now + RETRY_S * (1 << min(self._futile - 1, MOST_DOUBLINGS))
