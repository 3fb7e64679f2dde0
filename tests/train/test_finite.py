"""NaN and Inf in what a worker contributes: who is named, and what is left of a step that skips them."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from exploring import each_value
from finite_runs import (
    BAD_STEP,
    BAD_WORKER,
    CODECS,
    NUMBERS,
    STEPS,
    WORDS,
    Script,
    assert_same_runs,
    settings,
    told,
    weightless,
    without_the_slice,
)
from live_runs import assert_equal, begin, place_of, sgd, small_model, train, weights
from torch import nn

from geomx.errors import GeomxError, NotFinite, RunFailed
from geomx.node.topology import Edge
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import LiveRun


def run(
    script: Any, parties: Sequence[int] = (2, 1), policy: str = "fsa", **given: Any
) -> tuple[Any, Simulator]:
    return train(parties, script, settings(**given, policy=policies.make(policy)), policy=policy)


@pytest.mark.parametrize(("codec", "value"), each_value(CODECS, NUMBERS))
def test_the_worker_that_made_it_is_named_with_parameter_and_step(codec: str, value: float) -> None:
    word = WORDS.get(value, "NaN")
    with pytest.raises(GeomxError) as caught:
        train([2, 1], Script(value), settings(codec, "stop"), lan=Edge(codec, codec), wan=Edge(codec, codec))
    assert isinstance(caught.value, NotFinite)
    text = str(caught.value)
    assert f"A/1: the gradient of 2.bias holds {word} in step 2 (turn 2). Check the loss" in text


@pytest.mark.parametrize(("codec", "value", "push_at"), each_value(CODECS, NUMBERS, ["backward", "step"]))
def test_skipped_is_as_if_it_had_weighed_nothing(codec: str, value: float, push_at: str) -> None:
    """Bit for bit: weights, what codecs hold back, the optimizer's momentum; and every step is counted."""
    edges = {"lan": Edge(codec, codec), "wan": Edge(codec, codec)}
    script = Script(value)
    ours, simulator = train([2, 1], script, settings(codec, push_at=push_at), **edges)
    instead = weightless if push_at == "step" else without_the_slice
    theirs, _ = train([2, 1], Script(None, instead), settings(codec, push_at=push_at), **edges)
    assert_same_runs(ours, theirs)
    assert script.ledgers == [[STEPS] * 3] * 3
    word = WORDS.get(value, "NaN")
    ((node, fields),) = told(simulator)
    assert node == BAD_WORKER
    assert fields["step"] == BAD_STEP + 1
    assert fields["part"] == ("all" if push_at == "step" else "1 slice")
    assert f"the gradient of 2.bias holds {word}" in fields["what"]


@pytest.mark.parametrize(
    "more", [{"place": "workers"}, {"overlap": "forward"}, {"clip_norm": 0.1}, {"shards": 2}]
)
def test_skipped_wherever_the_optimizer_runs_and_whoever_waits(more: dict[str, Any]) -> None:
    shards, attach = more.pop("shards", 1), {k: more.pop(k) for k in ["clip_norm"] if k in more}
    results = [
        train([2, 1], Script(value, instead, attach=attach), settings(push_at="step", **more), shards)[0]
        for value, instead in ((math.nan, lambda *_: None), (None, weightless))
    ]
    assert_same_runs(*results)


@pytest.mark.parametrize(
    ("parties", "policy", "place"),
    [
        ([2, 1], "fsa", "server"),
        ([2, 1], "fsa", "workers"),
        ([2, 1], "mixed", "server"),
        ([], "fsa", "server"),
    ],
)
def test_where_all_skip_nothing_changes(parties: list[int], policy: str, place: str) -> None:
    script = Script(math.inf, everywhere=True)
    run(script, parties, policy, push_at="step", place=place)
    for behind in script.behind.values():
        assert_equal(behind[BAD_STEP], behind[BAD_STEP - 1])
        assert not torch.equal(behind[BAD_STEP + 1]["2.bias"], behind[BAD_STEP]["2.bias"])
    if parties and policy == "fsa":
        assert script.ledgers == [[STEPS] * 3] * 3


