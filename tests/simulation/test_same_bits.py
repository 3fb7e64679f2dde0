"""A shard that keeps a log, or whose neighbour does, dies at any moment: where workers move in step, weights are those
of the undisturbed run.
"""

from __future__ import annotations

import random

import pytest
from small_runs import SmallRun

from geomx.node.topology import AS_ABOVE, Edge, Topology
from geomx.rounds.losses import Losses

STEPS = 24
PARTIES = {"A": ("A/0", "A/1"), "B": ("B/0",)}
POLICIES = ("fsa", "hfa k1=2 k2=2", "diloco every=4 lr=0.7 momentum=0.9")
CODECS = ("dense", "int4", "bisparse ratio=0.2")


def trained(
    policy: str, codec: str, shards: int, on_loss: str, replicas: int, kills: int = 0, seed: int = 0
) -> set[str]:
    """What the workers' weights are in the end. `kills`: how often a shard dies, when the seed says."""
    topology = Topology.of_parties(
        "bits",
        PARTIES,
        policy=policy,
        shards=[f"global/{shard}" for shard in range(shards)],
        wan=Edge(codec, codec),
        lan=Edge(codec, AS_ABOVE),
        losses=Losses(on_loss, 60.0),  # type: ignore[arg-type]
        is_durable=True,
        replicas=replicas,
        cut_every_s=0.7,
    )
    run = SmallRun(topology, lambda worker, now: 0.1, steps=STEPS)
    run.start(*topology.tree.nodes)
    chance = random.Random(f"bits {seed}")
    for _ in range(kills):
        name, at_s, away_s = (
            chance.choice(topology.tree.shards),
            chance.uniform(0.2, 3.0),
            chance.uniform(0.0, 1.0),
        )
        run.simulator.at(at_s, lambda name=name, away_s=away_s: run.kill(name, away_s))
    run.simulator.run(until=300.0)
    assert run.errors == []
    assert run.weights.keys() == set(topology.tree.workers)
    assert run.counted() == run.gave
    return set(run.weights.values())


def check(seed: int) -> None:
    chance = random.Random(seed)
    policy, codec, shards = chance.choice(POLICIES), chance.choice(CODECS), chance.choice((1, 2))
    on_loss, kills = chance.choice(("wait", "continue")), chance.randint(1, 3)
    replicas = int(shards > 1 and chance.random() < 0.5)
    of = policy, codec, shards, on_loss, replicas
    calm = trained(*of)
    assert len(calm) == 1
    assert trained(*of, 1 if replicas else kills, seed) == calm


@pytest.mark.parametrize(
    ("policy", "codec", "shards", "on_loss", "replicas"),
    [
        ("fsa", "bisparse ratio=0.2", 2, "wait", 0),
        ("hfa k1=2 k2=2", "int4", 1, "continue", 0),
        ("diloco every=4 lr=0.7 momentum=0.9", "bisparse ratio=0.2", 2, "continue", 1),
        ("fsa", "int4", 2, "wait", 1),
    ],
)
def test_weights_are_the_same_bits(policy: str, codec: str, shards: int, on_loss: str, replicas: int) -> None:
    of = policy, codec, shards, on_loss, replicas
    calm = trained(*of)
    assert len(calm) == 1
    assert trained(*of, 1 if replicas else 2, seed=1) == calm


@pytest.mark.parametrize("policy", ["fsa", "diloco every=4 lr=0.7 momentum=0.9"])
def test_a_run_that_was_ended_goes_on_where_it_was(policy: str) -> None:
    """All nodes die, and are started again with the store that is left: a script goes on behind the last exchange."""
    every = []
    for dies in (False, True):
        topology = Topology.of_parties(
            "all", PARTIES, policy=policy, losses=Losses("wait", 60.0), is_durable=True
        )
        run = SmallRun(topology, lambda worker, now: 0.1, steps=STEPS)
        run.start(*topology.tree.nodes)
        if dies:
            run.simulator.run(until=1.8)
            for name in topology.tree.nodes:
                run.simulator.crash(name)
            run.start(*topology.tree.nodes)
        run.simulator.run(until=100.0)
        assert run.errors == []
        every.append((set(run.weights.values()), dict(run.steps)))
    (calm, steps), (resumed, taken) = every
    assert resumed == calm or policy != "fsa"  # else workers have optimizers of their own, which begin anew
    assert all(steps[name] <= taken[name] < steps[name] + 4 for name in topology.tree.workers)


@pytest.mark.faults
@pytest.mark.parametrize("seed", range(100, 500))
def test_weights_are_the_same_bits_whenever_it_dies(seed: int) -> None:
    check(seed)
