"""All links of a network and its script, as one machine without I/O: packets in, packets out when they are due."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from math import inf
from random import Random
from typing import Any

from lab.describe import Network, Pair, changed_by_hand
from lab.errors import LabError
from lab.headers import fragmentation_needed, may_be_answered, with_mss_within
from lab.link import Conditions, Counters, Link
from lab.nat import Nat
from lab.packets import Packet
from lab.script import Script, Subject


class Switch:
    """Knows which link a packet takes and which link needs attention next. Times are seconds on one clock."""

    def __init__(self, network: Network) -> None:
        self._names = [site.name for site in network.sites]
        self._base = dict(network.links)  # what holds where no event does
        self._script = Script(network.events, self._names, network.rebinds)
        self._links = {
            pair: Link(conditions, Random(f"{network.seed} {pair[0]} {pair[1]}"))
            for pair, conditions in network.links.items()
        }
        first = network.routes
        self._ways = [
            [self._links.get((a, first.get((a, b), b))) for b in self._names] for a in self._names
        ]  # the first link of each way
        self._routed = bool(first)
        self._agenda: list[tuple[float, int, Link, int]] = []  # at most one entry a link, except after a cut
        self._planned: dict[int, float] = {}
        self._targets = {id(link): self._names.index(pair[1]) for pair, link in self._links.items()}
        self._nats = [Nat(number) if site.nat else None for number, site in enumerate(network.sites, start=1)]
        self._coming_mtus: dict[Pair, int] = {}  # the least of those that events bring
        for event in network.events:
            if mtu := event.mtu:
                for pair in event.pairs(self._names):
                    self._coming_mtus[pair] = min(self._coming_mtus.get(pair, mtu), mtu)
        self._clamps: dict[int, int] = {}  # the MTU to which SYNs are held, by the link that they are on
        self._clamp(self._links)
        self.strays = 0  # packets to nowhere: not IPv4, or to an address that no other site has

    def arrive(self, source: int, data: bytes, now: float) -> None:
        """A packet leaves site number `source` (from 0)."""
        try:
            packet = Packet(data)
        except ValueError:
            self.strays += 1
            return
        target = packet.target - 1
        link = self._first(source, target)
        if link is None:
            self.strays += 1
            return
        if self._rewriting:
            rewritten = self._rewritten(source, link, packet.data)
            if rewritten is None:
                return
            packet.data = rewritten
        if link.arrive(packet, now):
            self._tell_too_large(packet, self._ways[target][source], link.conditions.mtu, now)
        self._plan(link)

    def _first(self, here: int, there: int) -> Link | None:
        """The link on which packets leave one site for another; None where there is no such site."""
        return self._ways[here][there] if 0 <= there < len(self._names) else None

    def _pass_on(self, here: int, data: bytes, now: float) -> bool:
        """Put a packet that has come to site number `here` on its next link; False where it is at its end."""
        packet = Packet(data)
        link = self._first(here, packet.target - 1)
        if link is None:
            return False
        if link.arrive(packet, now):
            self._tell_too_large(packet, self._first(here, packet.source - 1), link.conditions.mtu, now)
        self._plan(link)
        return True

    def _rewritten(self, source: int, link: Link, data: bytes) -> bytes | None:
        """What a site's edge makes of a packet that leaves; None where it does not let it."""
        if clamp := self._clamps.get(id(link)):
            data = with_mss_within(data, clamp)
        nat = self._nats[source]
        return data if nat is None else nat.outward(data)

    def _tell_too_large(self, packet: Packet, back: Link | None, mtu: int, now: float) -> None:
        """The sender of a packet hears, as soon as the way back allows, what would have passed."""
        if back is not None and may_be_answered(packet.data):
            back.arrive(Packet(fragmentation_needed(packet.data, mtu)), now)
            self._plan(back)

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
            if self._routed:
                packets = [each for each in packets if not self._pass_on(target, each, now)]
            if nat := self._nats[target]:
                packets = [each for each in map(nat.inward, packets) if each is not None]
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

    def rebind(self, site: str) -> None:
        """The NAT of a site forgets its mappings of UDP. LabError where it has none."""
        nat = self._nats[self._names.index(site)] if site in self._names else None
        if nat is None:
            behind = [name for name, each in zip(self._names, self._nats, strict=True) if each]
            known = f"those are {', '.join(behind)}" if behind else "none is: set `nat = true` for it"
            raise LabError(f"no site {site!r} is behind a NAT; {known}")
        nat.rebind()

    def _apply(self, subjects: Iterable[Subject], now: float) -> None:
        pairs = [subject for subject in subjects if not isinstance(subject, str)]
        for pair in pairs:
            link = self._links[pair]
            link.change(self._script.conditions(pair, self._base[pair]), now)
            self._plan(link)
        self._clamp(pairs)
        for subject in subjects:
            if isinstance(subject, str):
                self.rebind(subject)

    def _clamp(self, pairs: Iterable[Pair]) -> None:
        """A SYN says how large the segments of the other way may be, so it is held to the MTU of that.

        To those that events will bring, too: connections that were opened before live on.
        """
        for a, b in pairs:
            mtus = [
                mtu for mtu in (self._links[a, b].conditions.mtu, self._coming_mtus.get((a, b), 0)) if mtu
            ]
            back = id(self._links[b, a])
            if mtus:
                self._clamps[back] = min(mtus)
            else:
                self._clamps.pop(back, None)
        self._rewriting = bool(self._clamps) or any(self._nats)

    def state(self, now: float) -> dict[str, Any]:
        """The links, the NATs and the script's clock, as JSON can carry them.

        Of conditions and counters those that differ from an untouched link's, so that it is one message.
        """
        links = [
            {
                "from": a,
                "to": b,
                "conditions": _told(link.conditions, Conditions()),
                "counters": _told(link.counters, Counters()),
            }
            for (a, b), link in self._links.items()
        ]
        nats = {
            name: {"mappings": nat.mappings, "refused": nat.refused}
            for name, nat in zip(self._names, self._nats, strict=True)
            if nat
        }
        return {"links": links, "nats": nats, "strays": self.strays, "script_s": self._script.elapsed_s(now)}


def _told(values: Conditions | Counters, usual: Conditions | Counters) -> dict[str, Any]:
    return {key: value for key, value in asdict(values).items() if value != getattr(usual, key)}
