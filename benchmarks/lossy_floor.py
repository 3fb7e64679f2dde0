"""How long must a round over a lossy link take? Formulas, and rounds played on the lab's model of a link.

    python benchmarks/lossy_floor.py                     tables in Markdown; docs/lossy-links.md has a part
    python benchmarks/lossy_floor.py --parameters 178762 --rounds 1000

Two parties push N bytes each to a global server and get M bytes back, slice by slice, both directions at once. With a
rate of R bit/s, a round trip of T seconds, a share p of segments lost, and h = 1500/1448 for headers:

    nothing lost             T + 8 h max(N, M) / R
    all must arrive          T + 8 h max(N, M) / (R (1 - p))       an erasure channel's capacity is R (1 - p)
    cubic                    T + 8 max(N, M) / min(R / h, 1.22 MSS / (T sqrt(p)))      Mathis et al. 1997 (bursts: once)

Those know nothing of the tail: whatever was lost last comes one round trip or one time-out later. It is played,
segment by segment, on `geomx.channels.emulation.link.Line`, which is also what the lab's router does. Bursts of losses
go on while nothing is sent, as if segments passed that nobody counts.

- `Stream` is TCP with a perfect estimate of the rate: it sends at the rate of the link. What was lost is sent again
  when three later segments have been acknowledged, or one and a quarter of a round trip has passed (RACK, RFC 8985);
  where nothing later was delivered, after two round trips (its tail loss probe), and where the probe or a segment that
  was sent again is lost, after a time-out of T + 200 ms. It delivers in order.
- As BBR it also stands still for 200 ms every 10 s (probing for the round trip). Its estimate of the rate, a maximum
  over ten round trips, is not lowered by losses: at 5 % we saw 18.6 to 19.7 of the 19.3 Mbit/s that the link carries.
- `Datagrams` sends everything once, and closes a slice `CLOSE_S` after its last datagram. A share k of the datagrams is
  sent again until it arrives, `ACK_S` and a round trip after it was lost.

Nothing here computes, encodes, fills a queue, or loses an acknowledgement.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks.measures import percentile
from geomx.channels.emulation.link import Line, LinkSpec
from geomx.layout import Tensor, automatic_slice_elements

MSS, SEGMENT = 1448, 1500  # bytes of payload, and with headers
RTO_LEAST_S, PROBE_MORE_S, ALONE_MORE_S = 0.2, 0.008, 0.2  # of Linux; the last where one segment is under way
PAUSE_S, PAUSE_EVERY_S = 0.2, 10.0  # of BBR in Linux
ACK_S, CLOSE_S = 0.005, 0.005  # assumed of a datagram channel
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


def plain_s(path: Route, size_bytes: float, reliable: float = 0.0) -> float:
    """The floor: where `reliable` is 0 nothing that is lost is sent again, where it is 1 everything."""
    lost = path.spec.mean_loss
    again = reliable * lost / (1.0 - lost)
    return path.round_trip_s + size_bytes * SEGMENT / MSS * (1.0 + again) / path.rate


def cubic_s(path: Route, size_bytes: float) -> float:
    """The least with the congestion control that Linux has by default: losses at random limit its rate.

    It halves, about, once a round trip at most, so a burst counts once.
    """
    spec, most = path.spec, path.rate * MSS / SEGMENT
    bad = spec.burst_enter / (spec.burst_enter + spec.burst_leave)
    lost = spec.loss + spec.burst_enter * (1.0 - bad)
    rate = min(most, 1.22 * MSS / (path.round_trip_s * math.sqrt(lost))) if lost else most
    return path.round_trip_s + size_bytes / rate


class _Sending:
    """What streams and datagrams share: a line, and whether what is put on it arrives."""

    def __init__(self, path: Route, chance: Random) -> None:
        self._line, self._t, self._segment_s = Line(path.spec, chance), path.round_trip_s, SEGMENT / path.rate

    def _put(self, at: float) -> tuple[float, float | None]:
        """Send a segment; when it has left, and when it arrives if it does."""
        line, losing = self._line, self._line.losing
        idle_s = at - line.free_at
        if losing is not None and 0.0 < idle_s < math.inf:
            losing.survivors(int(idle_s / self._segment_s))
        left = line.send(SEGMENT, at)
        arrival = line.arrival(left)
        return left, None if losing is not None and not losing.survivors(1) else arrival


@dataclass(slots=True)
class _Lost:
    """A missing segment. `due`: when it is sent again; `later`: how many sent behind it have been acknowledged."""

    segment: int
    left: float
    due: float
    again: bool
    later: int = 0


class Stream(_Sending):
    """One direction of a TCP connection whose estimate of the rate is perfect. `pauses`: those of BBR."""

    def __init__(self, path: Route, seed: object, pauses: bool = False) -> None:
        chance = Random(str(seed))
        super().__init__(path, chance)
        self._free, self._last_left = 0.0, -math.inf
        self._pause_at = chance.uniform(0.0, PAUSE_EVERY_S) if pauses else math.inf

    def carry(self, ready: Sequence[float], segments: int) -> list[float]:
        """When each slice has arrived in order. `ready`: when each could leave, rising; all have so many segments."""
        count = len(ready) * segments
        arrived, missing, new = [math.inf] * count, list[_Lost](), 0
        while new < count or missing:
            first = min(missing, key=lambda lost: lost.due, default=None)
            due, new_at = (
                (first.due if first else math.inf),
                (ready[new // segments] if new < count else math.inf),
            )
            at = self._begin(min(due, new_at))
            if first is not None and due <= at:
                missing.remove(first)
                self._send(first.segment, at, True, missing, arrived)
            else:
                self._send(new, at, False, missing, arrived)
                new += 1
        for place in range(1, count):
            arrived[place] = max(arrived[place], arrived[place - 1])
        return arrived[segments - 1 :: segments]

    def _begin(self, at: float) -> float:
        """When the next segment can leave; every ten seconds there is a pause first."""
        at = max(at, self._free)
        if at >= self._pause_at:
            at = max(at, self._pause_at + PAUSE_S)
            self._pause_at += PAUSE_EVERY_S * (1 + (at - self._pause_at) // PAUSE_EVERY_S)
        return at

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


class Datagrams(_Sending):
    """One direction of a channel that may lose: a share `reliable` of what it carries is sent until it arrives.

    `headers`: the stream on which the head of each slice travels; None where it comes with the datagrams.
    """

    def __init__(
        self, path: Route, seed: object, reliable: float = 0.0, headers: Stream | None = None
    ) -> None:
        self._chance = Random(str(seed))
        super().__init__(path, self._chance)
        self._reliable, self._headers = reliable, headers

    def carry(self, ready: Sequence[float], segments: int) -> list[float]:
        """When each slice is closed, in the order of closing."""
        again: list[tuple[float, int]] = []  # when it is known to be lost, and of which slice
        closed, begun = [0.0] * len(ready), [0.0] * len(ready)
        for slice_, since in enumerate(ready):
            for place in range(segments):
                while again and again[0][0] <= max(since, self._line.free_at):
                    self._send(*again.pop(0), True, again, closed)
                if place == 0:
                    begun[slice_] = max(since, self._line.free_at)
                self._send(since, slice_, self._chance.random() < self._reliable, again, closed)
        while again:
            self._send(*again.pop(0), True, again, closed)
        if self._headers is not None:
            closed = [max(pair) for pair in zip(closed, self._headers.carry(begun, 1), strict=True)]
        return sorted(closed)

    def _send(
        self, at: float, slice_: int, reliable: bool, again: list[tuple[float, int]], closed: list[float]
    ) -> None:
        left, arrival = self._put(at)
        over = (
            left + self._t / 2 if arrival is None else arrival
        )  # where it is lost, a marker behind it tells
        closed[slice_] = max(closed[slice_], over + CLOSE_S)
        if reliable and arrival is None:
            again.append((left + self._t + ACK_S, slice_))
            again.sort()


Way = Stream | Datagrams
Make = Callable[[Route, object], Way]


def rounds_s(path: Route, up: Make, down: Make, size_bytes: float, slices: int, rounds: int) -> list[float]:
    """Seconds of each round of party A: it waits for B's slices too, and each begins when its last slice is back."""
    segments = max(1, round(size_bytes / slices / MSS))
    ups, downs = (
        {party: make(path, (which, party)) for party in "AB"} for which, make in (("up", up), ("down", down))
    )
    begins, taken = dict.fromkeys("AB", 0.0), []
    for _ in range(rounds):
        arrived = [ups[party].carry([begins[party]] * slices, segments) for party in "AB"]
        summed = [max(pair) for pair in zip(*arrived, strict=True)]
        ends = {party: downs[party].carry(summed, segments)[-1] for party in "AB"}
        taken.append(ends["A"] - begins["A"])
        begins = ends
    return taken