class Spoilt:
    """A loop of 30 steps, all of whose gradients are NaN behind so many, on all workers or on one. `last`: the step."""

    def __init__(self, after: int, everywhere: bool = True) -> None:
        self.after, self.everywhere, self.last = after, everywhere, -1

    def __call__(self, run: LiveRun) -> None:
        model, optimizer = begin(run)
        for step in range(30):
            run.weight(2)
            loss = model(torch.ones(2, 20, dtype=torch.float64)).square().mean()
            is_nan = step >= self.after and (self.everywhere or run.name == BAD_WORKER)
            optimizer.zero_grad()
            (loss * (math.nan if is_nan else 1.0)).backward()
            optimizer.step()
            self.last = max(self.last, step)


@pytest.fixture
def _impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("geomx.node.slices.finite.MOST_SKIPPED", 4)


@pytest.mark.usefixtures("_impatient")
def test_a_run_in_which_nobody_contributes_any_more_ends() -> None:
    script = Spoilt(after=3)
    told = r"failed at global/0: every worker's .* was left out in 4 steps in a row, up to step 7 \(turn 7\)"
    with pytest.raises(RunFailed, match=told):
        train([2, 1], script, settings(), skips=True)
    assert script.last == 5


@pytest.mark.usefixtures("_impatient")
@pytest.mark.parametrize("policy", ["mixed", "downpour", "hfa k1=1 k2=1"])
def test_so_does_one_whose_parties_do_not_wait_for_each_other(policy: str) -> None:
    script = Spoilt(after=0)
    with pytest.raises(GeomxError, match="left out in 4 steps in a row"):
        train([2, 1], script, settings(policy=policies.make(policy)), policy=policy, skips=True)
    assert 2 <= script.last < 12  # not after a step of each of four cohorts, and not never


@pytest.mark.usefixtures("_impatient")
def test_one_worker_that_does_not_contribute_ends_nothing() -> None:
    script = Spoilt(after=3, everywhere=False)
    train([2, 1], script, settings(), skips=True)
    assert script.last == 29


def test_micro_batches_that_were_accumulated_are_found_with_the_last() -> None:
    def script(run: LiveRun) -> None:
        model, optimizer = begin(run, model=small_model(dtype=torch.float32))
        run.weight(2)
        with run.accumulate():
            (model(torch.ones(1, 20)).sum() * math.inf).backward()
        model(torch.ones(1, 20)).sum().backward()
        optimizer.step()

    told = r"[AB]/0: the gradient of 2.(weight|bias).* holds (-?Inf|NaN) in step 1"
    with pytest.raises(NotFinite, match=told):
        run(script, [1, 1], on_nonfinite="stop")


def test_a_worker_that_skips_beside_one_that_has_ended() -> None:
    """Nobody contributes to the second step: A/0 skips it, and A/1 has had one batch."""

    def script(run: LiveRun) -> tuple[list[dict[str, torch.Tensor]], list[int]]:
        model, optimizer = begin(run, model=small_model(dtype=torch.float32))
        behind = []
        for step, x in enumerate(run.shard([torch.ones(2, 20)] * 3)):
            optimizer.zero_grad()
            (model(x).square().mean() * (math.nan if step else 1.0)).backward()
            optimizer.step()
            behind.append(weights(model))
        assert run.ledger is not None
        return [*behind, weights(model)], run.ledger.tolist()

    results, simulator = run(script, [2], push_at="step")
    for behind, ledger in results.values():
        assert_equal(behind[-1], behind[0])
        assert ledger == [2, 2]
    assert [node for node, _ in told(simulator)] == ["A/0"]


# -- other policies --------------------------------------------------------------------------------------------------


def drop(model: nn.Module) -> None:
    """As if `backward()` had not been."""
    for parameter in model.parameters():
        parameter.grad = None


POLICIES = [
    "mixed", "hfa k1=1 k2=2", "diloco every=2", "diloco every=4 fragments=2 overlap=1", "esync wait=true", "downpour",
]  # fmt: skip


@pytest.mark.parametrize("policy", POLICIES)
def test_skipped_with_other_policies(policy: str) -> None:
    compared = Script(None, weightless, drop, sgd)
    if policy == "mixed":
        compared = Script(None, weightless, make=sgd)
    elif policy == "downpour":
        compared = Script(None, then=drop, make=sgd)
    ours, simulator = run(Script(math.nan, make=sgd), policy=policy, push_at="step")
    theirs, undisturbed = run(compared, policy=policy, push_at="step")
    assert_same_runs(ours, theirs)
    assert [(node, fields["part"]) for node, fields in told(simulator)] == [(BAD_WORKER, "all")]
    assert told(undisturbed) == []


