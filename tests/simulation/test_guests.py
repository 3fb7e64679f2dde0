"""A party that no description names comes to a run that has begun, and takes part like any other."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from geomx.node.factory import make_node
from geomx.node.topology import Topology
from geomx.rounds.losses import Losses
from geomx.simulate.network import Network
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import LiveRun, Settings
from geomx.tree import GUESTS
from geomx.wire.session import Patience

ENDS_S, COMES_S, DIES_S = 8.0, 3.0, 5.0
PARTY = ("guest-3/0", "guest-3/5")


class OpenRun:
    """Two parties, and one that comes later; what becomes of each worker."""

    def __init__(self, policy: str, shards: int, one_dies: bool) -> None:
        names = [f"global/{shard}" for shard in range(shards)]
        first = Topology.of_parties(
            "open",
            {"A": ("A/0", "A/1"), "B": ("B/0",)},
            shards=names,
            policy=policy,
            losses=Losses("continue", 60.0),
        ).with_patience(Patience(0.4, 1.6))
        edges = first.edges | dict.fromkeys(GUESTS, first.edges["A"])
        self.topology = replace(first, tree=first.tree.with_guests(GUESTS), edges=edges)
        self.policy = policy
        self.simulator = Simulator(1, Network(200.0, delay_ms=2.0))
        self.weights: dict[str, str] = {}
        self.ledgers: dict[str, list[int]] = {}
        self.contributed: dict[str, int] = {}
        self.workers: dict[str, tuple[str, ...]] = {}
        self.programs: dict[str, Program] = {}
        for name in first.tree.nodes:
            self.start(name)
        for name in ("guest-3", *PARTY):
            self.simulator.at(COMES_S, lambda name=name: self.start(name))
        if one_dies:
            self.simulator.at(DIES_S, lambda: self.simulator.crash(PARTY[1]))
        self.simulator.run(until=100.0)

    def start(self, name: str) -> None:
        self.simulator.add(make_node(self.topology, name, 1))
        if self.topology.tree.is_worker(name):
            self.programs[name] = self.simulator.program(name, self.train)

    def train(self, program: Program) -> None:
        tree, name = self.topology.tree, program.name
        settings = Settings(pack_below=20, policy=policies.make(self.policy), ledger=True, on_loss="continue")
        party = PARTY if name in PARTY else ()
        run = LiveRun(
            program, name=name, tree=tree, settings=settings, clock=lambda: program.now, party=party
        )
        generator = torch.Generator().manual_seed(tree.workers.index(name))
        torch.manual_seed(tree.workers.index(name))

        def data() -> Iterator[Any]:
            while program.now < ENDS_S:
                program.sleep(0.1 if program.now > COMES_S + 0.5 or not party else 0.001)
                yield torch.randn(2, 6, generator=generator, dtype=torch.float64)

        with run:
            model: nn.Module = nn.Linear(6, 12).double()
            model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.05))
            for x in run.shard(data()):
                optimizer.zero_grad()
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
            run.wait()
            assert run.ledger is not None
            assert run._attached is not None
            self.contributed[name] = run._attached.ledger.contributions
            self.ledgers[name] = run.ledger.tolist()
            self.weights[name] = str([parameter.tolist() for parameter in model.parameters()])
            self.workers[name] = run.workers


@pytest.mark.parametrize("one_dies", [False, True])
@pytest.mark.parametrize(("policy", "shards"), [("fsa", 2), ("diloco every=5", 2), ("mixed", 1)])
def test_a_party_comes_later(policy: str, shards: int, one_dies: bool) -> None:
    run = OpenRun(policy, shards, one_dies)
    there = {"A/0", "A/1", "B/0", PARTY[0]} | ({PARTY[1]} if not one_dies else set())
    assert run.weights.keys() == there
    assert all(run.programs[name].error is None for name in there)
    if policy != "mixed":
        assert len(set(run.weights.values())) == 1
    order = run.topology.tree.workers
    for name in there:
        newest = max(run.ledgers[each][order.index(name)] for each in there)
        assert newest == run.contributed[name]
        assert run.contributed[name] > 3
    assert run.workers["A/0"] == ("A/0", "A/1", "B/0")
    assert run.workers[PARTY[0]] == ("A/0", "A/1", "B/0", *PARTY)
    reasons = [fields["reason"] for _, node, fields in run.simulator.noted("roster") if node == "A/0"]
    assert reasons[:2] == ["guest-3/0 has come", "guest-3/5 has come"]
