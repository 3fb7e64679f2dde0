"""How long must a round over a lossy link take? Formulas, and rounds played on the lab's model of a link.

    python benchmarks/lossy_floor.py                     tables; docs/lossy-links.md has a part
    python benchmarks/lossy_floor.py --parameters 178762 --rounds 1000

Two parties push N bytes each to a global server and get as many back, slice by slice, both directions at once. With a
rate of R bit/s, a round trip of T seconds, and h = 1500/1448 for headers, a round takes T + 8 h N / R where nothing is
lost. What is lost last comes one round trip or one time-out later: that is played, segment by segment, on
`geomx.channels.emulation.link.Line`, which is also what the lab's router does. Bursts of losses go on while nothing is
sent, as if segments passed that nobody counts.

`Stream` is TCP with a perfect estimate of the rate: it sends at the rate of the link. What was lost is sent again when
three later segments have been acknowledged, or one and a quarter of a round trip has passed (RACK, RFC 8985); where
nothing later was delivered, after two round trips (its tail loss probe), and where the probe or a segment that was sent
again is lost, after a time-out of T + 200 ms. It delivers in order.

Nothing here computes, encodes, fills a queue, or loses an acknowledgement.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import sweep
from benchmarks.measures import percentile
from geomx.channels.emulation.link import Line, LinkSpec
from geomx.layout import Tensor, automatic_slice_elements

MSS, SEGMENT = 1448, 1500  # bytes of payload, and with headers
RTO_LEAST_S, PROBE_MORE_S, ALONE_MORE_S = 0.2, 0.008, 0.2  # of Linux; the last where one segment is under way
BURST = 8  # segments
TYPES = {"fp16": 2.0, "int4": 0.531, "float32": 4.0}  # bytes of a parameter


@dataclass(frozen=True, slots=True)
class Route:
    """Both directions between a party and the global server, which are alike. `name`: for the table."""

    name: str
    spec: LinkSpec

    @property
    def round_trip_s(self) -> float:
        return 2e-3 * self.spec.delay_ms

    @property
    def rate(self) -> float:
        """Bytes a second, headers included."""
        return 125_000.0 * self.spec.rate_mbps


def plain_s(path: Route, size_bytes: float) -> float:
    """The floor, where nothing is lost."""
    return path.round_trip_s + size_bytes * SEGMENT / MSS / path.rate


@dataclass(slots=True)
class _Lost:
    """A missing segment. `due`: when it is sent again; `later`: how many sent behind it have been acknowledged."""

    segment: int
    left: float
    due: float
    again: bool
    later: int = 0


class Stream:
    """One direction of a TCP connection whose estimate of the rate is perfect."""

    def __init__(self, path: Route, seed: object) -> None:
        self._line, self._t = Line(path.spec, Random(str(seed))), path.round_trip_s
        self._segment_s = SEGMENT / path.rate
        self._free, self._last_left = 0.0, -math.inf

    def carry(self, ready: Sequence[float], segments: int) -> list[float]:
        """When each slice has arrived in order. `ready`: when each could leave, rising; all have so many segments."""
        count = len(ready) * segments
        arrived, missing, new = [math.inf] * count, list[_Lost](), 0
        while new < count or missing:
            first = min(missing, key=lambda lost: lost.due, default=None)
            due = first.due if first else math.inf
            at = max(self._free, min(due, ready[new // segments] if new < count else math.inf))
            if first is not None and due <= at:
                missing.remove(first)
                self._send(first.segment, at, True, missing, arrived)
            else:
                self._send(new, at, False, missing, arrived)
                new += 1
        for place in range(1, count):
            arrived[place] = max(arrived[place], arrived[place - 1])
        return arrived[segments - 1 :: segments]

    def _put(self, at: float) -> tuple[float, float | None]:
        """Send a segment; when it has left, and when it arrives if it does."""
        line, losing = self._line, self._line.losing
        idle_s = at - line.free_at
        if losing is not None and 0.0 < idle_s < math.inf:
            losing.survivors(int(idle_s / self._segment_s))
        left = line.send(SEGMENT, at)
        arrival = line.arrival(left)
        return left, None if losing is not None and not losing.survivors(1) else arrival

    def _send(self, segment: int, at: float, again: bool, missing: list[_Lost], arrived: list[float]) -> None:
        left, arrival = self._put(at)
        alone, self._last_left = left - self._last_left > self._t, left
        self._free = left
        if arrival is not None:
            arrived[segment] = arrival
            acknowledged = arrival + self._t / 2
            for lost in missing:
                lost.later += 1
                seen = acknowledged if lost.later >= 3 else max(acknowledged, lost.left + 1.25 * self._t)
                lost.due = min(lost.due, seen)
            return
        recovers = again or any(lost.later or lost.again for lost in missing)
        probe_s = 2.0 * self._t + (ALONE_MORE_S if alone else PROBE_MORE_S)
        wait_s = self._t + RTO_LEAST_S if recovers else min(probe_s, self._t + RTO_LEAST_S)
        for lost in missing:
            if not lost.later:  # a probe sends the last one alone, a time-out all
                lost.due = left + wait_s if recovers else math.inf
        missing.append(_Lost(segment, left, left + wait_s, again))


def rounds_s(path: Route, size_bytes: float, slices: int, rounds: int) -> list[float]:
    """Seconds of each round of party A: it waits for B's slices too, and each begins when its last slice is back."""
    segments = max(1, round(size_bytes / slices / MSS))
    ups, downs = ({party: Stream(path, (way, party)) for party in "AB"} for way in ("up", "down"))
    begins, taken = dict.fromkeys("AB", 0.0), []
    for _ in range(rounds):
        arrived = [ups[party].carry([begins[party]] * slices, segments) for party in "AB"]
        summed = [max(pair) for pair in zip(*arrived, strict=True)]
        ends = {party: downs[party].carry(summed, segments)[-1] for party in "AB"}
        taken.append(ends["A"] - begins["A"])
        begins = ends
    return taken


