"""hivemind: all workers are peers that find each other by a hash table and average in one group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cells import Cell
from benchmarks.systems.base import ROOT, Desk, Node

SCRIPT = ROOT / "benchmarks" / "systems" / "hivemind" / "train.py"


class Hivemind:
    """Averages gradients each step, or weights every so many steps."""

    has_hub = False
    configs: Mapping[str, Mapping[str, Any]] = {
        "fp32": {"compression": "none", "every": 1},
        "fp16": {"compression": "fp16", "every": 1},
        "8-bit": {"compression": "8-bit", "every": 1},
        "fp32, every 10": {"compression": "none", "every": 10},
        "fp32, every 40": {"compression": "none", "every": 40},
    }

    def refuses(self, cell: Cell) -> str | None:
        return None

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        addresses = {site: desk.address(site) for site in desk.cell.sites}
        return desk.workers(SCRIPT), addresses


SYSTEM = Hivemind()
