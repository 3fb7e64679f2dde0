"""geomx, started as users start it on several machines: `geomx serve` for servers, `geomx worker` for workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cells import Cell
from benchmarks.floors import Path as Way
from benchmarks.grounds import ways_by_site, ways_of
from benchmarks.systems.base import ROOT, Desk, Node

SCRIPT = ROOT / "benchmarks" / "systems" / "geomx" / "train.py"
SPARSE = {"up": "bisparse ratio=0.01 momentum=0.9", "down": "bisparse ratio=0.01", "optimizer": "SGD"}
SPARSE_INT2 = {**SPARSE, "up": f"{SPARSE['up']} values=int2", "down": f"{SPARSE['down']} values=int2"}


class Geomx:
    """The hierarchical parameter server of this repository."""

    has_hub = True
    configs: Mapping[str, Mapping[str, Any]] = {
        "dense": {},
        "dense, overlap": {"overlap": "forward"},
        "dense, 2 shards": {"shards": 2},
        "dense, paced": {"pace": 0.97},
        "dense, paced, cubic": {"pace": 0.97, "congestion": "cubic"},
        "dense, link in process": {"in_process": True},
        "fp16": {"up": "fp16", "down": "fp16"},
        "int4": {"up": "int4", "down": "int4"},
        "Bi-Sparse 1 % up, int4 down": {"up": "bisparse ratio=0.01 values=int4", "down": "int4"},
        "Bi-Sparse 1 %": SPARSE,
        "Bi-Sparse 1 %, cubic": {**SPARSE, "congestion": "cubic"},
        "Bi-Sparse 1 %, int2": SPARSE_INT2,
        "Bi-Sparse 1 %, int2, cubic": {**SPARSE_INT2, "congestion": "cubic"},
        "HFA, every 10": {"policy": "hfa k1=10 k2=1", "every": 10},
        "HFA, every 10, int4": {"policy": "hfa k1=10 k2=1", "every": 10, "up": "int4", "down": "int4"},
        "HFA, 20 × 2, int4": {"policy": "hfa k1=20 k2=2", "every": 40, "up": "int4", "down": "int4"},
        "DiLoCo, every 10": {"policy": "diloco every=10", "every": 10},
        "ESync, int4": {"policy": "esync least=10", "every": 10, "up": "int4", "down": "int4"},
    }

    def refuses(self, cell: Cell) -> str | None:
        return None

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        cell, options = desk.cell, desk.options
        shards = [desk.endpoint(cell.hub_site) for _ in range(options.get("shards", 1))]
        local = {site: desk.endpoint(site) for site in cell.sites}
        description = desk.folder / "bench.toml"
        link = ways_of(cell)[0] if options.get("in_process") else None
        description.write_text(_toml(cell, options, shards, local, link))
        geomx = (str(desk.python), "-m", "geomx")

        def serve(name: str, site: str, *role: str) -> Node:
            return Node(name, site, (*geomx, "serve", str(description), *role), serves=True)

        nodes = [
            serve(f"global/{shard}", cell.hub_site, "--role", "global", "--shard", str(shard))
            for shard in range(len(shards))
        ]
        nodes += [serve(site, site, "--role", "local", "--party", site) for site in cell.sites]
        for node in desk.workers(SCRIPT):
            party, _, rank = node.name.partition("/")
            place = ("worker", str(description), "--party", party, "--rank", rank, "--")
            nodes.append(Node(node.name, node.site, (*geomx, *place, *node.argv)))
        return nodes, {}


def _toml(
    cell: Cell, options: Mapping[str, Any], shards: Sequence[str], local: Mapping[str, str], link: Way | None
) -> str:
    """The description of the run. Batches are of one size, so every worker counts the same."""
    listen = [f"0.0.0.0:{address.rpartition(':')[2]}" for address in shards]
    lines = [
        "[run]",
        f"shards = {len(shards)}",
        "[sync]",
        'weight = "equal"',
        f'policy = "{options.get("policy", "fsa")}"',
        "[worker]",
        "threads = 1",
        f'overlap = "{options.get("overlap", "none")}"',
        "[global]",
        f"addresses = {_texts(shards)}",
        f"listen = {_texts(listen)}",
    ]
    lines += ["[wan]", *(f'codec_{way} = "{options[way]}"' for way in ("up", "down") if way in options)]
    if "congestion" in options:
        lines.append(f'congestion = "{options["congestion"]}"')
    if link is not None:
        lines.append(f"link = {{ rate_mbps = {link.up_mbps:g}, delay_ms = {500 * link.round_trip_s:g} }}")
    ways = ways_by_site(cell)
    for site in cell.sites:
        lines += ["[[party]]", f'name = "{site}"', f"workers = {cell.workers}", f'address = "{local[site]}"']
        if "pace" in options and site in ways:
            lines.append(f"pace_mbps = {options['pace'] * min(ways[site].up_mbps, ways[site].down_mbps):g}")
    return "\n".join(lines) + "\n"


def _texts(values: Sequence[str]) -> str:
    return "[" + ", ".join(f'"{value}"' for value in values) + "]"


SYSTEM = Geomx()
