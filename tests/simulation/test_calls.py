"""Runs of nothing but collective calls, in which nodes die, are cut off and stand still, as a seed has it.

Each worker gives a bit of its own, so a sum tells who is in it, and a count how often.
"""

from __future__ import annotations

import random
from functools import partial
from typing import Any

import pytest
from trees import topology_of

from geomx.errors import GeomxError, NodeLost, RunFailed
from geomx.node.factory import make_node
from geomx.rounds.losses import Losses
from geomx.simulate.network import Network
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

PATIENCE = Patience(heartbeat_s=0.2, timeout_s=0.8)
SEEDS, CALLS = 6, 60


def play(seed: int) -> None:
    chance = random.Random(seed)
    on_loss: Any = ("continue", "wait")[seed % 2]
    parties = [chance.randint(1, 2) for _ in range(chance.randint(2, 4))]
    losses = Losses(on_loss, 60.0)
    topology = topology_of(parties, chance.randint(1, 2), PATIENCE, losses=losses)
    tree, simulator = topology.tree, Simulator(seed, Network(200.0, delay_ms=chance.uniform(0.5, 20.0)))
    results: dict[int, dict[str, tuple[int, int]]] = {}
    ended: dict[str, GeomxError] = {}
    lives = dict.fromkeys(tree.nodes, 0)

    def main(program: Program) -> None:
        run = LiveRun(
            program,
            name=program.name,
            tree=tree,
            settings=Settings(on_loss=on_loss, calls=True),
            clock=lambda: program.now,
        )
        ended.pop(program.name, None)
        place = tree.workers.index(program.name)
        try:
            with run:
                while run.turn < CALLS:
                    program.sleep(0.05 * (1 + place / 7))
                    told = run.reduce((1 << place, 1))
                    results.setdefault(run.turn, {})[program.name] = told
        except (RunFailed, NodeLost) as error:
            ended[program.name] = error
            raise

    def start(name: str) -> None:
        lives[name] += 1
        simulator.add(make_node(topology, name, incarnation=1000 * lives[name]))
        if tree.is_worker(name):
            simulator.program(name, main)

    def kill(name: str, for_s: float) -> None:
        if not simulator.has_stopped(name):
            simulator.crash(name)
            simulator.at(simulator.now + for_s, partial(start, name))

    for name in tree.nodes:
        start(name)
    below = [name for name in tree.nodes if not tree.is_shard(name)]
    for _ in range(chance.randint(1, 3)):
        at_s, for_s, name = chance.uniform(0.2, 3.0), chance.uniform(0.1, 1.5), chance.choice(below)
        kind = chance.choice(["kill", "cut", "pause"])
        if kind == "kill" and (on_loss == "continue" or not tree.is_worker(name)):
            simulator.at(at_s, partial(kill, name, for_s))
        elif kind == "pause":
            simulator.at(at_s, partial(simulator.pause, name, for_s))
        else:
            for parent in tree.parents(name):
                simulator.at(at_s, partial(simulator.cut, name, parent, for_s))
    simulator.run(until=120.0)

    assert max(results) >= CALLS, f"seed {seed}: {ended}"
    everybody = (1 << len(tree.workers)) - 1
    for turn, told in results.items():
        assert len(set(told.values())) == 1, f"seed {seed}, turn {turn}: {told}"
        who, count = next(iter(told.values()))
        assert who.bit_count() == count, f"seed {seed}, turn {turn}: somebody counts twice"
        assert on_loss == "continue" or who == everybody, f"seed {seed}, turn {turn}: not all"


@pytest.mark.parametrize(
    "seed", [*range(SEEDS), *(pytest.param(seed, marks=pytest.mark.faults) for seed in range(SEEDS, 200))]
)
def test_results_are_of_each_worker_once_and_the_same_everywhere(seed: int) -> None:
    play(seed)