def spoil_weights(_: LiveRun, model: nn.Module) -> None:
    with torch.no_grad():
        model[2].bias[3] = math.nan  # type: ignore[index]


@pytest.mark.parametrize(
    "policy", ["hfa k1=1 k2=1", "hfa k1=1 k2=2", "diloco every=1", "diloco every=4 fragments=2 overlap=1"]
)
def test_a_worker_whose_own_weights_are_lost_goes_on_from_the_others(policy: str) -> None:
    script = Script(None, spoil_weights, make=sgd, steps=8)
    results, simulator = run(script, policy=policy)
    for found in results.values():
        assert all(bool(w.isfinite().all()) for w in found.values())
    assert {node for node, _ in told(simulator)} == {BAD_WORKER}
    assert script.ledgers[1:] == script.ledgers[:-1]


@pytest.mark.parametrize("policy", ["hfa", "downpour", "mixed"])
def test_other_policies_name_the_step_in_which_it_was_made(policy: str) -> None:
    with pytest.raises(NotFinite, match=r"A/1: the gradient of 2.bias holds NaN in step 2 "):
        run(Script(math.nan), policy=policy, on_nonfinite="stop")


def test_a_buffer_may_hold_inf_and_no_nan_where_it_is_averaged() -> None:
    class Masked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = nn.Linear(4, 4)
            self.register_buffer("mask", torch.tensor([0.0, -math.inf]))
            self.register_buffer("mean", torch.ones(2))

    def script(run: LiveRun) -> list[float]:
        model, optimizer = begin(run, model=Masked())
        if run.name == "A/0":
            model.mean[0] = math.nan
        run.weight(1)
        model.inner(torch.ones(1, 4)).sum().backward()
        optimizer.step()
        return model.mask.tolist() + model.mean.tolist()

    results, simulator = run(script, [1, 1], "diloco every=1", buffers="average", pack_below=1)
    assert list(results.values()) == [[0.0, -math.inf, 1.0, 1.0]] * 2
    ((node, fields),) = told(simulator)
    assert (node, fields["what"]) == ("A/0", "the local mean holds NaN")


@pytest.mark.parametrize(("value", "on_nonfinite"), each_value(NUMBERS, ["skip", "stop"]))
def test_a_running_statistic_that_is_not_finite_reaches_nobody(value: float, on_nonfinite: str) -> None:
    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, model=nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4)))
        run.weight(1)
        x = torch.randn(8, 4, generator=torch.Generator().manual_seed(place_of(run)))
        model(x).square().sum().backward()
        if run.name == "A/0":
            model[1].running_var[2] = value  # type: ignore[index]
        optimizer.step()
        return weights(model)

    what = f"the local 1.running_var holds {WORDS.get(value, 'NaN')}"
    if on_nonfinite == "stop":
        with pytest.raises(NotFinite, match=rf"A/0: {re.escape(what)} in step 1 "):
            run(script, [1, 1], "diloco every=1", on_nonfinite="stop")
        return
    results, simulator = run(script, [1, 1], "diloco every=1")
    assert_equal(results["A/0"], results["B/0"])
    assert all(bool(values.isfinite().all()) for values in results["A/0"].values())
    ((node, fields),) = told(simulator)
    assert (node, fields["what"]) == ("A/0", what)


@pytest.mark.parametrize(("value", "on_nonfinite"), each_value(NUMBERS, ["stop", "skip"]))
def test_weights_that_are_not_finite_are_no_beginning(value: float, on_nonfinite: str) -> None:
    """Else they would be everybody's, and whoever computes first would be blamed for its gradients."""

    def script(run: LiveRun) -> None:
        model = small_model(seed=0)
        if run.name == "A/0":
            with torch.no_grad():
                next(model.parameters())[3, 4] = value
        run.attach(model, sgd(model))

    text = rf"A/0: 0\.weight holds {WORDS.get(value, 'NaN')} in attach\(\): begin with finite weights"
    with pytest.raises(NotFinite, match=text):
        train([2, 1], script, settings(on_nonfinite=on_nonfinite))