def tcp(path: Route, seed: object) -> Way:
    return Stream(path, seed)


def bbr(path: Route, seed: object) -> Way:
    return Stream(path, seed, pauses=True)


def lossy(reliable: float, headers: bool = False) -> Make:
    def make(path: Route, seed: object) -> Way:
        return Datagrams(path, seed, reliable, Stream(path, (seed, "headers")) if headers else None)

    return make


def paths() -> list[Route]:
    """The links of the page."""
    slow, found = LinkSpec(rate_mbps=20, delay_ms=50), []
    for percent in (0, 0.1, 1, 3, 5):
        found.append(Route(f"{percent:g} %", replace(slow, loss=percent / 100)))
    for percent in (1, 3, 5):
        lost, leave = percent / 100, 1 / BURST
        enter = leave * lost / (1 - lost)
        found.append(Route(f"{percent:g} %, bursts", replace(slow, burst_enter=enter, burst_leave=leave)))
    jitter = LinkSpec(rate_mbps=100, delay_ms=15, jitter_ms=10)
    return [*found, Route("100 Mbit/s, 30 ms, ± 20 ms", jitter)]


COLUMNS: dict[str, tuple[Make, Make]] = {
    "TCP at best": (tcp, tcp),
    "BBR": (bbr, bbr),
    "up may lose": (lossy(0.0), tcp),
    "k = 0.1": (lossy(0.1), tcp),
    "k = 0.8": (lossy(0.8), tcp),
    "heads on TCP": (lossy(0.0, headers=True), tcp),
    "both may lose": (lossy(0.0), lossy(0.0)),
}


