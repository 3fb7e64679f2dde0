"""What flows on the links of a graph: each flow's share, and when its messages have left.

Shares are computed anew when a flow becomes busy or idle, or a link's rate changes, once for each moment of the clock.
They apply at once, also to the chunk that is leaving. Nothing else is modelled: no queue inside of the network, no
slow start, no loss, no acknowledgements. `python -m lab graphs` measures what TCP makes of the same links: with
cubic it comes within 10 % where queues are fair; where they are not, flows over several full links get less.
"""

from __future__ import annotations

from math import inf
from random import Random

from geomx.errors import ConfigError, Fault
from geomx.simulate.graph import Graph, fair_shares
from geomx.simulate.network import Clock, Network, SimulatedLink

_BYTES_PER_MBIT = 125_000.0


class Traffic:
    """The flows on a graph's links, on one clock."""

    def __init__(self, graph: Graph, clock: Clock) -> None:
        self.graph = graph
        self._clock = clock
        self._numbers = {direction: number for number, direction in enumerate(graph.links)}
        self._rates = [_bytes_per_s(link[0]) for link in graph.links.values()]
        self._busy: dict[Flow, None] = {}  # in the order in which they became so
        self._settling = False

    def flow(
        self, source: str, target: str, network: Network, chance: Random, chunk_bytes: int
    ) -> SimulatedLink:
        """From one node to another; a link of their own where they stand at one site."""
        here, there = self.graph.nodes[source], self.graph.nodes[target]
        if here == there:
            return SimulatedLink(network, self._clock, chance, chunk_bytes)
        way = [self._numbers[direction] for direction in self.graph.way(here, there)]
        return Flow(network, self._clock, chance, chunk_bytes, self, way)

    def rate_mbps(self, one: str, other: str) -> float:
        """The rate of a link now; 0: as fast as it goes."""
        rate = self._rates[self._number(one, other)]
        return rate / _BYTES_PER_MBIT if rate < inf else 0.0

    def change(self, one: str, other: str, rate_mbps: float, *, both: bool = False) -> None:
        """Give a link another rate, at once. For a planned change, call this by `Simulator.at`.

        Args:
            one, other: the sites that it leads from and to.
            rate_mbps: Mbit/s; 0: as fast as it goes.
            both: the link back as well.

        Raises:
            ConfigError: The graph has no such link.
        """
        for ends in ((one, other), (other, one)) if both else ((one, other),):
            self._limit(self._number(*ends), rate_mbps)

    def bound(self, flow: Flow, rate_mbps: float) -> None:
        """Give a flow a limit of its own, as the last link of its way; 0: none any more."""
        if flow.bound is not None:
            self._limit(flow.bound, rate_mbps)
        elif rate_mbps:
            flow.bound = len(self._rates)
            flow.way.append(flow.bound)
            self._rates.append(_bytes_per_s(rate_mbps))
            self._settle_soon()

    def _limit(self, number: int, rate_mbps: float) -> None:
        self._rates[number] = _bytes_per_s(rate_mbps)
        self._settle_soon()

    def turned(self, flow: Flow, busy: bool) -> None:
        """A flow has become busy or idle."""
        if busy:
            self._busy[flow] = None
        else:
            del self._busy[flow]
        self._settle_soon()

    def _settle_soon(self) -> None:
        """When all that happens at this moment has happened."""
        if not self._settling:
            self._settling = True
            self._clock.at(self._clock.now, self._settle)

    def _settle(self) -> None:
        self._settling = False
        for flow, share in zip(
            self._busy, fair_shares(self._rates, [flow.way for flow in self._busy]), strict=True
        ):
            flow.pace(share)

    def _number(self, one: str, other: str) -> int:
        number = self._numbers.get((one, other))
        if number is None:
            known = ", ".join(f"{a} to {b}" for a, b in self._numbers)
            raise ConfigError("graph", [Fault("link", f"{one} to {other}", f"one of {known}")])
        return number


class Flow(SimulatedLink):
    """What one node sends to another over the graph.

    A `Network` that is said of the pair holds as on other links. Its delay is in place of the way's, and its rate is
    one more limit.
    """

    def __init__(
        self,
        network: Network,
        clock: Clock,
        chance: Random,
        chunk_bytes: int,
        traffic: Traffic,
        way: list[int],
    ) -> None:
        """`way`: numbers of links."""
        super().__init__(network, clock, chance, chunk_bytes)
        self.way = way
        self.bound: int | None = None  # the number of its own limit
        self._traffic = traffic
        self._bytes_per_s = 0.0  # while it is idle, and until its share is known
        self._to_leave_bytes = 0.0  # of the chunk that is leaving, at `_since`
        self._since = 0.0
        self.leaves_at = inf
        self._wakes_at = inf
        traffic.bound(self, network.rate_mbps)

    def change(self, network: Network) -> None:
        """From now on the pair's own limit is so, and from the next chunk on the rest."""
        self._traffic.bound(self, network.rate_mbps)
        super().change(network)

    @property
    def left(self) -> tuple[int, float]:
        size_bytes, busy_s = super().left
        if self._busy:  # a part of the chunk has left, too
            passed_s = self._clock.now - self._since
            size_bytes += round(self._leaving_bytes - self._to_leave_bytes + passed_s * self._bytes_per_s)
        return size_bytes, busy_s

    def pace(self, bytes_per_s: float) -> None:
        """This is the flow's share from now on."""
        if bytes_per_s == self._bytes_per_s:
            return
        passed_s = self._clock.now - self._since
        if passed_s > 0.0:
            self._to_leave_bytes = max(self._to_leave_bytes - passed_s * self._bytes_per_s, 0.0)
            self._since = self._clock.now
        self._bytes_per_s = bytes_per_s
        self._plan()

    def _passes_at_once(self) -> bool:
        return False

    def _transmit(self) -> None:
        was_busy = self._busy
        super()._transmit()
        if self._busy != was_busy:
            self._bytes_per_s = 0.0
            self._traffic.turned(self, self._busy)

    def _send(self, size_bytes: int) -> None:
        self._to_leave_bytes, self._since = size_bytes, self._clock.now
        self._plan()

    def _plan(self) -> None:
        """Wake when the chunk has left. One that leaves later than planned is looked at twice."""
        rate = self._bytes_per_s
        self.leaves_at = self._since + self._to_leave_bytes / rate if rate else inf
        if self.leaves_at < self._wakes_at:
            self._wakes_at = self.leaves_at
            self._clock.at(self.leaves_at, self._wake)

    def _wake(self) -> None:
        if self._clock.now != self._wakes_at:  # an earlier time was planned since
            return
        self._wakes_at = inf
        if self.leaves_at <= self._clock.now:
            self._sent()
        else:
            self._plan()


def _bytes_per_s(rate_mbps: float) -> float:
    return rate_mbps * _BYTES_PER_MBIT if rate_mbps else inf
