"""The tables of a run's overlays, as far as its description tells: drawn as trees, and how long a round takes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import count, zip_longest
from math import inf

from geomx.config import Run
from geomx.config.reading.document import Document
from geomx.errors import ConfigError, GeomxError
from geomx.node.topology import Topology
from geomx.overlay import cost, overlays
from geomx.overlay.contract import Links, Load, Route, Routes, with_names
from geomx.tree import TOP

SLICES = 48  # of each holder, where no model is known
SLICE_BYTES = 1 << 20
BYTES_PER_MBIT = 125_000.0
UNKNOWN_MBPS = 100.0  # of a link that is not described: all are taken for alike


def links_of(run: Run, top: str = TOP, hub_mbps: float = 0.0) -> tuple[list[str], Links]:
    """The members and holders of a tier by name, and the links between them as described.

    A member's emulated link bounds all that it sends, and all that it receives. `hub_mbps`: the same of each holder; 0:
    that has no bound.
    """
    ports = count(1)
    topology = Topology.of(run.with_addresses_beside(lambda _: f"127.0.0.1:{next(ports)}"))
    members = list(run.tree.children(top))
    nodes = [*members, *(run.shard_names if top == TOP else (top,))]
    described = {name: _link_of(run, name) for name in members}
    rates = [_rate(mbps) for mbps, _ in described.values()]
    hub = _rate(hub_mbps) if hub_mbps else inf
    bounds = (*rates, *(hub for _ in nodes[len(members) :]))
    most = max(rates)

    def rate(one: str, other: str) -> float:
        return most if one != other and topology.may_send(one, other) else 0.0

    delays = {name: delay_ms for name, (_, delay_ms) in described.items()}
    trips = tuple(
        tuple(2e-3 * (delays.get(one, 0.0) + delays.get(other, 0.0)) for other in nodes) for one in nodes
    )
    matrix = tuple(tuple(rate(one, other) for other in nodes) for one in nodes)
    return nodes, Links(len(members), len(nodes) - len(members), matrix, bounds, bounds, trips)


def loads_of(links: Links, up_bytes: float, down_bytes: float) -> list[Load]:
    """A model of so many bytes, as encoded, in equal slices."""
    count = SLICES * links.holders
    up, down = max(1, round(up_bytes / count)), max(1, round(down_bytes / count))
    return [Load(place % links.holders, up, down) for place in range(count)]


def drawing(run: Run, hub_mbps: float = 0.0) -> str:
    """The tables of all tiers that have an overlay, as text; of tiers that look alike, the first.

    `hub_mbps`: see `links_of`.
    """
    parts = list[str]()
    tops = [TOP] if run.run.overlay else []
    tops += run.servers[:1] if run.lan.overlay else []
    for top in tops:
        nodes, links = links_of(run, top, hub_mbps if top == TOP else 0.0)
        loads = loads_of(links, links.holders * SLICES * SLICE_BYTES, links.holders * SLICES * SLICE_BYTES)
        spec = run.overlays[top]
        try:
            routes = overlays.make(spec).plan(links, loads, 1)
        except ConfigError as error:
            faults = [replace(fault, found=with_names(fault.found, nodes)) for fault in error.faults]
            raise ConfigError(f"overlay `{spec}`", faults) from error
        where = "between parties" if top == TOP else f"inside {top}, and each party like it"
        parts.append("\n".join([f"{spec}, {where}:", *_drawn(nodes, routes, spec)]))
    return "\n\n".join(parts) or "no overlay: everybody sends to the global servers"


def compared(run: Run, up_bytes: float, down_bytes: float, hub_mbps: float) -> dict[str, float]:
    """The seconds that a round's bytes take by each overlay, between parties; what cannot be is left out."""
    if not run.run.overlay:  # whoever compares has none yet: all can be dialled, as by default
        data = run.as_dict()
        data["run"]["overlay"] = "star"
        run = run.of_document(Document(data), "the run with an overlay")
    _, links = links_of(run, TOP, hub_mbps)
    loads, found = loads_of(links, up_bytes, down_bytes), dict[str, float]()
    for spec in dict.fromkeys((*overlays.names, *filter(None, [run.run.overlay]))):
        try:
            routes = overlays.make(spec).plan(links, loads, 1)
        except GeomxError:
            continue
        found[spec] = cost.seconds(links, loads, routes)
    return found


def _link_of(run: Run, name: str) -> tuple[float, float]:
    """Mbit/s and one-way ms."""
    link = run.lan.link if run.tree.is_worker(name) else run.link_of(name)
    return (0.0, 0.0) if link is None else (link.rate_mbps, link.delay_ms)


def _rate(mbps: float) -> float:
    return (mbps or UNKNOWN_MBPS) * BYTES_PER_MBIT


def _drawn(nodes: Sequence[str], routes: Routes, spec: str) -> list[str]:
    """Each way, with its share of the slices."""
    if all(route.depth == 2 for route in routes.routes):
        why = "" if spec == "star" else ": no table is faster by the links that are described"
        return [f"  everybody sends to the server above{why}"]
    lines = list[str]()
    for number, route in enumerate(routes.routes):
        share = routes.of.count(number) / len(routes.of)
        lines += [f"way {number + 1} of {len(routes.routes)}, {share:.0%} of the bytes"]
        up, down = _tree(nodes, route, route.senders), _tree(nodes, route, route.receivers)
        width = max(map(len, ("sums", *up))) + 4
        lines += [f"  {'sums':{width}}updates"]
        lines += [f"  {one:{width}}{other}".rstrip() for one, other in zip_longest(up, down, fillvalue="")]
    return lines


def _tree(nodes: Sequence[str], route: Route, children: Mapping[int, Sequence[int]]) -> list[str]:
    def below(node: int) -> list[str]:
        lines, own = list[str](), children.get(node, ())
        for place, child in enumerate(own):
            branch, stem = ("└── ", "    ") if place == len(own) - 1 else ("├── ", "│   ")
            lines += [f"{branch}{nodes[child]}", *(stem + line for line in below(child))]
        return lines

    return [nodes[route.holder], *below(route.holder)]
