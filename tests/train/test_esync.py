"""ESync: unequal numbers of local steps, and who decides on them."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
import torch
from exploring import each_value
from live_runs import (
    Faults,
    Make,
    adam,
    apply,
    assert_close,
    begin,
    descend,
    drawn,
    gradients,
    parts_of,
    place_of,
    samples_of,
    sgd,
    sleep,
    small_model,
    weights,
)
from policy_runs import train_by
from torch import nn

from geomx.errors import ConfigError
from geomx.node.port import Allowed
from geomx.simulate.simulator import Network, Simulator
from geomx.sync.esync import ESync
from geomx.train import LiveRun
from geomx.train.calls.collective_client import CollectiveClient

if TYPE_CHECKING:
    from geomx.node.port import Port

StepS = Callable[[str, int], float]
ROUNDS = 10
STEP_S = {"A/0": 0.05, "A/1": 0.02, "B/0": 0.2}


@dataclass(frozen=True)
class Trained:
    """What came of a worker: its weights, and in which turn it took each of its steps."""

    weights: dict[str, torch.Tensor]
    turns: list[int]

    @property
    def steps(self) -> list[int]:
        """Of each round."""
        counted = Counter(self.turns)
        return [counted[turn] for turn in sorted(counted)]


def ran(
    step_s: dict[str, float] | StepS, spec: str = "esync", make: Make = sgd, **how: Any
) -> dict[str, Trained]:
    """Workers take steps of their own length, until all have synchronised so often."""
    slept = step_s if callable(step_s) else (lambda name, _: step_s[name])

    def main(run: LiveRun) -> Trained:
        model, optimizer = begin(run, make)
        turns: list[int] = []
        while run.turn <= ROUNDS:
            x, y = drawn(run, len(turns))
            sleep(run, slept(run.name, len(turns)))
            turns.append(run.turn)
            descend(model, optimizer, x, y)
        return Trained(weights(model), turns)

    parties = (2, 1) if callable(step_s) or len(step_s) == 3 else (1, 1)
    return train_by(spec, parties, main, **how)[0]


def reference(results: dict[str, Trained], make: Make, equal: bool, lr: float) -> nn.Module:
    """The paper's: Δ_i = w_start − w_i over as many steps as each has taken; w ← w_start − lr · mean(Δ)."""
    everyone = len(results)
    in_order = [trained for _, trained in sorted(results.items())]
    start = small_model(seed=0)
    models = [copy.deepcopy(start) for _ in results]
    optimizers = [make(model) for model in models]
    done = [0] * everyone
    for number in range(ROUNDS):
        shares = []
        for place, trained in enumerate(in_order):
            steps = trained.steps[number]
            for _ in range(steps):
                found = gradients(models[place], done[place], [place], everyone)
                apply(models[place], optimizers[place], found)
                done[place] += 1
            shares.append(1.0 if equal else float(steps * samples_of(place)))
        with torch.no_grad():
            for parameter, *theirs in zip(*(model.parameters() for model in (start, *models)), strict=True):
                moved = [share * (parameter - other) for share, other in zip(shares, theirs, strict=True)]
                parameter.sub_(lr * sum(moved) / sum(shares))
                for other in theirs:
                    other.copy_(parameter)
    return start


class TwoAnswers:
    """A way to a server whose answers for a turn and for the one behind it have come before the worker looks."""

    def listen(self, hear: Callable[[Any], None]) -> None:
        self.hear = hear

    def call(self, method: str, turn: int, *_: Any) -> None:
        self.hear(Allowed(turn, 3))
        self.hear(Allowed(turn + 1, 4))

    def wait(self, ready: Callable[[], bool], whom: Callable[[], str]) -> None:
        assert ready(), whom()

    def poll(self) -> None:
        """All has come."""


def test_an_answer_is_not_lost_to_the_next_one() -> None:
    client = CollectiveClient(cast("Port", TwoAnswers()), "A/0")
    assert client.stepped(1, 0.1, wait=True) == 3
    client.next_turn()
    assert client.stepped(1, 0.1, wait=True) == 3


@pytest.mark.parametrize(
    ("spec", "make"),
    each_value(["esync", "esync wait=true", "esync equal=false lr=0.8 least=2"], [sgd, adam]),
)
def test_esync_is_the_mean_of_how_far_all_have_moved(spec: str, make: Make) -> None:
    results = ran(STEP_S, spec, make, shards=2)
    expected = reference(results, make, "equal=false" not in spec, 0.8 if "lr" in spec else 1.0)
    for trained in results.values():
        assert_close(trained.weights, weights(expected))


@pytest.mark.parametrize("spec", ["esync", "esync wait=true"])
def test_fast_workers_fill_the_slowest_one_s_step(spec: str) -> None:
    results = ran(STEP_S, spec, network=Network(1000.0, 0.5))  # little beside a step
    assert results["B/0"].steps == [1] * ROUNDS
    assert {*results["A/0"].steps[2:]} <= {3, 4}
    assert {*results["A/1"].steps[2:]} <= {8, 9, 10}


def links(*parties: str, network: Network) -> Faults:
    def faults(simulator: Simulator, _: Any) -> None:
        for party in parties:
            simulator.link(party, "global/0", network)

    return faults


