"""The floor, measured: raw sockets that move the same bytes over the same links at the same time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cells import Cell
from benchmarks.systems.base import ROOT, Desk, Node

SCRIPT = ROOT / "benchmarks" / "systems" / "raw" / "train.py"


class Raw:
    """One stream a party, to the hub and back; whoever stands in the hub's own site sends nothing over the WAN."""

    has_hub = True
    configs: Mapping[str, Mapping[str, Any]] = {"sockets": {}}

    def refuses(self, cell: Cell) -> str | None:
        return None

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        cell = desk.cell
        argv = (str(desk.python), str(SCRIPT), str(desk.job), "hub")
        hub = Node("hub", cell.hub_site, argv, serves=True)
        first = [desk.worker(f"{site}/0", SCRIPT) for site in cell.sites]
        return [hub, *first], {"hub": desk.endpoint(cell.hub_site)}


SYSTEM = Raw()
