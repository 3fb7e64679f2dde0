"""What each system runs where."""

import json
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from secrets import token_hex
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
    env: dict[str, str] = field(default_factory=dict)
    serves: bool = False


@dataclass(frozen=True, slots=True)
class Desk:
    """What an adapter works with: a cell, where it runs, its system's Python, and a folder for this turn."""

    cell: Cell
    ground: Ground
    python: Path
    folder: Path
    options: dict[str, Any]

    @property
    def job(self) -> Path:
        """What training processes are told; written before they start."""
        return self.folder / "job.json"

    def endpoint(self, site: str) -> str:
        """`host:port` at a site, with a port of its own."""
        return f"{self.ground.address(site)}:{self.ground.port()}"

    def addresses(self) -> dict[str, str]:
        """Of the parties' sites."""
        return {site: self.ground.address(site) for site in self.cell.sites}

    def trains(self, name: str, env: dict[str, str] | None = None) -> Node:
        """A process of the system's `train.py`, at its party's site."""
        argv = (str(self.python), "-m", "benchmarks.training", str(self.job), name)
        return Node(name, name.partition("/")[0], argv, env or {})

    def serves(self, name: str, env: dict[str, str] | None = None) -> Node:
        """The same, at the hub's site."""
        return Node(name, self.cell.hub_site, self.trains(name).argv, env or {}, serves=True)

    def workers(self, env: dict[str, str] | None = None) -> list[Node]:
        return [self.trains(name, env) for name in self.cell.worker_names]


Nodes = tuple[
    list[Node], dict[str, str]
]  # in the order of their start, and the addresses that workers are told


def raw(desk: Desk) -> Nodes:
    """The floor, measured: sockets that move the same bytes over the same links, one stream a party."""
    first = [desk.trains(f"{party}/0") for party in desk.cell.sites]
    return [desk.serves("hub"), *first], {"hub": desk.endpoint(desk.cell.hub_site)}


def geomx(desk: Desk) -> Nodes:
    """As users start it on several machines: `geomx serve` for servers, `geomx worker` for workers."""
    cell, hub = desk.cell, desk.cell.hub_site
    shards = [desk.endpoint(hub) for _ in range(desk.options.get("run.shards", 1))]
    local = {site: desk.endpoint(site) for site in cell.sites}
    description, secret = desk.folder / "bench.toml", desk.folder / "secret"
    secret.touch(0o600)
    secret.write_text(token_hex(32))
    description.write_text(geomx_toml(desk, shards, local))
    command = (str(desk.python), "-m", "geomx")

    def serve(name: str, site: str, *role: str) -> Node:
        return Node(name, site, (*command, "serve", str(description), "--role", *role), serves=True)

    nodes = [serve(f"global/{n}", hub, "global", "--shard", str(n)) for n in range(len(shards))]
    nodes += [serve(site, site, "local", "--party", site) for site in cell.sites]
    for node in desk.workers():
        place = ("--party", node.site, "--rank", node.name.partition("/")[2])
        argv = (*command, "worker", str(description), *place, "--", *node.argv)
        nodes.append(Node(node.name, node.site, argv))
    return nodes, {}


def geomx_toml(desk: Desk, shards: list[str], local: dict[str, str]) -> str:
    """The description of the run. Batches are of one size, so every worker counts the same."""
    options, ways = desk.options, ways_of(desk.cell)
    keys = {
        "run.secret_file": "secret",
        "sync.weight": "equal",
        "worker.threads": 1,
        "global.addresses": shards,
    }
    keys["global.listen"] = [f"0.0.0.0:{address.rpartition(':')[2]}" for address in shards]
    keys |= {key: value for key, value in options.items() if "." in key}
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
    return [desk.trains("A/0")], {"rate_mbps": f"{way.up_mbps}", "delay_ms": f"{500 * way.round_trip_s}"}


def ddp(desk: Desk) -> Nodes:
    """All workers are equal; their store stands in party A's site, where no gradients pass through it."""
    return desk.workers(), {"store": desk.endpoint("A")}


def mxnet(desk: Desk) -> Nodes:
    """The parameter server that GeoMX measured itself against: flat, its server and scheduler in the hub's site."""
    hub, workers = desk.cell.hub_site, desk.cell.worker_names
    host, _, port = desk.endpoint(hub).rpartition(":")
    shared = {"DMLC_PS_ROOT_URI": host, "DMLC_PS_ROOT_PORT": port}
    shared |= {"DMLC_NUM_SERVER": "1", "DMLC_NUM_WORKER": str(len(workers))}

    def env(role: str, site: str) -> dict[str, str]:
        return shared | {"DMLC_ROLE": role, "DMLC_NODE_HOST": desk.ground.address(site)}

    # A process that imports mxnet in one of these roles is that node until all workers have ended.
    serve = (str(desk.python), "-c", "import mxnet")
    nodes = [Node(role, hub, serve, env(role, hub), serves=True) for role in ("scheduler", "server")]
    return nodes + [desk.trains(name, env("worker", name.partition("/")[0])) for name in workers], {}


def hivemind(desk: Desk) -> Nodes:
    """All workers are peers that find each other by a hash table and average in one group."""
    return desk.workers(), desk.addresses()


def torchft(desk: Desk) -> Nodes:
    """Every worker is a replica group of its own; the lighthouse that they vote at stands in party A's site."""
    lighthouse, workers = desk.endpoint("A"), desk.workers()
    command = (str(desk.python.parent / "torchft_lighthouse"), "--min_replicas", str(len(workers)))
    serve = Node("lighthouse", "A", (*command, "--bind", lighthouse), serves=True)
    return [serve, *workers], {**desk.addresses(), "lighthouse": lighthouse}


def flower(desk: Desk) -> Nodes:
    """Federated averaging, with its server in the hub's site and a client for each worker.

    Both are those of `flwr.server` and `flwr.client`, which keep a stream open to each client. Flower now recommends a
    SuperLink in their place, whose nodes ask for work every few seconds: rounds over it cannot be shorter.
    """
    env = {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_HOME": str(desk.folder)}
    return [desk.serves("server", env), *desk.workers(env)], {"server": desk.endpoint(desk.cell.hub_site)}


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


@dataclass(frozen=True, slots=True)
class System:
    """A table of `systems.toml`, and its adapter."""

    nodes: Callable[[Desk], Nodes]
    configs: dict[str, dict[str, Any]]
    title: str = ""
    hub: str = "none"
    colour: str = ""


ADAPTERS = (raw, geomx, ddp, mxnet, hivemind, torchft, flower, simulated)
TABLES = tomllib.loads((FOLDER / "systems.toml").read_text("utf-8"))
SYSTEMS = {nodes.__name__: System(nodes, **TABLES[nodes.__name__]) for nodes in ADAPTERS}