def test_the_way_to_the_server_counts() -> None:
    """Equal workers, one of them behind a slow link: the others train while its weights are under way."""
    results = ran({"A/0": 0.05, "B/0": 0.05}, faults=links("B", network=Network(0.5, 20.0)))
    assert results["B/0"].steps == [1] * ROUNDS
    assert min(results["A/0"].steps[3:]) > 2


def test_the_way_counts_of_models_of_many_slices_too() -> None:
    """The first slice of a round is there long before the last."""
    results = ran({"A/0": 0.05, "B/0": 0.2}, faults=links("A", "B", network=Network(2.0, 10.0)))
    assert results["B/0"].steps == [1] * ROUNDS
    assert {*results["A/0"].steps[3:]} <= {3, 4}


def test_nobody_takes_fewer_steps_than_the_least() -> None:
    results = ran(STEP_S, "esync least=3")
    assert results["B/0"].steps == [3] * ROUNDS
    assert min(results["A/0"].steps) >= 3
    assert min(results["A/1"].steps[2:]) >= 20


def test_a_worker_that_becomes_slow_is_noticed() -> None:
    results = ran(lambda name, step: 0.1 if name != "B/0" or step < 5 else 0.4)
    assert results["A/0"].steps[:4] == [1] * 4
    assert results["A/0"].steps[-1] in (3, 4)
    assert results["B/0"].steps == [1] * ROUNDS


def test_one_long_pause_makes_no_slow_worker() -> None:
    """An evaluation between two steps, say: equal workers synchronise in every step."""
    results = ran(lambda name, step: 2.0 if name == "B/0" and step == 6 else 0.1)
    assert all(trained.steps == [1] * ROUNDS for trained in results.values())


def test_a_save_costs_nobody_the_steps_of_the_round_behind_it(tmp_path: Path) -> None:
    def main(run: LiveRun) -> list[int]:
        model, optimizer = begin(run)
        turns: list[int] = []
        while run.turn <= ROUNDS + 1:
            x, y = parts_of(len(turns), len(run.workers))[place_of(run)]
            sleep(run, STEP_S[run.name])
            turns.append(run.turn)
            descend(model, optimizer, x, y)
            if turns[-1] < ROUNDS // 2 <= run.turn:
                run.save(tmp_path / "checkpoint")
        return Trained({}, turns).steps

    results, _ = train_by("esync", [2, 1], main, {"weight": "equal"}, network=Network(1000.0, 1.0))
    assert min(results["A/1"][3:]) >= 5, results["A/1"]


# -- the decision alone -----------------------------------------------------------------------------------------


def round_of(policy: ESync, turn: int, began: float, steps: dict[str, list[float]]) -> None:
    """Workers tell of steps that end at these times, and contribute behind their last."""
    news = sorted((at, worker, n) for worker, ends in steps.items() for n, at in enumerate(ends, start=1))
    for at, worker, n in news:
        before = steps[worker][n - 2] if n > 1 else began
        policy.stepped(worker, turn, n, at - before, at)
    for worker, ends in steps.items():
        policy.contributed([worker], turn, ends[-1])


def test_what_workers_are_told_before_a_round_and_in_it() -> None:
    policy = ESync(slack=0.0)
    round_of(policy, 1, 0.0, {"A/0": [1.0], "B/0": [4.0]})
    assert policy.closed(1, 4.0) == {"A/0": 4}
    assert policy.closed(1, 4.1) == {}, "of the same round, another slice"
    for n in (1, 2, 3):
        assert policy.stepped("A/0", 2, n, 1.0, 4.0 + n) == {"A/0": 4}
    assert policy.stepped("A/0", 2, 4, 1.0, 8.0) == {"A/0": 4}, "the slowest is late"
    assert policy.stepped("A/0", 2, 5, 1.0, 9.0)["A/0"] == 5, "it went on, and stops now"


def test_whoever_leaves_holds_nobody_up() -> None:
    policy = ESync(slack=0.0)
    round_of(policy, 1, 0.0, {"A/0": [1.0], "A/1": [2.0], "B/0": [9.0]})
    policy.left(["B/0"])
    assert policy.closed(1, 9.0) == {"A/0": 2}


def test_the_bounds_hold() -> None:
    policy = ESync(least=2, most=5)
    round_of(policy, 1, 0.0, {"A/0": [0.1, 0.2], "B/0": [4.0, 8.0]})
    assert policy.closed(1, 8.0) == {"A/0": 5}


def test_a_worker_that_comes_back_is_told_to_go_on() -> None:
    policy = ESync()
    policy.closed(6, 1.0)
    assert policy.stepped("A/0", 4, 3, 1.0, 2.0) == {"A/0": 3}


@pytest.mark.parametrize(
    ("given", "key"),
    [
        ({"least": 0}, "least"),
        ({"most": 1, "least": 2}, "most"),
        ({"slack": 1.0}, "slack"),
        ({"lr": 0.0}, "lr"),
    ],
)
def test_parameters_are_checked(given: dict[str, Any], key: str) -> None:
    with pytest.raises(ConfigError, match=key):
        ESync(**given)
