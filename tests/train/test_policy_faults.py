"""Each sync policy where networks are bad, workers die, and calls differ."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from exploring import each_value
from live_runs import (
    assert_equal,
    batch,
    begin,
    descend,
    dies,
    lockstep,
    now,
    place_of,
    sgd,
    sleep,
    small_model,
    weights,
)
from policy_runs import ALGORITHMS, KINDS, assert_differ, script, train_by, uneven
from torch import nn
from trees import bad_network, disturb, topology_of

from geomx.errors import Refused
from geomx.node.topology import Edge
from geomx.simulate.simulator import Network, Simulator
from geomx.sync import policies
from geomx.sync.contract import StepController
from geomx.train import LiveRun
from geomx.train.model.model_slices import LEDGER
from geomx.wire.session import Patience

WORKERS = ("A/0", "A/1", "B/0")


def counted(simulator: Simulator, shards: int) -> list[int]:
    """What the ledger at the global servers has in the end."""
    sinks = [simulator.hosts[f"global/{shard}"].node.sink for shard in range(shards)]  # type: ignore[attr-defined]
    (ledger,) = [values for sink in sinks for name, _, values in sink.parts() if name == LEDGER]
    return [int(value) for value in ledger]


@pytest.mark.parametrize(
    "seed", [0, *(pytest.param(seed, marks=pytest.mark.faults) for seed in range(1, 20))]
)
@pytest.mark.parametrize("spec", ALGORITHMS)
def test_a_bad_network_loses_nothing_and_counts_nothing_twice(spec: str, seed: int) -> None:
    """The ledger has every contribution once; where timing decides nothing, the weights have the undisturbed bits."""
    chance = random.Random(f"{spec} {seed}")
    shards, policy = 1 + seed % 2, policies.make(spec)
    network = bad_network(chance)
    wan = chance.choice([Edge("dense", "dense"), Edge("int8", "int8"), Edge("bisparse ratio=0.2", "fp16")])
    contributions: dict[str, int] = {}
    usual = script(sgd, 15, uneven)

    def main(run: LiveRun) -> Any:
        values = usual(run)
        run.close()
        assert run._attached is not None
        contributions[run.name] = run._attached.ledger.contributions
        return values

    def run_once(**how: Any) -> tuple[dict[str, Any], Simulator]:
        return train_by(spec, [2, 1], main, {"ledger": True}, shards=shards, wan=wan, **how)

    results, simulator = run_once(
        network=network,
        patience=Patience(heartbeat_s=0.5, timeout_s=30.0, resend_s=0.15),
        faults=lambda simulator, _: disturb(simulator, chance, topology_of([2, 1], shards), 3.0),
    )
    assert counted(simulator, shards) == [contributions[name] for name in WORKERS]
    assert min(contributions.values()) > 0
    if policy.sync_group == "run" and not isinstance(policy, StepController):
        calm, _ = run_once()
        assert_equal(results["B/0"], calm["B/0"])


VICTIMS = (("A/1", Edge("bisparse ratio=0.2", "int8")), ("B/0", Edge("dense", "dense")))


@pytest.mark.parametrize(
    ("spec", "at_s", "victim", "wan"),
    [  # each algorithm with one of them at one time, the others left to `make faults`
        pytest.param(
            spec, at_s, *victim, marks=() if place % 2 == other and place % 3 == when else pytest.mark.faults
        )
        for place, spec in enumerate(ALGORITHMS)
        for when, at_s in enumerate((0.6, 0.83, 1.07))
        for other, victim in enumerate(VICTIMS)
    ],
)
def test_a_worker_that_is_killed_and_started_again_catches_up(
    spec: str, at_s: float, victim: str, wan: Edge
) -> None:
    """Whenever it dies: in between two steps, or with half of its slices pushed. No step of the others is lost."""
    usual = script(sgd, 25, uneven)
    lives: dict[str, list[LiveRun]] = defaultdict(list)

    def main(run: LiveRun) -> Any:
        lives[run.name].append(run)
        return usual(run)

    how: dict[str, Any] = {
        "shards": 2,
        "network": Network(40.0, 15.0),
        "faults": dies(victim, at_s=at_s, back_s=at_s),
    }
    results, simulator = train_by(spec, [2, 1], main, {"ledger": True}, wan=wan, **how)
    assert len(lives[victim]) == 2
    assert results.keys() == {*WORKERS}
    assert all(value.isfinite().all() for values in results.values() for value in values.values())
    for name, count in zip(WORKERS, counted(simulator, shards=2), strict=True):
        made = sum(run._attached.ledger.contributions for run in lives[name] if run._attached)
        lost = 0 if name != victim else 2
        assert made - lost <= count <= made, name


@pytest.mark.parametrize(("spec", "at_s"), each_value(KINDS, [0.57, 0.69]))
def test_a_worker_that_is_started_again_has_the_weights_of_the_run(
    spec: str, at_s: float, tmp_path: Path
) -> None:
    """Not those of its script, nor those of a checkpoint that the script goes on from; and calls find each other."""
    path, later = tmp_path / "checkpoint", tmp_path / "later"
    batches = [batch(number, 4) for number in range(30)]
    starts: dict[str, list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], int]]] = defaultdict(list)

    def main(run: LiveRun) -> None:
        model = nn.Sequential(small_model(seed=place_of(run)), nn.BatchNorm1d(5).double())
        first = weights(model)
        model, optimizer = run.attach(model, sgd(model))
        goes_on = path.exists()
        if goes_on:
            given = weights(model)
            run.load(path)
            starts[run.name].append((given, weights(model), run.epoch))
            if not run.is_first:
                assert_differ(first, given)
        for _ in range(run.epoch, 3 if goes_on else 1):
            for x, y in run.shard(batches, over="run"):
                sleep(run, 0.05)
                descend(model, optimizer, x, y)
        run.save(later if goes_on else path)

    train_by(spec, [2, 1], main)
    starts.clear()
    train_by(spec, [2, 1], main, network=Network(40.0, 15.0), faults=dies("A/1", at_s=at_s, back_s=at_s))
    loaded, (given, kept, epoch) = starts["A/1"]
    assert_differ(loaded[0], loaded[1])
    assert_equal(given, kept)
    assert epoch == loaded[2] == 1


@pytest.mark.parametrize(
    ("spec", "victim"), each_value(["fsa", "mixed", "hfa k1=2 k2=2", "downpour", "esync"], ["A/0", "A/1"])
)
def test_a_worker_may_die_while_the_first_values_are_given(spec: str, victim: str) -> None:
    for at_s in (0.1, 0.2, 0.3, 0.4, 0.5):
        how: dict[str, Any] = {"network": Network(0.5, 15.0), "faults": dies(victim, at_s=at_s, back_s=at_s)}
        results, _ = train_by(spec, [2, 1], script(sgd, 3), **how)
        assert results.keys() == {*WORKERS}, at_s


def test_a_worker_that_has_left_is_not_let_in_again() -> None:
    seen: list[Simulator] = []

    def main(run: LiveRun) -> None:
        script(sgd, 3 if run.name == "A/1" else 40)(run)

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        seen.append(simulator)
        simulator.at(1.0, lambda: restart("A/1"))

    with pytest.raises(Refused, match="A/1 has left this run"):
        train_by("fsa", [2, 1], main, network=Network(40.0, 15.0), faults=faults)
    left = [(fields["peer"], fields["turn"]) for _, node, fields in seen[0].noted("left") if node == "A"]
    assert left == [("A/1", 3), ("A/0", 40)]


def test_parties_begin_with_the_same_weights_however_slow_a_link_is() -> None:
    """Whoever is ahead changes the weights at the root while others are still being sent the first ones."""
    seen: dict[str, dict[str, torch.Tensor]] = {}

    def main(run: LiveRun) -> None:
        model, optimizer = begin(run)
        seen[run.name] = weights(model)
        lockstep(run, model, optimizer, range(5))

    def slow(simulator: Simulator, _: Any) -> None:
        simulator.link("B", "global/0", Network(0.05, 5.0))

    train_by("mixed", [1, 1], main, wan=Edge("int8", "int8"), faults=slow)
    assert_equal(seen["B/0"], seen["A/0"])


@pytest.mark.parametrize("spec", ["fsa", "mixed", "hfa k1=3 k2=2", "downpour n_push=2 n_fetch=2"])
def test_second_0_of_events_is_the_end_of_attach_with_every_policy(spec: str) -> None:
    network = Network(rate_mbps=100.0, delay_ms=3.0)

    def main(run: LiveRun) -> float:
        begin(run)
        return now(run)

    def faults(simulator: Simulator, _: Any) -> None:
        simulator.change("A", "global/0", 0.0, network)

    ends, simulator = train_by(spec, [2, 1], main, faults=faults)
    (above, at_root), (below, at_party) = [(node, time) for time, node, _ in simulator.noted("link")]
    assert (above, below) == ("global/0", "A")
    assert 0.0 < at_root < at_party < ends["A/0"] < at_party + 0.01
