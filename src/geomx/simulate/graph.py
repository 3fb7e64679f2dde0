"""A graph of sites and links, for nodes that share a network in the simulator: a description, ways, fair shares.

Traffic takes the way with the fewest hops. A *flow* is what one node has to send to another. All flows that are busy
share the links by progressive filling (D. Bertsekas and R. Gallager, Data Networks, 1992, 6.5.2): all rates grow
together until a link is full; its flows keep the rate that they have, and the others grow on. `traffic.py` does so on a
simulator's clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf
from typing import NamedTuple, Self

from geomx.errors import ConfigError, Fault
from geomx.simulate.network import Network

Direction = tuple[str, str]  # from one site to another
EXCHANGE = "exchange"  # the site in the middle of a star
ANY_RATE = Network()


class GraphLink(NamedTuple):
    """One direction between two sites that are neighbours."""

    rate_mbps: float  # 10^6 bits a second; 0: as fast as it goes
    delay_ms: float = 0.0


@dataclass(frozen=True)
class Graph:
    """A description; each simulator shares the links out by itself. Raises `ConfigError` for unknown sites.

    Args:
        links: by direction, as (Mbit/s, ms). `both_ways` adds the directions back.
        nodes: the site at which each node stands. Nodes that are not here keep a link for each pair.
        local: the link of each pair of nodes at one site.
    """

    links: Mapping[Direction, GraphLink | tuple[float, float]]
    nodes: Mapping[str, str]
    local: Network = ANY_RATE
    _neighbours: dict[str, list[str]] = field(init=False, repr=False, default_factory=dict)

    def __post_init__(self) -> None:
        for one, other in self.links:
            self._neighbours.setdefault(one, []).append(other)
            self._neighbours.setdefault(other, [])
        known = ", ".join(self._neighbours)
        faults = [
            Fault(f"nodes.{node}", f'"{site}"', f"a site that has a link: {known}")
            for node, site in self.nodes.items()
            if site not in self._neighbours
        ]
        if faults:
            raise ConfigError("graph", faults)

    @classmethod
    def of_access(
        cls,
        access: Mapping[str, tuple[float, float, float]],
        nodes: Mapping[str, str],
        local: Network = ANY_RATE,
    ) -> Self:
        """A star: each site has an access link to an exchange that is never full itself.

        Args:
            access: by site, (Mbit/s to the exchange, Mbit/s from it, ms each way).
            nodes, local: see the class.
        """
        links = dict[Direction, GraphLink]()
        for site, (up_mbps, down_mbps, delay_ms) in access.items():
            links[site, EXCHANGE] = GraphLink(up_mbps, delay_ms)
            links[EXCHANGE, site] = GraphLink(down_mbps, delay_ms)
        return cls(links, nodes, local)

    def way(self, source: str, target: str) -> list[Direction]:
        """The links from one site to another: the fewest, then the least delay, then the first by the sites' names.

        Raises:
            ConfigError: There is no way.
        """
        ways: list[tuple[int, float, tuple[str, ...]]] = [(0, 0.0, (source,))]
        been = set[str]()
        while ways:
            hops, delay_ms, sites = heapq.heappop(ways)
            here = sites[-1]
            if here == target:
                return list(pairwise(sites))
            if here in been:
                continue
            been.add(here)
            for site in self._neighbours[here]:
                if site not in been:
                    link_ms = self.links[here, site][1]
                    heapq.heappush(ways, (hops + 1, delay_ms + link_ms, (*sites, site)))
        fault = Fault("links", f"no way from {source} to {target}", "links that lead there")
        raise ConfigError("graph", [fault])

    def holds(self, source: str, target: str) -> bool:
        """Whether both nodes stand at sites."""
        return source in self.nodes and target in self.nodes

    def network(self, source: str, target: str) -> Network:
        """What holds for two nodes of the graph where nothing else is said of them: the delay of their way."""
        here, there = self.nodes[source], self.nodes[target]
        if here == there:
            return self.local
        return Network(delay_ms=sum(self.links[direction][1] for direction in self.way(here, there)))


def both_ways(
    links: Mapping[Direction, GraphLink | tuple[float, float]],
) -> dict[Direction, GraphLink | tuple[float, float]]:
    """The same links, and the directions back where nothing is said of them."""
    return {(other, one): link for (one, other), link in links.items()} | dict(links)


def fair_shares(rates: Sequence[float], ways: Sequence[Iterable[int]]) -> list[float]:
    """Max-min fair shares, in the unit of `rates`.

    Args:
        rates: of each link; `inf` for one that is never full.
        ways: for each flow, the numbers of the links that it takes.

    Returns:
        The share of each flow; `inf` where no link bounds it.
    """
    flows: dict[int, list[int]] = {}  # on each link
    for number, way in enumerate(ways):
        for link in way:
            flows.setdefault(link, []).append(number)
    room = {link: rates[link] for link in flows}
    growing = {link: len(each) for link, each in flows.items()}
    shares = [inf] * len(ways)
    while growing:
        share, full = inf, -1
        for link, many in growing.items():
            level = room[link] / many
            if level < share:
                share, full = level, link
        for number in flows.get(full, ()):
            if shares[number] == inf:
                shares[number] = share
                for link in ways[number]:
                    room[link] -= share
                    growing[link] -= 1
        growing = {link: many for link, many in growing.items() if many and full >= 0}
    return shares
