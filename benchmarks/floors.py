"""How fast a round can be at best: formulas, in seconds.

N parameters of b bytes, S parties, W workers a party, a rate of B bit/s each way, a round trip of R seconds, and c the
share of the bytes that is left after compression. `size_bytes` is N · b · c.

    push and update, pipelined         R + 8 · size / B       at each party's link; a ring needs S - 1 round trips
    the same at a link that all share  R + 8 · size · S / B
    without local servers              R + 8 · size · W / B
    a shard at each of S sites         R + 16 · size · (S - 1) / (S · B)
    hidden behind computing            B ≥ 8 · size / (H · t), with H steps of t seconds between synchronisations

The floor knows nothing of headers (3.5 % of what TCP sends), of loss, nor of the time that arithmetic takes. In the
lab a rate is that of a directed pair of sites, so the hub has a link of its own to each party.
"""

from __future__ import annotations

import math
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


def shared_link_s(size_bytes: float, parties: int, path: Path) -> float:
    """The round where all parties' bytes cross one link, such as the hub's."""
    return exchange_s(size_bytes * parties, path)


def flat_s(size_bytes: float, workers: int, path: Path) -> float:
    """The round without local servers: each worker's bytes cross the party's link."""
    return exchange_s(size_bytes * workers, path)


def sharded_over_sites_s(size_bytes: float, sites: int, path: Path) -> float:
    """The round with one shard at each site (MultiGPS): a site keeps its own part, and sends and gets the others."""
    return path.round_trip_s + 16e-6 * size_bytes * (sites - 1) / (sites * min(path.up_mbps, path.down_mbps))


def hidden_from_mbps(size_bytes: float, steps: int, step_s: float) -> float:
    """The rate from which on a synchronisation hides behind the computing of `steps` steps."""
    return 8e-6 * size_bytes / (steps * step_s)


def index_bits(density: float) -> float:
    """The least bits that the place of one entry takes in a sparse vector with this share of entries."""
    if not 0 < density < 1:
        raise ValueError(f"a density lies between 0 and 1; found {density}")
    rest = 1 - density
    return -math.log2(density) - rest / density * math.log2(rest)
