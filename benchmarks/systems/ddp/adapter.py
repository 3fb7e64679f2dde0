"""PyTorch's DistributedDataParallel over gloo: plain, with its hooks, and hierarchical as its groups allow it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cells import Cell
from benchmarks.systems.base import ROOT, Desk, Node

SCRIPT = ROOT / "benchmarks" / "systems" / "ddp" / "train.py"


class Ddp:
    """All workers are equal; their store stands in party A's site, where no gradients pass through it."""

    has_hub = False
    configs: Mapping[str, Mapping[str, Any]] = {
        "fp32": {"hook": "none"},
        "fp16": {"hook": "fp16"},
        "PowerSGD rank 2": {"hook": "powersgd"},
        "PowerSGD rank 2, SGD": {"hook": "powersgd", "optimizer": "SGD", "momentum": 0.9},
        "post-local, every 10": {"hook": "post-local", "every": 10},
        "post-local, every 40": {"hook": "post-local", "every": 40},
        "hierarchical fp32": {"hook": "hierarchical"},
        "hierarchical fp16": {"hook": "hierarchical", "half": True},
    }

    def refuses(self, cell: Cell) -> str | None:
        if "hierarchical" in cell.config and cell.workers == 1:
            return "with one worker a party there is no hierarchy"
        if "PowerSGD" in cell.config and cell.workload.name == "synthetic":
            return "PowerSGD compresses matrices, and the synthetic tensors are vectors"
        return None

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        site = desk.cell.sites[0]
        return desk.workers(SCRIPT), {"store": desk.endpoint(site)}


SYSTEM = Ddp()
