"""What each system runs where, and in which configurations."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cells import Cell
from benchmarks.grounds import Ground, ways_of

FOLDER = Path(__file__).parent
ROOT = FOLDER.parents[1]


@dataclass(frozen=True, slots=True)
class Node:
    """A process of a cell. `serves`: it is ended once all others have ended by themselves."""

    name: str
    site: str
    argv: tuple[str, ...]
    env: Mapping[str, str] = field(default_factory=dict)
    serves: bool = False


@dataclass(frozen=True, slots=True)
class Desk:
    """What an adapter works with: a cell, where it runs, its system's Python, and a folder for this turn."""

    cell: Cell
    ground: Ground
    python: Path
    folder: Path
    options: Mapping[str, Any]

    @property
    def job(self) -> Path:
        """What training processes are told; written before they start."""
        return self.folder / "job.json"

    def address(self, site: str) -> str:
        return self.ground.address(site)

    def endpoint(self, site: str) -> str:
        """`host:port` at a site, with a port of its own."""
        return f"{self.ground.address(site)}:{self.ground.port()}"

    def script(self, name: str) -> tuple[str, ...]:
        """The command of the system's `train.py`, as the node of that name."""
        return str(self.python), str(FOLDER / self.cell.system / "train.py"), str(self.job), name

    def workers(self, env: Mapping[str, str] | None = None, names: Sequence[str] | None = None) -> list[Node]:
        """A training process at its party's site, for each worker of the cell or for those named."""
        every = names or self.cell.worker_names
        return [Node(name, name.partition("/")[0], self.script(name), env or {}) for name in every]


Nodes = tuple[Sequence[Node], Mapping[str, str]]


@dataclass(frozen=True, slots=True)
class System:
    """A table of `systems.toml`, and its adapter.

    `nodes`: the processes of a cell, in the order of their start, and the addresses that workers are told. `configs`:
    options by the name of a configuration.
    """

    nodes: Callable[[Desk], Nodes]
    configs: Mapping[str, Mapping[str, Any]]
    title: str = ""
    hub: str = "none"
    colour: str = ""


def raw(desk: Desk) -> Nodes:
    """The floor, measured: sockets that move the same bytes over the same links, one stream a party."""
    site = desk.cell.hub_site
    hub = Node("hub", site, desk.script("hub"), serves=True)
    return [hub, *desk.workers(names=[f"{party}/0" for party in desk.cell.sites])], {
        "hub": desk.endpoint(site)
    }


def geomx(desk: Desk) -> Nodes:
    """As users start it on several machines: `geomx serve` for servers, `geomx worker` for workers."""
    cell, hub = desk.cell, desk.cell.hub_site
    shards = [desk.endpoint(hub) for _ in range(desk.options.get("run.shards", 1))]
    local = {site: desk.endpoint(site) for site in cell.sites}
    description = str(desk.folder / "bench.toml")
    Path(description).write_text(geomx_toml(desk, shards, local))
    command = (str(desk.python), "-m", "geomx")

    def serve(name: str, site: str, *role: str) -> Node:
        return Node(name, site, (*command, "serve", description, "--role", *role), serves=True)

    nodes = [serve(f"global/{n}", hub, "global", "--shard", str(n)) for n in range(len(shards))]
    nodes += [serve(site, site, "local", "--party", site) for site in cell.sites]
    for node in desk.workers():
        place = ("--party", node.site, "--rank", node.name.partition("/")[2])
        nodes.append(Node(node.name, node.site, (*command, "worker", description, *place, "--", *node.argv)))
    return nodes, {}


