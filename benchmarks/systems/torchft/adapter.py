"""torchft: every worker is a replica group of its own; the lighthouse that they vote at stands in party A's site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cells import Cell
from benchmarks.systems.base import ROOT, Desk, Node

SCRIPT = ROOT / "benchmarks" / "systems" / "torchft" / "train.py"


class Torchft:
    """DDP with a quorum each step, and DiLoCo with one every so many."""

    has_hub = False
    configs: Mapping[str, Mapping[str, Any]] = {
        "DDP": {"every": 1},
        "DiLoCo, every 10": {"every": 10},
        "DiLoCo, every 40": {"every": 40},
    }

    def refuses(self, cell: Cell) -> str | None:
        return None

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        cell, site = desk.cell, desk.cell.sites[0]
        lighthouse = desk.endpoint(site)
        everyone = str(cell.parties * cell.workers)
        command = (str(desk.python.parent / "torchft_lighthouse"), "--min_replicas", everyone)
        serve = Node("lighthouse", site, (*command, "--bind", lighthouse), serves=True)
        addresses = {each: desk.address(each) for each in cell.sites}
        return [serve, *desk.workers(SCRIPT)], {**addresses, "lighthouse": lighthouse}


SYSTEM = Torchft()
