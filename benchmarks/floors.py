"""How fast a round can be at best, in seconds: push and update at once, pipelined, R + 8 · size / B.

A rate of B bit/s each way, a round trip of R seconds. With workers in a party the local server sends once for all.
The floor knows nothing of headers (3.5 % of what TCP sends), of loss, nor of the time that arithmetic takes. In the
lab a rate is that of a directed pair of sites, so the hub has a link of its own to each party.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Path:
    """The way between a party and the hub. Rates in Mbit/s, towards the hub and back; the round trip in seconds."""

    up_mbps: float
    down_mbps: float
    round_trip_s: float


def exchange_s(size_bytes: float, path: Path) -> float:
    """Push and update at once: the slower direction, and one round trip."""
    return path.round_trip_s + 8e-6 * size_bytes / min(path.up_mbps, path.down_mbps)


def round_s(size_bytes: float, paths: Iterable[Path]) -> float:
    """A round of a hierarchical parameter server: that of its slowest party. No path: nothing crosses the WAN."""
    return max((exchange_s(size_bytes, path) for path in paths), default=0.0)
