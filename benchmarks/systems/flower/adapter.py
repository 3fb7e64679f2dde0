"""Flower: federated averaging, with its server in the hub's site and a client for each worker.

The server and clients are those of `flwr.server` and `flwr.client`, which keep a stream open to each client. Flower now
recommends a SuperLink in their place, whose nodes ask for work every few seconds: rounds over it cannot be shorter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cells import Cell
from benchmarks.systems.base import ROOT, Desk, Node

SCRIPT = ROOT / "benchmarks" / "systems" / "flower" / "train.py"
QUIET = {"FLWR_TELEMETRY_ENABLED": "0"}


class Flower:
    """FedAvg over every client, with H steps between two averages."""

    has_hub = True
    configs: Mapping[str, Mapping[str, Any]] = {
        "FedAvg, H = 1": {"every": 1},
        "FedAvg, H = 10": {"every": 10},
        "FedAvg, H = 40": {"every": 40},
    }

    def refuses(self, cell: Cell) -> str | None:
        return None

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        site = desk.cell.hub_site
        argv = (str(desk.python), str(SCRIPT), str(desk.job), "server")
        env = QUIET | {"FLWR_HOME": str(desk.folder)}
        server = Node("server", site, argv, env, serves=True)
        return [server, *desk.workers(SCRIPT, env)], {"server": desk.endpoint(site)}


SYSTEM = Flower()
