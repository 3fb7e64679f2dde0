"""Whole runs on the virtual clock, for tests: a tree of real nodes, and training loops against them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from math import inf
from typing import Any

import torch

from geomx.layout import Layout, Tensor
from geomx.node.factory import make_node
from geomx.node.port import Arrived, Contribution, Left, Ready
from geomx.node.topology import Topology
from geomx.rounds.membership import Members
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Network, Simulator
from geomx.tree import TOP, Tree
from geomx.wire.presence import pack
from geomx.wire.session import Patience

Script = Callable[[Program], None]  # what a worker does
Programs = dict[str, Program]  # by the worker's name
SGD = {
    "lr": 0.05,
    "momentum": 0.9,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "nesterov": False,
    "maximize": False,
}


def topology_of(
    parties: list[int], shards: int = 1, patience: Patience | None = None, **more: Any
) -> Topology:
    """`parties`: how many workers each has; they are called A, B, C, ..., Z, P26, ... `more`: of `Topology`."""
    letters = [chr(65 + p) if p < 26 else f"P{p}" for p in range(len(parties))]
    names = {
        letter: tuple(f"{letter}/{rank}" for rank in range(n))
        for letter, n in zip(letters, parties, strict=True)
    }
    every = [f"global/{shard}" for shard in range(shards)]
    topology = Topology.of_parties("test", names, shards=every, **more)
    return topology if patience is None else topology.with_patience(patience)


def members_of(names: Iterable[str]) -> Members:
    """Of a run with these workers, in this order; each hangs on the party of its name."""
    workers = {name: name.partition("/")[0] for name in names}
    return Members(Tree(dict.fromkeys(workers.values(), TOP) | workers), "global/0")


def layout_of(members: int, dtype: str = "float32") -> Layout:
    """Three slices of weights, and a ledger that counts the contributions of each member."""
    return Layout(
        (
            Tensor("conv", (40, 30), dtype),
            Tensor("conv.bias", (40,), dtype),
            Tensor("dense", (1500,), dtype),
            Tensor("geomx.ledger", (members,), "int64", role="ledger"),
        )
    )


@dataclass
class Loop:
    """A training loop that pulls each weight towards a target of its own, and keeps what it saw."""

    layout: Layout
    members: tuple[str, ...]
    rounds: int
    settings: dict[str, Any] = field(
        default_factory=lambda: {"optimizer": "torch.optim.SGD", "clip_norm": None}
    )
    hyper: dict[str, Any] = field(default_factory=lambda: dict(SGD))
    compute_s: float = 0.02
    weights: dict[str, dict[int, torch.Tensor]] = field(default_factory=dict)
    arrived: list[tuple[float, str, int, int]] = field(default_factory=list)  # (time, worker, turn, slice)

    def __call__(self, program: Program) -> None:
        name, inbox = program.name, list[Any]()
        weights = self.weights[name] = {}
        place = self.members.index(name)

        def hear(item: Any) -> None:
            inbox.append(item)
            if isinstance(item, Arrived):
                self.arrived.append((program.now, name, item.update.turn, item.update.slice))
                if item.values is not None:
                    weights[item.update.slice] = item.values

        program.listen(hear)
        program.call("attach", self.layout, self.settings)
        program.wait(
            lambda: any(isinstance(item, Ready) for item in inbox), lambda: "the servers to accept the model"
        )
        for turn in range(self.rounds + 1):
            inbox.clear()
            for slice_ in self.layout.slices:
                program.call("contribute", self.contribution(slice_.index, turn, place, weights))
            program.wait(lambda: self.complete(inbox), lambda: "the updates")
            program.sleep(self.compute_s * (1 + place / 10))
        program.call("leave", {"": self.rounds})
        program.wait(lambda: any(isinstance(item, Left) for item in inbox), lambda: "the leave to be heard")

    def complete(self, inbox: list[Any]) -> bool:
        return sum(isinstance(item, Arrived) for item in inbox) == len(self.layout.slices)

    def contribution(
        self, index: int, turn: int, place: int, weights: dict[int, torch.Tensor]
    ) -> Contribution:
        slice_ = self.layout.slices[index]
        dtype = getattr(torch, slice_.dtype)
        if turn == 0:
            if place:
                return Contribution.of(
                    turn, index, "assign", "attach()", 0.0, None, pack([False] * len(slice_.parts))
                )
            start = torch.zeros(slice_.elements, dtype=dtype)
            if slice_.role == "weight":
                start += torch.linspace(-1, 1, slice_.elements, dtype=dtype)
            return Contribution.of(turn, index, "assign", "attach()", 0.0, start)
        if slice_.role == "ledger":
            mine = torch.zeros(slice_.elements, dtype=dtype)
            mine[place] = 1
            return Contribution.of(turn, index, "gradient", "step()", 1.0, mine)
        samples = 3.0 + place
        gradient = samples * (
            weights[index] - torch.sin(torch.arange(slice_.elements, dtype=dtype) * (place + 1))
        )
        return Contribution.of(turn, index, "gradient", "step()", samples, gradient, None, self.hyper)


def start(
    simulator: Simulator, topology: Topology, script: Script, late: str = "", at_s: float = 0.0
) -> Programs:
    """Every node begins, `late` at `at_s`; never, where that is inf."""
    nodes = [name for name in topology.tree.nodes if name != late or at_s < inf]
    for name in nodes:
        simulator.add(make_node(topology, name), at=at_s if name == late else 0.0)
    return {name: simulator.program(name, script) for name in topology.tree.workers if name in nodes}


def run_tree(
    topology: Topology,
    loop: Loop,
    network: Network | None = None,
    seed: int = 0,
    faults: Callable[[Simulator], None] = lambda simulator: None,
    until: float = 600.0,
) -> tuple[Simulator, dict[str, Program]]:
    """A whole run, until every node has ended."""
    simulator = Simulator(seed, network)
    programs = start(simulator, topology, loop)
    faults(simulator)
    simulator.run(until)
    return simulator, programs


def bad_network(chance: random.Random) -> Network:
    """Slow or fast, losing, repeating and reordering or not, as chance has it."""
    return Network(
        rate_mbps=chance.choice([0.0, 5.0, 100.0]),
        delay_ms=chance.uniform(0, 60),
        jitter_ms=chance.uniform(0, 20),
        loss=chance.choice([0.0, 0.02, 0.2]),
        duplicate=chance.choice([0.0, 0.3]),
        reorder=chance.choice([0.0, 0.5]),
    )


def disturb(simulator: Simulator, chance: random.Random, topology: Topology, within_s: float = 2.0) -> None:
    """Cuts, resets and stops at random times, on random edges."""
    tree = topology.tree
    edges = [(node, parent) for node in (*tree.workers, *tree.servers) for parent in tree.parents(node)]
    for _ in range(chance.randrange(4)):
        one, other = chance.choice(edges)
        for_s, reset = chance.uniform(0.05, 3.0), chance.random() < 0.5
        at_s = chance.uniform(0.0, within_s)
        simulator.at(at_s, lambda o=one, p=other, d=for_s, r=reset: simulator.cut(o, p, d, r))
    if chance.random() < 0.3:
        name = chance.choice([name for edge in edges for name in edge])
        at_s = chance.uniform(0.0, 0.75 * within_s)
        simulator.at(at_s, lambda: simulator.pause(name, chance.uniform(0.1, 4.0)))


def assert_well(simulator: Simulator, topology: Topology, programs: dict[str, Program]) -> None:
    """Every node has ended well, and every loop came to its end."""
    for name, program in programs.items():
        assert program.error is None, f"{name}: {program.error!r}"
        assert program.finished, f"{name} did not come to its end"
    for name in topology.tree.nodes:
        assert simulator.error_of(name) is None, f"{name}: {simulator.error_of(name)}"
        assert simulator.has_stopped(name), f"{name} has not ended"