def table(parameters: int, item_bytes: float, rounds: int) -> Iterator[str]:
    """Lines of Markdown, one for each link; medians of the played rounds, of TCP with their 95th percentile."""
    cut = automatic_slice_elements((Tensor("model", (parameters,), "float32"),))
    size, slices = parameters * item_bytes, math.ceil(parameters / cut)
    heads = ["loss", "nothing lost", "all must arrive", "cubic, at least", *COLUMNS]
    yield from ("| " + " | ".join(heads) + " |", "|---|" + "---:|" * (len(heads) - 1))
    for path in paths():
        figures = [
            f"{each:.2f}" for each in (plain_s(path, size), plain_s(path, size, 1.0), cubic_s(path, size))
        ]
        for up, down in COLUMNS.values():
            played = rounds_s(path, up, down, size, slices, rounds)
            more = f" ({percentile(played, 0.95):.2f})" if up in (tcp, bbr) else ""
            figures.append(f"{statistics.median(played):.2f}{more}")
        yield f"| {path.name} | " + " | ".join(figures) + " |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--parameters", type=int, default=1_068_490)
    parser.add_argument("--rounds", type=int, default=100, help="played for each figure")
    parser.add_argument(
        "--types", nargs="+", choices=TYPES, default=list(TYPES), help="in which values travel"
    )
    options = parser.parse_args()
    for name in options.types:
        item_bytes = TYPES[name]
        print(f"{name}, {item_bytes * options.parameters / 1e6:.2f} MB each way\n")
        for line in table(options.parameters, item_bytes, options.rounds):
            print(line, flush=True)
        print()


if __name__ == "__main__":
    main()
