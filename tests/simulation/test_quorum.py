"""Turns close without the slowest, whose contributions count in later ones: each of them once."""

from __future__ import annotations

import random

import pytest
from small_runs import SmallRun

from geomx.node.topology import AS_ABOVE, Edge, Topology
from geomx.rounds.losses import Losses, Quorum
from geomx.simulate.network import Network

STEP_S, ENDS_S = 0.1, 20.0
PARTIES = {"A": ("A/0", "A/1"), "B": ("B/0",), "C": ("C/0", "C/1")}
CODECS = ("dense", "int4", "bisparse ratio=0.2")


def played(
    quorum: float, codec: str, slow: float, delay_ms: float = 2.0, faults: int = 0, seed: int = 0
) -> SmallRun:
    """Three parties, of which one has a slow worker, or lies behind a slow link.

    `slow`: how much longer its steps take. `faults`: how many nodes are killed and started again, as the seed has it.
    """
    topology = Topology.of_parties(
        "quorum",
        PARTIES,
        policy="diloco every=5",
        wan=Edge(codec, codec),
        lan=Edge(codec, AS_ABOVE),
        losses=Losses("continue", 60.0, quorum=Quorum(quorum, 0.05)),
    )
    run = SmallRun(topology, lambda worker, now: STEP_S * (slow if worker == "C/0" else 1.0), ends_s=ENDS_S)
    run.simulator.link("C", "global/0", Network(200.0, delay_ms=delay_ms))
    run.start(*topology.tree.nodes)
    chance = random.Random(f"quorum {seed}")
    for _ in range(faults):
        name = chance.choice([*topology.tree.workers, *topology.tree.servers])
        at_s, away_s = chance.uniform(1.0, ENDS_S - 6.0), chance.uniform(0.1, 3.0)
        run.simulator.at(at_s, lambda name=name, away_s=away_s: run.kill(name, away_s))
    run.simulator.run(until=10 * ENDS_S)
    return run


@pytest.mark.parametrize(
    ("codec", "slow", "delay_ms"),
    [("dense", 3.0, 2.0), ("int4", 1.3, 2.0), ("bisparse ratio=0.2", 12.0, 2.0), ("int4", 1.0, 150.0)],
)
def test_others_are_not_slowed_and_whatever_comes_late_counts_once(
    codec: str, slow: float, delay_ms: float
) -> None:
    run = played(0.6, codec, slow, delay_ms)
    assert run.errors == []
    assert run.ledgers.keys() == set(run.topology.tree.workers)
    assert run.counted() == run.gave
    assert len(set(run.weights.values())) == 1
    if slow == 3.0:
        everybody = played(1.0, codec, slow, delay_ms)
        assert everybody.counted() == everybody.gave
        assert run.steps["A/0"] > 2 * everybody.steps["A/0"]


def check_with_faults(seed: int) -> None:
    chance = random.Random(seed)
    quorum, codec = chance.choice((0.5, 0.6, 0.75)), chance.choice(CODECS)
    slow, delay_ms = chance.choice((1.0, 1.2, 2.0, 3.0, 6.0)), chance.choice((2.0, 20.0, 100.0))
    run = played(quorum, codec, slow, delay_ms, chance.randint(1, 6), seed)
    assert run.errors == []
    assert run.ledgers.keys() == set(run.topology.tree.workers)
    assert len(set(run.weights.values())) == 1
    counted = run.counted()
    assert all(0 < counted[name] <= run.gave[name] for name in run.gave)


@pytest.mark.parametrize("seed", range(2))
def test_nothing_counts_twice_where_nodes_die_as_well(seed: int) -> None:
    check_with_faults(seed)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(100, 400))
def test_nothing_counts_twice_where_nodes_die_as_well_whenever(seed: int) -> None:
    check_with_faults(seed)
