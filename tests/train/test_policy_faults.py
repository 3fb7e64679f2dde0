"""Each sync policy where networks are bad, workers die, and calls differ."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import (
    assert_equal,
    batch,
    parts_of,
    place_of,
    sgd,
    small_model,
    train,
    weights,
)
from policy_runs import ALGORITHMS, assert_differ, script, settings, uneven
from torch import nn
from trees import bad_network, disturb, topology_of

from geomx.errors import Refused, RunFailed
from geomx.node.factory import make_node
from geomx.node.root import Root
from geomx.node.server import Server
from geomx.node.topology import Edge
from geomx.simulate.simulator import Network, Simulator
from geomx.sync import policies
from geomx.sync.contract import StepController
from geomx.sync.fsa import FSA
from geomx.sync.mixed import MixedSync
from geomx.train import LiveRun
from geomx.train.model.model_slices import LEDGER
from geomx.wire.session import Patience


def counted(simulator: Simulator, shards: int) -> list[int]:
    """What the ledger at the global servers has in the end."""
    for shard in range(shards):
        server = simulator.hosts[f"global/{shard}"].node
        assert isinstance(server, Server)
        assert isinstance(server.sink, Root)
        for name, _, values in server.sink.parts():
            if name == LEDGER:
                return [int(value) for value in values]
    raise AssertionError("no shard has a ledger")


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
        return train([2, 1], main, settings(policy, ledger=True), shards, policy=spec, wan=wan, **how)

    again = Patience(heartbeat_s=0.5, timeout_s=30.0, resend_s=0.15)
    results, simulator = run_once(
        network=network,
        patience=again,
        faults=lambda simulator, _: disturb(simulator, chance, topology_of([2, 1], shards), 3.0),
    )
    assert counted(simulator, shards) == [contributions[name] for name in ("A/0", "A/1", "B/0")]
    assert min(contributions.values()) > 0
    if policy.sync_group == "run" and not isinstance(policy, StepController):
        calm, _ = run_once()
        assert_equal(results["B/0"], calm["B/0"])


VICTIMS = (("A/1", Edge("bisparse ratio=0.2", "int8")), ("B/0", Edge("dense", "dense")))


@pytest.mark.parametrize(
    ("spec", "victim", "wan"),
    [  # each algorithm with one of them, the other one left to `make faults`
        pytest.param(spec, *victim, marks=() if (place + other) % 2 == 0 else pytest.mark.faults)
        for place, spec in enumerate(ALGORITHMS)
        for other, victim in enumerate(VICTIMS)
    ],
)
def test_a_worker_that_is_killed_and_started_again_catches_up(spec: str, victim: str, wan: Edge) -> None:
    """Whenever it dies: in between two steps, or with half of its slices pushed. No step of the others is lost."""
    usual = script(sgd, 30, uneven)
    for at_s in (0.6, 0.83, 1.07):

        def faults(simulator: Simulator, restart: Callable[[str], None], at_s: float = at_s) -> None:
            simulator.at(at_s, lambda: simulator.crash(victim))
            simulator.at(at_s, lambda: restart(victim))

        lives: dict[str, list[LiveRun]] = defaultdict(list)

        def main(run: LiveRun, lives: dict[str, list[LiveRun]] = lives) -> Any:
            lives[run.name].append(run)
            return usual(run)

        results, simulator = train(
            [2, 1],
            main,
            settings(policies.make(spec), ledger=True),
            shards=2,
            network=Network(40.0, 15.0),
            faults=faults,
            policy=spec,
            wan=wan,
        )
        assert results.keys() == {"A/0", "A/1", "B/0"}, at_s
        assert all(value.isfinite().all() for values in results.values() for value in values.values())
        for name, count in zip(("A/0", "A/1", "B/0"), counted(simulator, shards=2), strict=True):
            made = sum(run._attached.ledger.contributions for run in lives[name] if run._attached)
            lost = 0 if name != victim else 2
            assert made - lost <= count <= made, (at_s, name)


@pytest.mark.parametrize("spec", ALGORITHMS)
def test_a_worker_that_is_started_again_has_the_weights_of_the_run(spec: str, tmp_path: Path) -> None:
    """Not those of its script, nor those of a checkpoint that the script goes on from; and calls find each other."""
    path, later = tmp_path / "checkpoint", tmp_path / "later"
    batches = [batch(number, 4) for number in range(30)]
    starts: dict[str, list[tuple[dict[str, torch.Tensor], dict[str, torch.Tensor], int]]] = defaultdict(list)

    def main(run: LiveRun) -> None:
        model = nn.Sequential(small_model(seed=place_of(run)), nn.BatchNorm1d(5).double())
        first = weights(model)
        model, optimizer = run.attach(model, sgd(model))
        if path.exists():
            given = weights(model)
            run.load(path)
            starts[run.name].append((given, weights(model), run.epoch))
            if not run.is_first:
                assert_differ(first, given)
        for _ in range(run.epoch, 4 if path.exists() else 1):
            for x, y in run.shard(batches, over="run"):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                run._client.port.sleep(0.05)  # type: ignore[attr-defined]  # of the virtual clock
                optimizer.step()
        run.save(later if path.exists() else path)

    train([2, 1], main, settings(policies.make(spec)), policy=spec)
    for at_s in (0.57, 0.69):
        starts.clear()

        def faults(simulator: Simulator, restart: Callable[[str], None], at_s: float = at_s) -> None:
            simulator.at(at_s, lambda: simulator.crash("A/1"))
            simulator.at(at_s, lambda: restart("A/1"))

        train(
            [2, 1],
            main,
            settings(policies.make(spec)),
            network=Network(40.0, 15.0),
            faults=faults,
            policy=spec,
        )
        loaded, (given, kept, epoch) = starts["A/1"]
        assert_differ(loaded[0], loaded[1])
        assert_equal(given, kept)
        assert epoch == loaded[2] == 1


@pytest.mark.parametrize("victim", ["A/0", "A/1"])
@pytest.mark.parametrize("spec", ["fsa", "mixed", "hfa k1=2 k2=2", "downpour", "esync"])
def test_a_worker_may_die_while_the_first_values_are_given(spec: str, victim: str) -> None:
    for at_s in (0.1, 0.2, 0.3, 0.4, 0.5):

        def faults(simulator: Simulator, restart: Callable[[str], None], at_s: float = at_s) -> None:
            simulator.at(at_s, lambda: simulator.crash(victim))
            simulator.at(at_s, lambda: restart(victim))

        results, _ = train(
            [2, 1],
            script(sgd, 3),
            settings(policies.make(spec)),
            network=Network(0.5, 15.0),
            faults=faults,
            policy=spec,
        )
        assert results.keys() == {"A/0", "A/1", "B/0"}, at_s


def test_a_worker_that_has_left_is_not_let_in_again() -> None:
    seen: list[Simulator] = []

    def main(run: LiveRun) -> None:
        script(sgd, 3 if run.name == "A/1" else 60)(run)

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        seen.append(simulator)
        simulator.at(1.0, lambda: restart("A/1"))

    with pytest.raises(Refused, match="A/1 has left this run"):
        train([2, 1], main, settings(FSA()), network=Network(40.0, 15.0), faults=faults)
    left = [(fields["peer"], fields["turn"]) for _, node, fields in seen[0].noted("left") if node == "A"]
    assert left == [("A/1", 3), ("A/0", 60)]


def test_a_local_server_that_was_started_again_ends_the_run() -> None:
    """What it knew of the run is gone."""

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        def again() -> None:
            for name in ("B", "B/0"):
                simulator.crash(name)
            simulator.add(make_node(topology_of([2, 1], 1), "B", incarnation=2))
            restart("B/0")

        simulator.at(1.0, again)

    with pytest.raises(RunFailed, match="B is lost: it was restarted"):
        train([2, 1], script(sgd, 60), settings(FSA()), network=Network(40.0, 15.0), faults=faults)


@pytest.mark.parametrize("spec", ALGORITHMS)
def test_a_party_that_vanishes_for_ten_seconds_comes_back(spec: str) -> None:
    def cut(simulator: Simulator, _: Any) -> None:
        simulator.at(1.0, lambda: simulator.cut("B", "global/0", 10.0, reset=True))

    policy = policies.make(spec)
    calm, _ = train([2, 1], script(sgd, 25, uneven), settings(policy), policy=spec)
    policy = policies.make(spec)
    shaken, simulator = train([2, 1], script(sgd, 25, uneven), settings(policy), policy=spec, faults=cut)
    assert any(fields["peer"] == "global/0" for _, node, fields in simulator.noted("resumed") if node == "B")
    if policy.sync_group == "run":
        assert_equal(shaken["B/0"], calm["B/0"])


def test_parties_begin_with_the_same_weights_however_slow_a_link_is() -> None:
    """Whoever is ahead changes the weights at the root while others are still being sent the first ones."""
    seen: dict[str, dict[str, torch.Tensor]] = {}

    def main(run: LiveRun) -> None:
        model = small_model(seed=place_of(run))
        model, optimizer = run.attach(model, sgd(model))
        seen[run.name] = weights(model)
        for step in range(5):
            x, y = parts_of(step, 2)[place_of(run)]
            run.weight(len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()

    def slow(simulator: Simulator, _: Any) -> None:
        simulator.link("B", "global/0", Network(0.05, 5.0))

    wan = Edge("int8", "int8")
    train([1, 1], main, settings(MixedSync()), policy="mixed", wan=wan, faults=slow)
    assert_equal(seen["B/0"], seen["A/0"])


@pytest.mark.parametrize(
    "spec", ["fsa", "mixed", "hfa k1=3 k2=2", "diloco every=4", "downpour n_push=2 n_fetch=2"]
)
def test_second_0_of_events_is_the_end_of_attach_with_every_policy(spec: str) -> None:
    network = Network(rate_mbps=100.0, delay_ms=3.0)

    def main(run: LiveRun) -> float:
        model = small_model()
        run.attach(model, sgd(model))
        return run._client.port.now  # type: ignore[attr-defined]  # of the virtual clock

    ends, simulator = train(
        [2, 1],
        main,
        settings(policies.make(spec)),
        policy=spec,
        faults=lambda simulator, _: simulator.change("A", "global/0", 0.0, network),
    )
    (above, at_root), (below, at_party) = [(node, time) for time, node, _ in simulator.noted("link")]
    assert (above, below) == ("global/0", "A")
    assert 0.0 < at_root < at_party < ends["A/0"] < at_party + 0.01
