"""Tables whose global servers die: started again, they have every row, every clock and every key that they had."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
import torch
from live_runs import sleep

from geomx.node.factory import make_node
from geomx.node.topology import Topology
from geomx.rounds.losses import Losses
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.simulate.stores import MemoryStore
from geomx.store.log import Log
from geomx.train import LiveRun, Settings

ROWS, STEPS = 500, 25


def script(run: LiveRun, staleness: int | None) -> dict[int, list[float]]:
    table = run.table("t", ROWS, 3, rule="adagrad lr=0.1", init="normal", staleness=staleness)
    place = run.workers.index(run.name)
    lists = [np.random.default_rng([place, which]).integers(0, ROWS, 40) for which in range(4)]
    table.push([3], torch.zeros(1, 3))  # one server has none of it
    while table.clock < STEPS:
        sleep(run, 0.05 * (1 + place))
        keys = lists[table.clock % 4]
        table.push(keys, 0.1 * table.pull(keys) + torch.ones(40, 3) / (1 + place))
        if table.clock == STEPS // 2:
            table.sync()
    table.sync()
    found = {key: row.tolist() for keys, rows in table.items() for key, row in zip(keys, rows, strict=True)}
    assert all(set(pushes.values()) == {STEPS} for pushes in table.pushes())
    run.close()
    return found


def played(
    on_loss: Any, replicas: int, kills: int, seed: int, staleness: int | None = 0
) -> dict[str, dict[int, list[float]]]:
    parties = {"A": ("A/0", "A/1"), "B": ("B/0",)}
    topology = Topology.of_parties(
        "tables", parties, shards=["global/0", "global/1"], losses=Losses(on_loss, 60.0), is_durable=True,
        replicas=replicas, cut_every_s=0.5,
    )  # fmt: skip
    simulator, store, lives, results = Simulator(seed), MemoryStore(), Counter[str](), dict[str, Any]()

    def start(name: str) -> None:
        lives[name] += 1
        node = make_node(topology, name, 1000 * lives[name])
        if topology.tree.is_shard(name) and not replicas:
            simulator.add(node, log=Log(store, name), latency_s=0.02)
        else:
            simulator.add(node)

    def main(program: Program) -> None:
        settings = Settings(on_loss=on_loss)
        run = LiveRun(
            program, name=program.name, tree=topology.tree, settings=settings, clock=lambda: program.now
        )
        with run:
            results[program.name] = script(run, staleness)

    def kill(name: str, away_s: float) -> None:
        if not simulator.has_stopped(name):
            simulator.crash(name)
            simulator.at(simulator.now + away_s, lambda: start(name))

    for name in topology.tree.nodes:
        start(name)
    programs = [simulator.program(name, main) for name in topology.tree.workers]
    chance = random.Random(seed)
    for _ in range(kills):
        name, at_s = chance.choice(topology.tree.shards), chance.uniform(0.3, 3.5)
        away_s = chance.uniform(0.0, 1.0)
        simulator.at(at_s, lambda name=name, away_s=away_s: kill(name, away_s))
    simulator.run(until=300.0)
    for program in programs:
        if program.error is not None:
            raise program.error
    assert results.keys() == set(topology.tree.workers)
    assert kills == 0 or max(lives.values()) > 1
    return results


@pytest.fixture(scope="module")
def calm() -> dict[int, list[float]]:
    results = played("wait", 0, 0, 0)
    assert results["A/0"] == results["A/1"] == results["B/0"]
    assert len(results["A/0"]) > 0.3 * ROWS
    return results["A/0"]


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize(
    "seed", [*range(4), *(pytest.param(s, marks=pytest.mark.faults) for s in range(4, 100))]
)
def test_the_rows_are_the_same_bits_whenever_a_server_dies(
    seed: int, replicas: int, calm: dict[int, list[float]]
) -> None:
    """With a log in a store, or in the memory of the next server; it is cut off twice a second."""
    for found in played("wait" if seed % 2 else "continue", replicas, 1 + (not replicas), seed).values():
        assert found == calm


@pytest.mark.parametrize("staleness", [2, None])
def test_nor_is_a_push_lost_where_nobody_waits(staleness: int | None) -> None:
    results = played("wait", 0, 2, 1, staleness)
    assert results["A/0"] == results["B/0"]
