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
import torch.nn.functional as F
from live_runs import (
    Make,
    adam,
    apply,
    assert_close,
    assert_equal,
    gradients,
    parts_of,
    place_of,
    samples_of,
    sgd,
    small_model,
    train,
    weights,
)
from torch import nn

from geomx.errors import ConfigError
from geomx.node.port import Allowed
from geomx.simulate.simulator import Network, Simulator
from geomx.sync import policies
from geomx.sync.esync import ESync
from geomx.train import LiveRun, Settings
from geomx.train.calls.collective_client import CollectiveClient

if TYPE_CHECKING:
    from geomx.node.port import Port

ROUNDS = 12
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


def settings(spec: str, **more: Any) -> Settings:
    return Settings(slice_elements=512, pack_below=100, policy=policies.make(spec), **more)


def script(make: Make, step_s: Callable[[str, int], float]) -> Any:
    """Steps of their own length, until all have synchronised so often."""

    def main(run: LiveRun) -> Trained:
        model = small_model(seed=place_of(run))
        model, optimizer = run.attach(model, make(model))
        turns: list[int] = []
        while run.turn <= ROUNDS:
            x, y = parts_of(len(turns), len(run.workers))[place_of(run)]
            run.weight(len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            run._client.port.sleep(step_s(run.name, len(turns)))  # type: ignore[attr-defined]  # of the virtual clock
            turns.append(run.turn)
            optimizer.step()
        return Trained(weights(model), turns)

    return main


def reference(results: dict[str, Trained], make: Make, equal: bool, lr: float) -> nn.Module:
    """The paper's: Δ_i = w_start − w_i over as many steps as each has taken; w ← w_start − lr · mean(Δ)."""
    everyone = len(results)
    in_order = [trained for _, trained in sorted(results.items())]
    start = small_model(seed=0)
    models = [copy.deepcopy(start) for _ in results]
    optimizers = [make(model) for model in models]
    done = [0] * everyone
    for number in range(ROUNDS):
        moved = []
        shares = []
        for place, trained in enumerate(in_order):
            steps = trained.steps[number]
            for _ in range(steps):
                apply(
                    models[place], optimizers[place], gradients(models[place], done[place], [place], everyone)
                )
                done[place] += 1
            moved.append(
                [w.detach() - v.detach() for w, v in zip(*_parameters(start, models[place]), strict=True)]
            )
            shares.append(1.0 if equal else float(steps * samples_of(place)))
        with torch.no_grad():
            for index, parameter in enumerate(start.parameters()):
                mean = sum(share * part[index] for share, part in zip(shares, moved, strict=True)) / sum(
                    shares
                )
                parameter.sub_(lr * mean)
                for model in models:
                    list(model.parameters())[index].copy_(parameter)
    return start


def _parameters(*models: nn.Module) -> list[list[nn.Parameter]]:
    return [list(model.parameters()) for model in models]


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


@pytest.mark.parametrize("make", [sgd, adam])
@pytest.mark.parametrize("spec", ["esync", "esync wait=true", "esync equal=false lr=0.8 least=2"])
def test_esync_is_the_mean_of_how_far_all_have_moved(spec: str, make: Make) -> None:
    results, _ = train(
        [2, 1], script(make, lambda name, _: STEP_S[name]), settings(spec), shards=2, policy=spec
    )
    expected = reference(results, make, "equal=false" not in spec, 0.8 if "lr" in spec else 1.0)
    for trained in results.values():
        assert_close(trained.weights, weights(expected))


@pytest.mark.parametrize("spec", ["esync", "esync wait=true"])
def test_fast_workers_fill_the_slowest_one_s_step(spec: str) -> None:
    network = Network(1000.0, 0.5)  # little beside a step
    results, _ = train(
        [2, 1], script(sgd, lambda name, _: STEP_S[name]), settings(spec), policy=spec, network=network
    )
    assert results["B/0"].steps == [1] * ROUNDS
    assert {*results["A/0"].steps[2:]} <= {3, 4}
    assert {*results["A/1"].steps[2:]} <= {8, 9, 10}


def test_equal_workers_synchronise_in_every_step() -> None:
    results, _ = train([2, 1], script(sgd, lambda *_: 0.1), settings("esync"), policy="esync")
    assert all(trained.steps == [1] * ROUNDS for trained in results.values())


def test_the_way_to_the_server_counts() -> None:
    """Equal workers, one of them behind a slow link: the others train while its weights are under way."""

    def slow(simulator: Simulator, _: Any) -> None:
        simulator.link("B", "global/0", Network(0.5, 20.0))

    results, _ = train([1, 1], script(sgd, lambda *_: 0.05), settings("esync"), policy="esync", faults=slow)
    assert results["B/0"].steps == [1] * ROUNDS
    assert min(results["A/0"].steps[3:]) > 2


def test_the_way_counts_of_models_of_many_slices_too() -> None:
    """The first slice of a round is there long before the last."""

    def unequal(simulator: Simulator, _: Any) -> None:
        simulator.link("A", "global/0", Network(2.0, 10.0))
        simulator.link("B", "global/0", Network(2.0, 10.0))

    step_s = {"A/0": 0.05, "B/0": 0.2}
    results, _ = train(
        [1, 1], script(sgd, lambda name, _: step_s[name]), settings("esync"), policy="esync", faults=unequal
    )
    assert results["B/0"].steps == [1] * ROUNDS
    assert {*results["A/0"].steps[3:]} <= {3, 4}


def test_nobody_takes_fewer_steps_than_the_least() -> None:
    spec = "esync least=3"
    results, _ = train([2, 1], script(sgd, lambda name, _: STEP_S[name]), settings(spec), policy=spec)
    assert results["B/0"].steps == [3] * ROUNDS
    assert min(results["A/0"].steps) >= 3
    assert min(results["A/1"].steps[2:]) >= 20


def test_a_worker_that_becomes_slow_is_noticed() -> None:
    def step_s(name: str, step: int) -> float:
        return 0.1 if name != "B/0" or step < 5 else 0.4

    results, _ = train([1, 1], script(sgd, step_s), settings("esync"), policy="esync")
    assert results["A/0"].steps[:4] == [1] * 4
    assert results["A/0"].steps[-1] in (3, 4)
    assert results["B/0"].steps == [1] * ROUNDS


def test_one_long_pause_makes_no_slow_worker() -> None:
    """An evaluation between two steps, say."""

    def step_s(name: str, step: int) -> float:
        return 2.0 if name == "B/0" and step == 6 else 0.1

    results, _ = train([1, 1], script(sgd, step_s), settings("esync"), policy="esync")
    assert all(trained.steps == [1] * ROUNDS for trained in results.values())


def test_the_end_of_the_data_is_everybody_s() -> None:
    """Fast workers run out of data first, and take part without steps; all end with the same weights."""

    def main(run: LiveRun) -> tuple[int, dict[str, torch.Tensor]]:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        batches = [parts_of(step, len(run.workers))[place_of(run)] for step in range(20)]
        for _ in range(2):
            for x, y in run.shard(batches, over="run"):
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                run._client.port.sleep(STEP_S[run.name])  # type: ignore[attr-defined]
                optimizer.step()
        return run._attached.steps.steps, weights(model)  # type: ignore[union-attr]

    results, _ = train([2, 1], main, settings("esync"), policy="esync")
    (_, first), *others = results.values()
    for _, other in others:
        assert_equal(other, first)


# -- the decision alone -----------------------------------------------------------------------------------------


def round_of(
    policy: ESync, turn: int, began: float, steps: dict[str, list[float]], reach_s: float = 0.0
) -> None:
    """Workers tell of steps that end at these times, and contribute behind their last."""
    news = sorted((at, worker, n) for worker, ends in steps.items() for n, at in enumerate(ends, start=1))
    for at, worker, n in news:
        before = steps[worker][n - 2] if n > 1 else began
        policy.stepped(worker, turn, n, at - before, at)
    for worker, ends in steps.items():
        policy.contributed([worker], turn, ends[-1] + reach_s)


def test_what_workers_are_told_before_a_round() -> None:
    policy = ESync(slack=0.0)
    round_of(policy, 1, 0.0, {"A/0": [1.0], "B/0": [4.0]})
    assert policy.closed(1, 4.0) == {"A/0": 4}
    assert policy.closed(1, 4.1) == {}, "of the same round, another slice"


def test_a_late_slowest_worker_stops_the_others() -> None:
    policy = ESync(slack=0.0)
    round_of(policy, 1, 0.0, {"A/0": [1.0], "B/0": [4.0]})
    policy.closed(1, 4.0)
    for n in (1, 2, 3):
        assert policy.stepped("A/0", 2, n, 1.0, 4.0 + n) == {"A/0": 4}
    assert policy.stepped("A/0", 2, 4, 1.0, 8.0) == {"A/0": 4}
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


def test_a_save_costs_nobody_the_steps_of_the_round_behind_it(tmp_path: Path) -> None:
    def main(run: LiveRun) -> list[int]:
        model = small_model()
        model, optimizer = run.attach(model, sgd(model))
        turns: list[int] = []
        while run.turn <= ROUNDS + 1:
            x, y = parts_of(len(turns), len(run.workers))[place_of(run)]
            F.mse_loss(model(x), y).backward()
            run._client.port.sleep(STEP_S[run.name])  # type: ignore[attr-defined]  # of the virtual clock
            turns.append(run.turn)
            optimizer.step()
            if turns[-1] < ROUNDS // 2 <= run.turn:
                run.save(tmp_path / "checkpoint")
        return Trained({}, turns).steps

    options = settings("esync", weight="equal")
    results, _ = train([2, 1], main, options, policy="esync", network=Network(1000.0, 1.0))
    assert min(results["A/1"][3:]) >= 5, results["A/1"]
