"""How long an exchange takes, from what leaves the workers to the answers there: its stages, in their order.

worker         gathers each slice and encodes it       2 passes over memory, the LAN's codec
LAN            carries it to the local server          bytes / rate, delay
local server   decodes, adds, encodes for the WAN      the codecs, 3 passes for each contribution
WAN            carries it to the global server         bytes / rate, delay
global server  decodes, adds, optimizes, encodes       the codecs, 3 passes for each party, an optimizer's
WAN            carries the answer to the local server  bytes / rate, delay
local server   decodes and encodes for the LAN         the codecs, where the same bytes do not serve
LAN            carries it to the worker                bytes / rate, delay
worker         decodes it, and copies it               the LAN's codec, 2 passes

Where a region's server is on the way, it decodes, adds and encodes what comes up, and passes on what comes down, each
behind one link more. A pass is a read or a write of the whole model, at the rate that `a += b` has here; what the
global server computes is divided by the shards. Where the WAN is the longest stage and arithmetic is short, an exchange
of n slices takes

    E = R + T + T/n      R: the WAN's round trip;  T: the time that its link is busy with all slices (`transports.py`)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from geomx.config.tables import LinkTable
from geomx.predict.facts import CLIPPED_PASSES, STEPPED_PASSES, Codecs, EdgeCodecs, Facts, Region, Site
from geomx.predict.formulas import PassTimes, after, link_bytes, through, together
from geomx.predict.transports import EmulatedTcp, Transport
from geomx.tree import TOP

Streams = dict[str, PassTimes]  # by party, or by what hangs on a server
TCP = EmulatedTcp()


class Exchanges:
    """See the module's text. `alone`: each worker has its own; those of a party begin at once, and share its link."""

    def __init__(self, facts: Facts, codecs: Codecs, alone: bool) -> None:
        self._facts = facts
        self._codecs = codecs
        self._alone = alone

    @property
    def slices(self) -> int:
        """Of the whole model."""
        return self._codecs.slices

    def run(
        self,
        sites: Sequence[Site],
        leaving: Streams,
        *,
        part: float = 1.0,
        carrying: bool = True,
        gradients: bool = False,
    ) -> Streams:
        """When answers of the global servers come to the workers, all of whom they wait for.

        `part`: which share of the model. `carrying`: False for pushes that only ask for weights. `gradients`: what
        leaves are gradients, which are clipped where that is wanted.
        """
        slices, come = self._slices(part), self.up(sites, leaving, part=part, carrying=carrying)
        closed, root_s = together(come.values()), self.root_s(len(come), gradients)
        if gradients and self._facts.clips and not self._facts.on_workers:
            closed = PassTimes(
                closed.last, closed.last
            )  # no slice is applied before the norm of all is known
        closed = through(closed, part * root_s, slices)
        return self._down_from(TOP, closed, sites, part, slices)

    def up(
        self, sites: Sequence[Site], leaving: Streams, *, part: float = 1.0, carrying: bool = True
    ) -> Streams:
        """When contributions come to the global servers, by what hangs on these."""
        return self._into(TOP, sites, leaving, part if carrying else 0.0, self._slices(part))

    def inside(self, sites: Sequence[Site], leaving: Streams, tier: int) -> Streams:
        """When a mean of a party or region, so many tiers up, comes to its workers: dense numbers, there and back."""
        links = {region.name: region.wan for region in self._facts.regions}
        ways: dict[str, list[LinkTable]] = {}  # of each party, from its workers up
        for site in sites:
            above = self._facts.cohorts(site, tier)
            ways[site.name] = [site.lan, *[site.wan, *(links[name] for name in above[1:])][: len(above) - 1]]
        come = []
        for site in sites:
            stream = self._dense(leaving[site.name], ways[site.name][:1])
            stream = through(stream, self._facts.passes_s(3 * site.workers + 2), self.slices)
            come.append(self._dense(stream, ways[site.name][1:]))
        added = through(
            together(come), self._facts.passes_s(3 * len(sites) + 2) if len(sites) > 1 else 0.0, self.slices
        )
        return {name: self._dense(added, way[::-1]) for name, way in ways.items()}

    def _dense(self, stream: PassTimes, links: Sequence[LinkTable]) -> PassTimes:
        """Behind these links, as dense numbers."""
        for link in links:
            stream = _carried(stream, self._facts.size_bytes, self.slices, link)
        return stream

    def root_s(self, children: int, gradients: bool = False) -> float:
        """What a shard computes in an exchange with so many contributions."""
        clips, on_workers = (gradients and given for given in (self._facts.clips, self._facts.on_workers))
        stepped = 0 if on_workers else STEPPED_PASSES + CLIPPED_PASSES * clips
        up, down, passes_s = self._codecs.wan.up, self._codecs.wan.down, self._facts.passes_s
        anchor_s = 0.0 if down.lossless else down.decode_s + passes_s(5)
        added_s = children * up.decode_s + passes_s(3 * children + stepped)
        return (added_s + down.encode_s + anchor_s) / self._facts.shards

    def _slices(self, part: float) -> int:
        return max(1, round(part * self.slices))

    def _into(
        self, parent: str, sites: Sequence[Site], leaving: Streams, part: float, slices: int
    ) -> Streams:
        """When contributions come to a region's server, or the global ones, by what hangs on it."""
        come = {
            site.name: self._up(site, leaving[site.name], part, slices)
            for site in sites
            if site.parent == parent
        }
        for region in self._facts.regions:
            below = self._into(region.name, sites, leaving, part, slices) if region.parent == parent else {}
            if below:
                stream, codec = together(below.values()), self._codecs.below(region.name).up
                add_s = len(below) * codec.decode_s + self._facts.passes_s(3 * len(below))
                come[region.name] = self._over(stream, part, slices, region, add_s, self._sharing(sites))
        return come

    def _up(self, site: Site, leaving: PassTimes, part: float, slices: int) -> PassTimes:
        lan, passes_s = self._codecs.lan, self._facts.passes_s
        added = 1 if self._alone else site.workers
        add_s = added * lan.up.decode_s + passes_s(3 * added)
        stream = through(leaving, part * (passes_s(2) + lan.up.encode_s), slices)
        stream = _carried(stream, part * lan.up.sent_bytes, slices, site.lan)
        return self._over(stream, part, slices, site, add_s, self._sharing((site,)))

    def _over(
        self, stream: PassTimes, part: float, slices: int, server: Site | Region, add_s: float, sharing: int
    ) -> PassTimes:
        """When what a server has added comes to its parent."""
        codec = self._codecs.below(server.parent).up
        transport = self._facts.wan_up if server.parent == TOP else TCP
        stream = through(stream, part * (add_s + codec.encode_s), slices)
        return _carried(stream, part * codec.sent_bytes, slices, server.wan, sharing, transport)

    def _down_from(
        self, parent: str, closed: PassTimes, sites: Sequence[Site], part: float, slices: int
    ) -> Streams:
        """When an answer comes to the workers, from when a region's server, or the global ones, have it."""
        come: Streams = {}
        for site in (site for site in sites if site.parent == parent):
            lan = self._codecs.lan
            lan = replace(lan, down=self._codecs.below(parent).down) if lan.passes else lan
            stream = self._down(site, closed, part, slices, lan, self._sharing((site,)))
            stream = _carried(stream, part * lan.down.sent_bytes, slices, site.lan)
            come[site.name] = through(stream, part * (lan.down.decode_s + self._facts.passes_s(2)), slices)
        for region in (region for region in self._facts.regions if region.parent == parent):
            edge = self._codecs.below(region.name)
            stream = self._down(region, closed, part, slices, edge, self._sharing(sites))
            come |= self._down_from(region.name, stream, sites, part, slices)
        return come

    def _down(
        self,
        server: Site | Region,
        closed: PassTimes,
        part: float,
        slices: int,
        below: EdgeCodecs,
        sharing: int,
    ) -> PassTimes:
        """When an answer is ready to leave a server downward. `below`: its edges down."""
        above = self._codecs.below(server.parent).down
        same = above.lossless and above.spec == below.down.spec
        anew_s = 0.0 if same else above.decode_s + (0.0 if below.passes else below.down.encode_s)
        transport = self._facts.wan_down if server.parent == TOP else TCP
        stream = _carried(closed, part * above.sent_bytes, slices, server.wan, sharing, transport)
        return through(stream, part * anew_s, slices)

    def _sharing(self, sites: Sequence[Site]) -> int:
        return sum(site.workers for site in sites) if self._alone else 1


def _carried(
    stream: PassTimes,
    payload_bytes: float,
    slices: int,
    link: LinkTable,
    sharing: int = 1,
    transport: Transport = TCP,
) -> PassTimes:
    """Behind a link, which takes as many times as long as others send as much at the same time."""
    size_bytes = sharing * link_bytes(payload_bytes, slices)
    busy_s, travel_s = transport.busy_s(size_bytes, link), transport.travel_s(size_bytes, link)
    return after(through(stream, busy_s, slices), travel_s)
