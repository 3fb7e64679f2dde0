"""MXNet's parameter server, which GeoMX measured itself against: flat, its server and scheduler in the hub's site."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from benchmarks.cells import Cell
from benchmarks.systems.base import ROOT, Desk, Node

SCRIPT = ROOT / "benchmarks" / "systems" / "mxnet" / "train.py"


class Mxnet:
    """Every worker pushes to one server, and pulls from it."""

    has_hub = True
    configs: Mapping[str, Mapping[str, Any]] = {
        "dist_sync": {"store": "dist_sync"},
        "dist_async": {"store": "dist_async"},
        "2-bit": {"store": "dist_sync", "compression": "2bit"},
    }

    def refuses(self, cell: Cell) -> str | None:
        if cell.workload.name.startswith("gpt"):
            return "the GPT is written in PyTorch alone"
        return None

    def nodes(self, desk: Desk) -> tuple[Sequence[Node], Mapping[str, str]]:
        cell = desk.cell
        host, _, port = desk.endpoint(cell.hub_site).rpartition(":")
        shared = {
            "DMLC_PS_ROOT_URI": host,
            "DMLC_PS_ROOT_PORT": port,
            "DMLC_NUM_SERVER": "1",
            "DMLC_NUM_WORKER": str(cell.parties * cell.workers),
        }

        def env(role: str, site: str) -> dict[str, str]:
            return shared | {"DMLC_ROLE": role, "DMLC_NODE_HOST": desk.address(site)}

        # A process that imports mxnet in one of these roles is that node until all workers have ended.
        serve = (str(desk.python), "-c", "import mxnet")
        nodes = [
            Node(role, cell.hub_site, serve, env(role, cell.hub_site), serves=True)
            for role in ("scheduler", "server")
        ]
        for site in cell.sites:
            nodes += [
                desk.worker(name, SCRIPT, env("worker", site))
                for name in cell.worker_names
                if name.startswith(f"{site}/")
            ]
        return nodes, {}


SYSTEM = Mxnet()
