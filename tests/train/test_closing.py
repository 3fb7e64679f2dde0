"""Leaving a loop of local steps before its end: workers that close behind the same step end with the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from exploring import each_value
from live_runs import assert_close, assert_equal, begin, descend, dies, sleep, small_model, weights
from policy_runs import momentum, train_by
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from geomx.errors import NotFinite, RunFailed
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Network
from geomx.train import LiveRun

DATA = TensorDataset(
    *(torch.randn(60, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (20, 5))
)
POLICIES = [
    "hfa k1=4 k2=1", "hfa k1=2 k2=4", "diloco every=4", "diloco every=6 fragments=2 overlap=2", "esync",
    "esync wait=true",
]  # fmt: skip


def normed() -> nn.Module:
    return small_model().insert(1, nn.BatchNorm1d(64).double())


def shared(model: nn.Module) -> dict[str, torch.Tensor]:
    """What workers average: weights and running statistics, and not how many batches these are of."""
    return {name: values for name, values in weights(model).items() if "num_batches" not in name}


def breaks_after(
    steps: int, closes: bool = False, samples: int = 60, make: Callable[[], nn.Module] = small_model
) -> Any:
    data = TensorDataset(*(tensor[:samples] for tensor in DATA.tensors))

    def main(run: LiveRun) -> nn.Module:
        model, optimizer = begin(run, momentum, model=make())
        for step, (x, y) in enumerate(run.shard(DataLoader(data, batch_size=2), over="run"), start=1):
            descend(model, optimizer, x, y)
            if step >= steps:
                break
        if closes:
            run.close()
        return model

    return main


@pytest.mark.parametrize(("policy", "closes"), each_value(POLICIES, [False, True]))
def test_a_loop_that_is_left_amid_a_period(policy: str, closes: bool) -> None:
    results, simulator = train_by(policy, [2, 1], breaks_after(5, closes), {"ledger": True})
    for model in results.values():
        assert_equal(weights(model), weights(results["A/0"]))
    ends = [note.fields for _, _, note in simulator.notes if note.name == "finished"]
    for end in ends:  # each has waited for the count of the last mean, too
        assert end["ledger"] == [other["contributions"] for other in ends]


@pytest.mark.parametrize("place", ["server", "workers"])
def test_every_worker_that_leaves_its_weights_alone_ends_with_a_digest(place: str) -> None:
    _, simulator = train_by("fsa", [2, 1], breaks_after(5), {"place": place})
    ends = [fields for _, _, fields in simulator.noted("finished")]
    assert len({end["parameters_sha256"] for end in ends} - {None}) == 1
    assert not any(end["rewritten"] for end in ends)


@pytest.mark.parametrize("also_before", [False, True])
def test_what_goes_into_later_steps_is_a_result_of_the_run(also_before: bool) -> None:
    """Where the workers hold the weights, a script may write between steps: all of them must then do the same."""
    data = TensorDataset(*(tensor[:20] for tensor in DATA.tensors))

    def main(run: LiveRun) -> None:
        model, optimizer = begin(run, momentum, model=small_model())
        for x, y in run.shard(DataLoader(data, batch_size=2), over="run"):
            descend(model, optimizer, x, y)
            if run.is_first and also_before:
                with torch.no_grad():
                    next(model.parameters()).mul_(2.0)
        if run.is_first:
            with torch.no_grad():
                next(model.parameters()).mul_(2.0)

    _, simulator = train_by("fsa", [2, 1], main, {"place": "workers"})
    first, *others = (fields for _, _, fields in sorted(simulator.noted("finished"), key=node_of))
    assert first["rewritten"] != also_before
    assert (first["parameters_sha256"] is None) != also_before
    assert first["parameters_sha256"] not in {other["parameters_sha256"] for other in others}


@pytest.mark.parametrize("policy", ["fsa", "hfa k1=4 k2=1"])
def test_what_a_script_writes_behind_its_last_step_is_no_result_of_the_run(policy: str) -> None:
    """As where one worker puts its best checkpoint into the model: it has no digest, so is compared with nobody's."""
    trains = breaks_after(5)

    def main(run: LiveRun) -> None:
        model = trains(run)
        if run.is_first:
            with torch.no_grad():
                next(model.parameters()).mul_(2.0)

    _, simulator = train_by(policy, [2, 1], main)
    first, *others = (
        fields["parameters_sha256"] for _, _, fields in sorted(simulator.noted("finished"), key=node_of)
    )
    assert first is None if policy == "fsa" else first == others[0]  # the closing mean has taken it in
    assert others[0] is not None
    assert others[0] == others[1]


def node_of(note: tuple[float, str, Any]) -> str:
    return note[1]


NEAR = ["hfa k1=4 k2=1", "hfa k1=2 k2=4", "diloco every=6 fragments=2 overlap=2", "esync"]


