"""geomx's nodes on the virtual clock, with tensors that have shapes but no values: a thousand parties in a process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cells import Cell
from benchmarks.grounds import ways_of
from benchmarks.systems.base import ROOT, Desk, Node

SCRIPT = ROOT / "benchmarks" / "systems" / "simulated" / "train.py"


class Simulated:
    """One process is the whole run; what it writes down are the virtual clock's times."""

    has_hub = True
    configs: Mapping[str, Mapping[str, Any]] = {"dense": {}}

    def refuses(self, cell: Cell) -> str | None:
        if cell.where != "simulator" or cell.workload.name != "synthetic":
            return "only synthetic gradients can be simulated, and only in the simulator"
        return None

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        way = ways_of(desk.cell)[0]
        addresses = {"rate_mbps": f"{way.up_mbps}", "delay_ms": f"{500 * way.round_trip_s}"}
        return [desk.worker(desk.cell.worker_names[0], SCRIPT)], addresses


SYSTEM = Simulated()
