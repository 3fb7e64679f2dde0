"""All links of a network and its script, as one machine without I/O: packets in, packets out when they are due."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from math import inf
from random import Random
from typing import Any

from lab.describe import Network, Pair, changed_by_hand
from lab.link import Link
from lab.packets import Packet
from lab.script import Script


class Switch:
    """Knows which link a packet takes and which link needs attention next. Times are seconds on one clock."""

    def __init__(self, network: Network) -> None:
        self._names = [site.name for site in network.sites]
        self._base = dict(network.links)  # what holds where no event does
        self._script = Script(network.events, self._names)
        self._links = {
            pair: Link(conditions, Random(f"{network.seed} {pair[0]} {pair[1]}"))
            for pair, conditions in network.links.items()
        }
        self._ways = [[self._links.get((a, b)) for b in self._names] for a in self._names]
        self._agenda: list[tuple[float, int, Link, int]] = []  # at most one entry a link, except after a cut
        self._planned: dict[int, float] = {}
        self._targets = {id(link): self._names.index(pair[1]) for pair, link in self._links.items()}
        self.strays = 0  # packets to nowhere: not IPv4, or to an address that no other site has

    def arrive(self, source: int, data: bytes, now: float) -> None:
        """A packet leaves site number `source` (from 0)."""
        try:
            packet = Packet(data)
        except ValueError:
            self.strays += 1
            return
        target = packet.target - 1
        link = self._ways[source][target] if 0 <= target < len(self._names) else None
        if link is None:
            self.strays += 1
            return
        link.arrive(packet, now)
        self._plan(link)

    def _plan(self, link: Link) -> None:
        at = link.next_at()
        if at < self._planned.get(id(link), inf):
            self._planned[id(link)] = at
            heapq.heappush(self._agenda, (at, id(link), link, self._targets[id(link)]))

    def next_at(self) -> float:
        """When something is due; inf where nothing is on its way."""
        return min(self._agenda[0][0] if self._agenda else inf, self._script.next_at())

    def due(self, now: float) -> Iterator[tuple[int, float, list[bytes]]]:
        """What has arrived by `now`: the site's number (from 0), since when it is due, and the packets in order."""
        if self._script.next_at() <= now:
            self._apply(self._script.due(now), now)
        while self._agenda and self._agenda[0][0] <= now:
            at, key, link, target = heapq.heappop(self._agenda)
            if self._planned.get(key) == at:
                del self._planned[key]
            packets = link.due(now)
            self._plan(link)
            if packets:
                yield target, at, packets

    def begin(self, now: float) -> None:
        """The script begins, or begins again, at `now`."""
        self._apply(self._script.begin(now), now)

    def change(self, request: Mapping[str, Any], now: float) -> None:
        """Change what holds where no event does. `ConfigError` names what is not allowed."""
        new = changed_by_hand(self._base, request)
        self._base.update(new)
        self._apply(set(new), now)

    def _apply(self, pairs: set[Pair], now: float) -> None:
        for pair in pairs:
            link = self._links[pair]
            link.change(self._script.conditions(pair, self._base[pair]), now)
            self._plan(link)

    def state(self, now: float) -> dict[str, Any]:
        """The links with their conditions and counters, and the script's clock, as JSON can carry them."""
        links = [
            {"from": a, "to": b, "conditions": asdict(link.conditions), "counters": asdict(link.counters)}
            for (a, b), link in self._links.items()
        ]
        return {"links": links, "strays": self.strays, "script_s": self._script.elapsed_s(now)}
