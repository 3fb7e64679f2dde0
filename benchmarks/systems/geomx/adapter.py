"""geomx, started as users start it on several machines: `geomx serve` for servers, `geomx worker` for workers."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cells import Cell
from benchmarks.grounds import ways_by_site, ways_of
from benchmarks.systems.base import ROOT, Desk, Node

SCRIPT = ROOT / "benchmarks" / "systems" / "geomx" / "train.py"
UP, DOWN = "wan.codec_up", "wan.codec_down"
INT4 = {UP: "int4", DOWN: "int4"}
SPARSE = {UP: "bisparse ratio=0.01 momentum=0.9", DOWN: "bisparse ratio=0.01", "optimizer": "SGD"}
SPARSE_INT2 = {**SPARSE, UP: f"{SPARSE[UP]} values=int2", DOWN: f"{SPARSE[DOWN]} values=int2"}
HFA_TEN = {"sync.policy": "hfa k1=10 k2=1", "every": 10}
CUBIC = {"wan.congestion": "cubic"}


class Geomx:
    """The hierarchical parameter server of this repository.

    Options with a dot are keys of the run's description. `pace`: of the link's rate. `in_process`: geomx imitates the
    link itself.
    """

    has_hub = True
    configs: Mapping[str, Mapping[str, Any]] = {
        "dense": {},
        "dense, overlap": {"worker.overlap": "forward"},
        "dense, 2 shards": {"run.shards": 2},
        "dense, paced": {"pace": 0.97},
        "dense, paced, cubic": {"pace": 0.97, **CUBIC},
        "dense, link in process": {"in_process": True},
        "fp16": {UP: "fp16", DOWN: "fp16"},
        "int4": INT4,
        "Bi-Sparse 1 % up, int4 down": {UP: "bisparse ratio=0.01 values=int4", DOWN: "int4"},
        "Bi-Sparse 1 %": SPARSE,
        "Bi-Sparse 1 %, cubic": {**SPARSE, **CUBIC},
        "Bi-Sparse 1 %, int2": SPARSE_INT2,
        "Bi-Sparse 1 %, int2, cubic": {**SPARSE_INT2, **CUBIC},
        "HFA, every 10": HFA_TEN,
        "HFA, every 10, int4": {**HFA_TEN, **INT4},
        "HFA, 20 × 2, int4": {"sync.policy": "hfa k1=20 k2=2", **INT4, "every": 40},
        "DiLoCo, every 10": {"sync.policy": "diloco every=10", "every": 10},
        "ESync, int4": {"sync.policy": "esync least=10", **INT4, "every": 10},
    }

    def refuses(self, cell: Cell) -> str | None:
        return None

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        cell, options = desk.cell, desk.options
        shards = [desk.endpoint(cell.hub_site) for _ in range(options.get("run.shards", 1))]
        local = {site: desk.endpoint(site) for site in cell.sites}
        description = desk.folder / "bench.toml"
        description.write_text(_toml(cell, options, shards, local))
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


def _toml(cell: Cell, options: Mapping[str, Any], shards: Sequence[str], local: Mapping[str, str]) -> str:
    """The description of the run. Batches are of one size, so every worker counts the same."""
    keys: dict[str, Any] = {
        "sync.weight": "equal",
        "worker.threads": 1,
        "global.addresses": shards,
        "global.listen": [f"0.0.0.0:{address.rpartition(':')[2]}" for address in shards],
        **{key: value for key, value in options.items() if "." in key},
    }
    ways = ways_by_site(cell)
    if options.get("in_process"):
        link = ways_of(cell)[0]
        keys |= {"wan.link.rate_mbps": link.up_mbps, "wan.link.delay_ms": 500 * link.round_trip_s}
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    for site in cell.sites:
        lines += ["[[party]]", f'name = "{site}"', f"workers = {cell.workers}", f'address = "{local[site]}"']
        if "pace" in options and site in ways:
            lines.append(f"pace_mbps = {options['pace'] * min(ways[site].up_mbps, ways[site].down_mbps):g}")
    return "\n".join(lines) + "\n"


SYSTEM = Geomx()
