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

A pass is a read or a write of the whole model, at the rate that `a += b` has here; what the global server computes is
divided by the shards. Where the WAN is the longest stage and arithmetic is short, an exchange of n slices takes

    E = R + T + T/n      R: the WAN's round trip;  T: the time that its link is busy with all slices (`transports.py`)
"""

from __future__ import annotations

from collections.abc import Sequence

from geomx.config.tables import LinkTable
from geomx.predict.facts import CLIPPED_PASSES, STEPPED_PASSES, Codecs, Facts, Site
from geomx.predict.formulas import PassTimes, after, link_bytes, through, together
from geomx.predict.transports import EmulatedTcp, Transport

Streams = dict[str, PassTimes]  # by party
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
        slices, root_s = self._slices(part), self.root_s(len(sites), gradients)
        closed = together(self.up(sites, leaving, part=part, carrying=carrying).values())
        if gradients and self._facts.clips and not self._facts.on_workers:
            closed = PassTimes(
                closed.last, closed.last
            )  # no slice is applied before the norm of all is known
        closed = through(closed, part * root_s, slices)
        return {site.name: self._down(site, closed, part, slices) for site in sites}

    def up(
        self, sites: Sequence[Site], leaving: Streams, *, part: float = 1.0, carrying: bool = True
    ) -> Streams:
        """When contributions come to the global servers."""
        slices, carried = self._slices(part), part if carrying else 0.0
        return {site.name: self._up(site, leaving[site.name], carried, slices) for site in sites}

    def party(self, site: Site, leaving: PassTimes) -> PassTimes:
        """When a mean inside a party comes to its workers: dense numbers, to the local server and back."""
        size_bytes = self._facts.size_bytes
        stream = _carried(leaving, size_bytes, self.slices, site.lan)
        stream = through(stream, self._facts.passes_s(3 * site.workers + 2), self.slices)
        return _carried(stream, size_bytes, self.slices, site.lan)

    def root_s(self, parties: int, gradients: bool = False) -> float:
        """What a shard computes in an exchange of so many parties."""
        clips, on_workers = (gradients and given for given in (self._facts.clips, self._facts.on_workers))
        stepped = 0 if on_workers else STEPPED_PASSES + CLIPPED_PASSES * clips
        up, down, passes_s = self._codecs.wan_up, self._codecs.wan_down, self._facts.passes_s
        anchor_s = 0.0 if down.lossless else down.decode_s + passes_s(5)
        added_s = parties * up.decode_s + passes_s(3 * parties + stepped)
        return (added_s + down.encode_s + anchor_s) / self._facts.shards

    def _slices(self, part: float) -> int:
        return max(1, round(part * self.slices))

    def _up(self, site: Site, leaving: PassTimes, part: float, slices: int) -> PassTimes:
        codecs, passes_s = self._codecs, self._facts.passes_s
        added = 1 if self._alone else site.workers
        add_s = added * codecs.lan_up.decode_s + passes_s(3 * added)
        stream = through(leaving, part * (passes_s(2) + codecs.lan_up.encode_s), slices)
        stream = _carried(stream, part * codecs.lan_up.sent_bytes, slices, site.lan)
        stream = through(stream, part * (add_s + codecs.wan_up.encode_s), slices)
        sharing, transport = self._sharing(site), self._facts.wan_up
        return _carried(stream, part * codecs.wan_up.sent_bytes, slices, site.wan, sharing, transport)

    def _down(self, site: Site, closed: PassTimes, part: float, slices: int) -> PassTimes:
        codecs = self._codecs
        same = codecs.wan_down.lossless and codecs.wan_down.spec == codecs.lan_down.spec
        encode_s = 0.0 if codecs.passes else codecs.lan_down.encode_s
        anew_s = 0.0 if same else codecs.wan_down.decode_s + encode_s
        taken_s = codecs.lan_down.decode_s + self._facts.passes_s(2)
        sharing, transport = self._sharing(site), self._facts.wan_down
        stream = _carried(closed, part * codecs.wan_down.sent_bytes, slices, site.wan, sharing, transport)
        stream = through(stream, part * anew_s, slices)
        stream = _carried(stream, part * codecs.lan_down.sent_bytes, slices, site.lan)
        return through(stream, part * taken_s, slices)

    def _sharing(self, site: Site) -> int:
        return site.workers if self._alone else 1


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
