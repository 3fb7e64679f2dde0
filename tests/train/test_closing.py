"""Leaving a loop of local steps before its end: workers that close behind the same step end with the same weights."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import assert_close, assert_equal, small_model, train, weights
from policy_runs import momentum, settings
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from geomx.errors import NotFinite, RunFailed
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Network, Simulator
from geomx.sync import policies
from geomx.train import LiveRun

DATA = TensorDataset(
    *(torch.randn(60, n, dtype=torch.float64, generator=torch.Generator().manual_seed(n)) for n in (20, 5))
)


def breaks_after(steps: int, closes: bool = False) -> Any:
    def main(run: LiveRun) -> nn.Module:
        model = small_model()
        model, optimizer = run.attach(model, momentum(model))
        for step, (x, y) in enumerate(run.shard(DataLoader(DATA, batch_size=2), over="run"), start=1):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if step >= steps:
                break
        if closes:
            run.close()
        return model

    return main


@pytest.mark.parametrize("closes", [False, True])
@pytest.mark.parametrize(
    "policy",
    [
        "hfa k1=4 k2=1",
        "hfa k1=2 k2=4",
        "diloco every=4",
        "diloco every=6 fragments=2 overlap=2",
        "esync",
        "esync wait=true",
    ],
)
def test_a_loop_that_is_left_amid_a_period(policy: str, closes: bool) -> None:
    results, simulator = train(
        [2, 1], breaks_after(5, closes), settings(policies.make(policy), ledger=True), policy=policy
    )
    for model in results.values():
        assert_equal(weights(model), weights(results["A/0"]))
    ends = [note.fields for _, _, note in simulator.notes if note.name == "finished"]
    for end in ends:  # each has waited for the count of the last mean, too
        assert end["ledger"] == [other["contributions"] for other in ends]


@pytest.mark.parametrize(
    "policy", ["hfa k1=4 k2=1", "hfa k1=2 k2=4", "diloco every=6 fragments=2 overlap=2", "esync"]
)
@pytest.mark.parametrize("data_ends", [False, True])
def test_a_worker_that_is_killed_near_the_last_mean_ends_with_the_others(
    policy: str, data_ends: bool
) -> None:
    """Also where a part of the model has been averaged by then, and the others have left when it comes back."""
    data = TensorDataset(*(tensor[: 6 * 5 if data_ends else 60] for tensor in DATA.tensors))

    def main(run: LiveRun) -> nn.Module:
        plain = small_model()
        model = nn.Sequential(plain[0], nn.BatchNorm1d(64).double(), plain[1], plain[2])
        model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.02))
        if run.epoch == 0 and run.step < 5:
            for x, y in run.shard(DataLoader(data, batch_size=2), over="run"):
                run._client.port.sleep(0.1)  # type: ignore[attr-defined]  # of the virtual clock
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
                if run.step >= 5 and not data_ends:
                    break
        run.close()
        return model

    how: dict[str, Any] = {
        "policy": policy,
        "network": Network(rate_mbps=2.0, delay_ms=2.0),
        "losses": Losses("wait", 60.0),
    }
    _, calm = train([2, 1], main, settings(policies.make(policy)), **how)
    ends = min(at for at, _, note in calm.notes if note.name == "left")
    for place in range(12):
        faults = partial(killed, victim=("A/1", "B/0")[place % 2], at_s=ends - 0.015 * place)
        results, _ = train([2, 1], main, settings(policies.make(policy)), faults=faults, **how)
        first = shared(results["A/0"])
        for model in results.values():
            assert_equal(shared(model), first)


@pytest.mark.parametrize("steps", [4, 6, 1000])
@pytest.mark.parametrize("policy", ["diloco every=30 fragments=5 overlap=5", "diloco every=4 overlap=2"])
def test_statistics_are_common_where_nobody_has_trained_since_their_last_mean(
    policy: str, steps: int
) -> None:
    """That mean was taken in as a mixture with a worker's own."""
    data = TensorDataset(*(tensor[:36] for tensor in DATA.tensors))  # six steps

    def main(run: LiveRun) -> nn.Module:
        plain = small_model()
        model = nn.Sequential(plain[0], nn.BatchNorm1d(64).double(), plain[1], plain[2])
        model, optimizer = run.attach(model, momentum(model))
        for step, (x, y) in enumerate(run.shard(DataLoader(data, batch_size=2), over="run"), start=1):
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
            if step >= steps:
                break
        run.close()
        return model

    results, _ = train([2, 1], main, settings(policies.make(policy)), policy=policy)
    for model in results.values():
        assert_equal(shared(model), shared(results["A/0"]))