def paths() -> list[Route]:
    """The links of the page."""
    slow, leave = LinkSpec(rate_mbps=20, delay_ms=50), 1 / BURST
    found = [Route(f"{lost:.1%}", replace(slow, loss=lost)) for lost in (0.0, 0.001, 0.01, 0.03, 0.05)]
    for lost in (0.01, 0.03, 0.05):
        bursts = {"burst_enter": leave * lost / (1 - lost), "burst_leave": leave}
        found.append(Route(f"{lost:.1%}, bursts", replace(slow, **bursts)))
    return [*found, Route("100 Mbit/s, 30 ms, ± 20 ms", LinkSpec(rate_mbps=100, delay_ms=15, jitter_ms=10))]


def table(parameters: int, item_bytes: float, rounds: int) -> Iterator[sweep.Row]:
    """A row for each link: the median of the played rounds, and their 95th percentile."""
    cut = automatic_slice_elements((Tensor("model", (parameters,), "float32"),))
    size, slices = parameters * item_bytes, math.ceil(parameters / cut)
    for path in paths():
        played = rounds_s(path, size, slices, rounds)
        row: sweep.Row = {"loss": path.name, "nothing lost": plain_s(path, size)}
        yield row | {"TCP at best": statistics.median(played), "p95": percentile(played, 0.95)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--parameters", type=int, default=1_068_490)
    parser.add_argument("--rounds", type=int, default=100, help="played for each figure")
    parser.add_argument(
        "--types", nargs="+", choices=TYPES, default=list(TYPES), help="in which values travel"
    )
    options = parser.parse_args()
    for name in options.types:
        title = f"{name}, {TYPES[name] * options.parameters / 1e6:.2f} MB each way"
        sweep.show(title, list(table(options.parameters, TYPES[name], options.rounds)))


if __name__ == "__main__":
    main()
