"""Turns close without the slowest, whose contributions count in later ones: each of them once."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
import torch
from torch import nn

from geomx.errors import GeomxError
from geomx.node.factory import make_node
from geomx.node.topology import AS_ABOVE, Edge, Topology
from geomx.rounds.losses import Losses, Quorum
from geomx.simulate.network import Network
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

POLICY, STEP_S, ENDS_S = "diloco every=5", 0.1, 20.0
PARTIES = {"A": ("A/0", "A/1"), "B": ("B/0",), "C": ("C/0", "C/1")}


class QuorumRun:
    """Three parties, of which one has a slow worker, or lies behind a slow link.

    `slow`: how much longer its steps take. `faults`: how many nodes are killed and started again.
    """

    def __init__(
        self, quorum: float, codec: str, slow: float, delay_ms: float = 2.0, faults: int = 0
    ) -> None:
        self.topology = Topology.of_parties(
            "quorum",
            PARTIES,
            policy=POLICY,
            wan=Edge(codec, codec),
            lan=Edge(codec, AS_ABOVE),
            losses=Losses("continue", 60.0, quorum=Quorum(quorum, 0.05)),
        ).with_patience(Patience(0.4, 1.6))
        self.slow, self.has_quorum = slow, quorum < 1.0
        self.simulator = Simulator(1, Network(200.0, delay_ms=2.0))
        self.simulator.link("C", "global/0", Network(200.0, delay_ms=delay_ms))
        self.steps: Counter[str] = Counter()
        self.gave: Counter[str] = Counter()  # contributions, of all processes of a worker's name
        self.weights: dict[str, str] = {}
        self.ledgers: dict[str, list[int]] = {}
        self.errors: list[BaseException] = []
        self.lives: Counter[str] = Counter()
        for name in self.topology.tree.nodes:
            self.start(name)
        chance = random.Random(f"quorum {faults} {slow} {codec}")
        for _ in range(faults):
            name = chance.choice([*self.topology.tree.workers, *self.topology.tree.servers])
            at_s, away_s = chance.uniform(1.0, ENDS_S - 6.0), chance.uniform(0.1, 3.0)
            self.simulator.at(at_s, lambda name=name, away_s=away_s: self.kill(name, away_s))
        self.simulator.run(until=10 * ENDS_S)

    def kill(self, name: str, away_s: float) -> None:
        if not self.simulator.has_stopped(name):
            self.simulator.crash(name)
            self.simulator.at(self.simulator.now + away_s, lambda: self.start(name))

    def start(self, name: str) -> None:
        self.lives[name] += 1
        self.simulator.add(make_node(self.topology, name, 1000 * self.lives[name]))
        if self.topology.tree.is_worker(name):
            self.simulator.program(name, self.train)

    def train(self, program: Program) -> None:
        try:
            self._train(program)
        except GeomxError as error:
            self.errors.append(error)
            raise

    def _train(self, program: Program) -> None:
        torch.set_num_threads(1)
        tree, name = self.topology.tree, program.name
        settings = Settings(
            pack_below=20,
            policy=policies.make(POLICY),
            ledger=True,
            on_loss="continue",
            has_quorum=self.has_quorum,
        )
        run = LiveRun(program, name=name, tree=tree, settings=settings, clock=lambda: program.now)
        generator = torch.Generator().manual_seed(tree.workers.index(name))
        torch.manual_seed(tree.workers.index(name))
        step_s = STEP_S * (self.slow if name == "C/0" else 1.0)

        def data() -> Iterator[Any]:
            while program.now < ENDS_S:
                program.sleep(step_s)
                yield torch.randn(2, 6, generator=generator, dtype=torch.float64)

        with run:
            model: nn.Module = nn.Linear(6, 12).double()
            model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.05))
            attached = run._attached
            assert attached is not None
            count = attached.ledger.count

            def counting(*of: Any, **more: Any) -> None:
                self.gave[name] += 1
                count(*of, **more)

            attached.ledger.count = counting  # type: ignore[method-assign]
            for x in run.shard(data()):
                optimizer.zero_grad()
                (model(x) - x.sum(1, keepdim=True)).square().mean().backward()
                optimizer.step()
                self.steps[name] += 1
            run.wait()
            assert run.ledger is not None
            self.ledgers[name] = run.ledger.tolist()
            self.weights[name] = str([parameter.tolist() for parameter in model.parameters()])

    def counted(self) -> Counter[str]:
        order = self.topology.tree.workers
        return Counter(
            {name: max(of[place] for of in self.ledgers.values()) for place, name in enumerate(order)}
        )


@pytest.mark.parametrize("codec", ["dense", "int4", "bisparse ratio=0.2"])
@pytest.mark.parametrize(("slow", "delay_ms"), [(1.3, 2.0), (3.0, 2.0), (12.0, 2.0), (1.0, 150.0)])
def test_others_are_not_slowed_and_whatever_comes_late_counts_once(
    codec: str, slow: float, delay_ms: float
) -> None:
    run = QuorumRun(0.6, codec, slow, delay_ms)
    assert run.errors == []
    assert run.ledgers.keys() == set(run.topology.tree.workers)
    assert run.counted() == run.gave
    assert len(set(run.weights.values())) == 1
    alone = ENDS_S / STEP_S
    assert min(run.steps["A/0"], run.steps["B/0"]) > 0.4 * alone
    if slow == 3.0:
        everybody = QuorumRun(1.0, codec, slow, delay_ms)
        assert everybody.counted() == everybody.gave
        assert run.steps["A/0"] > 2 * everybody.steps["A/0"]


@pytest.mark.parametrize("faults", [1, 2, 3, 4])
@pytest.mark.parametrize("slow", [1.0, 2.0, 3.0])
def test_nothing_counts_twice_where_nodes_die_as_well(faults: int, slow: float) -> None:
    run = QuorumRun(0.6, "int4", slow, faults=faults)
    with suppress(KeyError):
        assert len(set(run.weights.values())) == 1
    assert run.errors == []
    assert run.ledgers.keys() == set(run.topology.tree.workers)
    counted = run.counted()
    assert all(0 < counted[name] <= run.gave[name] for name in run.gave)