def killed(simulator: Simulator, restart: Callable[[str], None], victim: str, at_s: float) -> None:
    """And started again."""
    simulator.at(at_s, lambda: simulator.crash(victim))
    simulator.at(at_s, lambda: restart(victim))


def shared(model: nn.Module) -> dict[str, torch.Tensor]:
    """What workers average: weights and running statistics, and not how many batches these are of."""
    return {name: values for name, values in weights(model).items() if "num_batches" not in name}


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
        train([2, 1], main, settings(policies.make("hfa k1=4 k2=1")), policy="hfa k1=4 k2=1")
    assert {name: error.node for name, error in told.items()} == {"A/0": "A/1", "B/0": "A/1"}


@pytest.mark.parametrize("policy", ["hfa k1=4 k2=1", "diloco every=6 fragments=2 overlap=2", "esync"])
def test_a_run_is_closed_before_its_first_step_and_more_than_once(policy: str) -> None:
    """A/1 learns nothing, and the others do without it."""

    def main(run: LiveRun) -> nn.Module:
        if run.name == "A/1":
            model = small_model()
            run.attach(model, momentum(model))
        else:
            model = breaks_after(5)(run)
        run.close()
        run.close()
        return model

    results, _ = train([2, 1], main, settings(policies.make(policy)), policy=policy)
    assert_equal(weights(results["A/1"]), weights(small_model()))
    assert_equal(weights(results["A/0"]), weights(results["B/0"]))


def test_its_steps_since_the_last_mean_count() -> None:
    """Four steps are exchanged; the fifth is averaged as the run closes."""
    spec = "hfa k1=4 k2=1"
    results, _ = train([1, 1], breaks_after(5), settings(policies.make(spec)), policy=spec)
    model = small_model()
    copies = []
    starts = weights(model)
    optimizers = []
    for _ in range(2):
        copies.append(small_model())
        optimizers.append(momentum(copies[-1]))
    batches = list(DataLoader(DATA, sampler=range(60), batch_size=1))
    for step in range(5):
        for place, (copy, optimizer) in enumerate(zip(copies, optimizers, strict=True)):
            taken = [batches[2 * (2 * step + k) + place] for k in range(2)]
            x, y = (torch.cat([sample[part] for sample in taken]) for part in (0, 1))
            optimizer.zero_grad()
            F.mse_loss(copy(x), y).backward()
            optimizer.step()
        if step in (3, 4):
            one, two = weights(copies[0]), weights(copies[1])
            for copy in copies:
                copy.load_state_dict({name: (one[name] + two[name]) / 2 for name in starts})
    assert_close(weights(results["A/0"]), weights(copies[0]))


def test_what_downpour_has_not_pushed_goes_up_before_a_worker_leaves() -> None:
    spec = "downpour n_push=50 n_fetch=50"
    results, _ = train([1], breaks_after(5), settings(policies.make(spec)), policy=spec)
    plain = small_model()
    assert any(
        not torch.equal(values, weights(plain)[name]) for name, values in weights(results["A/0"]).items()
    )
    pushed, _ = train(
        [1],
        breaks_after(5),
        settings(policies.make("downpour n_push=5 n_fetch=5")),
        policy="downpour n_push=5 n_fetch=5",
    )
    assert_equal(weights(results["A/0"]), weights(pushed["A/0"]))


def test_a_loop_that_has_ended_is_not_averaged_once_more() -> None:
    spec = "hfa k1=4 k2=1"
    _, ended = train([1, 1], breaks_after(1000), settings(policies.make(spec)), policy=spec)
    turns = [note.fields["turn"] for _, _, note in ended.notes if note.name == "left"]
    assert set(turns) == {4}  # 15 steps: three periods and what is left; turn 0 is attach


def test_workers_that_leave_at_different_steps_disturb_nobody() -> None:
    """Who leaves first takes part in what the others do until its steps are in a mean over the run."""
    specs = (
        "hfa k1=2 k2=4",
        "hfa k1=4 k2=1",
        "diloco every=4",
        "diloco every=6 fragments=2 overlap=2",
        "esync",
        "esync wait=true",
    )
    for leaves in ({"A/0": 5, "A/1": 9, "B/0": 7}, {"A/0": 100, "A/1": 100, "B/0": 3}):
        for spec in specs:

            def main(run: LiveRun, leaves: dict[str, int] = leaves) -> nn.Module:
                return breaks_after(leaves[run.name])(run)

            results, _ = train([2, 1], main, settings(policies.make(spec), ledger=True), policy=spec)
            assert results.keys() == leaves.keys()
            if leaves["A/0"] == leaves["A/1"]:
                assert_equal(weights(results["A/0"]), weights(results["A/1"]))