@pytest.mark.parametrize(
    ("policy", "data_ends", "offset"),
    [  # of each policy one end and a third of the places, the others left to `make faults`
        pytest.param(
            policy, ends, n, marks=() if (ends, n) == (place % 2 == 1, place % 3) else pytest.mark.faults
        )
        for place, policy in enumerate(NEAR)
        for ends in (False, True)
        for n in range(3)
    ],
)
def test_a_worker_that_is_killed_near_the_last_mean_ends_with_the_others(
    policy: str, data_ends: bool, offset: int
) -> None:
    """Also where a part of the model has been averaged by then, and the others have left when it comes back."""
    data = TensorDataset(*(tensor[: 6 * 5 if data_ends else 60] for tensor in DATA.tensors))

    def main(run: LiveRun) -> nn.Module:
        model: Any = normed()
        model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.02))
        if run.epoch == 0 and run.step < 5:
            for x, y in run.shard(DataLoader(data, batch_size=2), over="run"):
                sleep(run, 0.1)
                descend(model, optimizer, x, y)
                if run.step >= 5 and not data_ends:
                    break
        run.close()
        return model

    how: dict[str, Any] = {"network": Network(rate_mbps=2.0, delay_ms=2.0), "losses": Losses("wait", 60.0)}
    _, calm = train_by(policy, [2, 1], main, **how)
    ends = min(at for at, _, note in calm.notes if note.name == "left")
    for place in range(offset, 12, 3):
        at_s = ends - 0.015 * place
        faults = dies(("A/1", "B/0")[place % 2], at_s=at_s, back_s=at_s)
        results, _ = train_by(policy, [2, 1], main, faults=faults, **how)
        for model in results.values():
            assert_equal(shared(model), shared(results["A/0"]))


@pytest.mark.parametrize("steps", [4, 6, 1000])
@pytest.mark.parametrize("policy", ["diloco every=30 fragments=5 overlap=5", "diloco every=4 overlap=2"])
def test_statistics_are_common_where_nobody_has_trained_since_their_last_mean(
    policy: str, steps: int
) -> None:
    """That mean was taken in as a mixture with a worker's own. The data has six steps."""
    results, _ = train_by(policy, [2, 1], breaks_after(steps, closes=True, samples=36, make=normed))
    for model in results.values():
        assert_equal(shared(model), shared(results["A/0"]))


def test_whoever_cannot_take_part_in_the_last_mean_ends_the_run() -> None:
    """The end of the `with` block closes the run of A/1, whose weights are lost."""
    told: dict[str, RunFailed] = {}

    def main(run: LiveRun) -> None:
        model = breaks_after(5)(run)
        if run.name == "A/1":
            with torch.no_grad():
                model[0].weight[0] = math.nan
            return
        try:
            run.close()
        except RunFailed as error:
            told[run.name] = error
            raise

    with pytest.raises(NotFinite, match=r"A/1: the pseudo-gradient of 0\.weight holds NaN"):
        train_by("hfa k1=4 k2=1", [2, 1], main)
    assert {name: error.node for name, error in told.items()} == {"A/0": "A/1", "B/0": "A/1"}


@pytest.mark.parametrize("policy", ["hfa k1=4 k2=1", "diloco every=6 fragments=2 overlap=2", "esync"])
def test_a_run_is_closed_before_its_first_step_and_more_than_once(policy: str) -> None:
    """A/1 learns nothing, and the others do without it."""

    def main(run: LiveRun) -> nn.Module:
        if run.name == "A/1":
            model, _ = begin(run, momentum)
        else:
            model = breaks_after(5)(run)
        run.close()
        run.close()
        return model

    results, _ = train_by(policy, [2, 1], main)
    assert_equal(weights(results["A/1"]), weights(small_model()))
    assert_equal(weights(results["A/0"]), weights(results["B/0"]))


def test_its_steps_since_the_last_mean_count() -> None:
    """Four steps are exchanged; the fifth is averaged as the run closes."""
    results, _ = train_by("hfa k1=4 k2=1", [1, 1], breaks_after(5))
    copies = [small_model(), small_model()]
    optimizers = [momentum(copy) for copy in copies]
    for step in range(5):
        for place, (copy, optimizer) in enumerate(zip(copies, optimizers, strict=True)):
            taken = [4 * step + place, 4 * step + 2 + place]
            descend(copy, optimizer, *DATA[taken])
        if step in (3, 4):
            one, two = weights(copies[0]), weights(copies[1])
            for copy in copies:
                copy.load_state_dict({name: (one[name] + two[name]) / 2 for name in one})
    assert_close(weights(results["A/0"]), weights(copies[0]))


def test_what_downpour_has_not_pushed_goes_up_before_a_worker_leaves() -> None:
    results, _ = train_by("downpour n_push=50 n_fetch=50", [1], breaks_after(5))
    plain = weights(small_model())
    assert not torch.equal(weights(results["A/0"])["0.weight"], plain["0.weight"])
    pushed, _ = train_by("downpour n_push=5 n_fetch=5", [1], breaks_after(5))
    assert_equal(weights(results["A/0"]), weights(pushed["A/0"]))


def test_a_loop_that_has_ended_is_not_averaged_once_more() -> None:
    _, ended = train_by("hfa k1=4 k2=1", [1, 1], breaks_after(1000))
    turns = [note.fields["turn"] for _, _, note in ended.notes if note.name == "left"]
    assert set(turns) == {4}  # 15 steps: three periods and what is left; turn 0 is attach


@pytest.mark.parametrize(
    ("spec", "leaves"),
    each_value(POLICIES, [{"A/0": 5, "A/1": 9, "B/0": 7}, {"A/0": 100, "A/1": 100, "B/0": 3}]),
)
def test_workers_that_leave_at_different_steps_disturb_nobody(spec: str, leaves: dict[str, int]) -> None:
    """Who leaves first takes part in what the others do until its steps are in a mean over the run."""
    results, _ = train_by(spec, [2, 1], lambda run: breaks_after(leaves[run.name])(run), {"ledger": True})
    assert results.keys() == leaves.keys()
    if leaves["A/0"] == leaves["A/1"]:
        assert_equal(weights(results["A/0"]), weights(results["A/1"]))