def geomx_toml(desk: Desk, shards: Sequence[str], local: Mapping[str, str]) -> str:
    """The description of the run. Batches are of one size, so every worker counts the same."""
    options, ways = desk.options, ways_of(desk.cell)
    keys: dict[str, Any] = {
        "sync.weight": "equal",
        "worker.threads": 1,
        "global.addresses": shards,
        "global.listen": [f"0.0.0.0:{address.rpartition(':')[2]}" for address in shards],
        **{key: value for key, value in options.items() if "." in key},
    }
    if options.get("in_process"):
        way = next(iter(ways.values()))
        keys |= {"wan.link.rate_mbps": way.up_mbps, "wan.link.delay_ms": 500 * way.round_trip_s}
    lines = [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
    for site, address in local.items():
        lines += ["[[party]]", f'name = "{site}"', f"workers = {desk.cell.workers}", f'address = "{address}"']
        if "pace" in options and site in ways:
            lines.append(f"pace_mbps = {options['pace'] * min(ways[site][:2]):g}")
    return "\n".join(lines) + "\n"


def simulated(desk: Desk) -> Nodes:
    """geomx's nodes on the virtual clock: one process is the whole run, and writes down the virtual clock's times."""
    way = ways_of(desk.cell)["A"]
    addresses = {"rate_mbps": f"{way.up_mbps}", "delay_ms": f"{500 * way.round_trip_s}"}
    return desk.workers(names=["A/0"]), addresses


def ddp(desk: Desk) -> Nodes:
    """All workers are equal; their store stands in party A's site, where no gradients pass through it."""
    return desk.workers(), {"store": desk.endpoint("A")}


def mxnet(desk: Desk) -> Nodes:
    """The parameter server that GeoMX measured itself against: flat, its server and scheduler in the hub's site."""
    cell, hub = desk.cell, desk.cell.hub_site
    host, _, port = desk.endpoint(hub).rpartition(":")
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
    nodes = [Node(role, hub, serve, env(role, hub), serves=True) for role in ("scheduler", "server")]
    for name in cell.worker_names:
        nodes += desk.workers(env("worker", name.partition("/")[0]), [name])
    return nodes, {}


def hivemind(desk: Desk) -> Nodes:
    """All workers are peers that find each other by a hash table and average in one group."""
    return desk.workers(), {site: desk.address(site) for site in desk.cell.sites}


def torchft(desk: Desk) -> Nodes:
    """Every worker is a replica group of its own; the lighthouse that they vote at stands in party A's site."""
    cell, lighthouse = desk.cell, desk.endpoint("A")
    command = (str(desk.python.parent / "torchft_lighthouse"), "--bind", lighthouse)
    everyone = ("--min_replicas", str(cell.parties * cell.workers))
    serve = Node("lighthouse", "A", (*command, *everyone), serves=True)
    addresses = {site: desk.address(site) for site in cell.sites}
    return [serve, *desk.workers()], {**addresses, "lighthouse": lighthouse}


def flower(desk: Desk) -> Nodes:
    """Federated averaging, with its server in the hub's site and a client for each worker.

    Both are those of `flwr.server` and `flwr.client`, which keep a stream open to each client. Flower now recommends a
    SuperLink in their place, whose nodes ask for work every few seconds: rounds over it cannot be shorter.
    """
    site = desk.cell.hub_site
    env = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(desk.folder)}
    server = Node("server", site, desk.script("server"), env, serves=True)
    return [server, *desk.workers(env)], {"server": desk.endpoint(site)}


def requirements_of(system: str) -> Path:
    """The pinned packages of a system's environment, if it has one of its own."""
    return FOLDER / system / "requirements.txt"


def refused(cell: Cell) -> str | None:
    """Why a cell cannot be had with its system, if it cannot."""
    if "hierarchical" in cell.config and cell.workers == 1:
        return "with one worker a party there is no hierarchy"
    if "PowerSGD" in cell.config and cell.workload == "synthetic":
        return "PowerSGD compresses matrices, and the synthetic tensors are vectors"
    if cell.system == "mxnet" and cell.workload.startswith("gpt"):
        return "the GPT is written in PyTorch alone"
    if cell.system == "simulated" and (cell.where, cell.workload) != ("simulator", "synthetic"):
        return "only synthetic gradients can be simulated, and only in the simulator"
    return None


ADAPTERS = (raw, geomx, ddp, mxnet, hivemind, torchft, flower, simulated)
TABLES = tomllib.loads((FOLDER / "systems.toml").read_text("utf-8"))
SYSTEMS = {nodes.__name__: System(nodes=nodes, **TABLES[nodes.__name__]) for nodes in ADAPTERS}
