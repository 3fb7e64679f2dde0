"""What is changed behind a run's back after `attach` is refused, where it would be lost without a word."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import assert_equal, batch, descend, small_model, train, weights
from torch import nn
from torch.nn.utils import parametrize, prune
from torch.optim import lr_scheduler

from geomx.errors import GeomxError, Unsupported
from geomx.train import LiveRun, Settings

X, Y = batch(0, 4)
Change = Callable[[nn.Sequential, torch.optim.Optimizer], Any]


def normed() -> nn.Sequential:
    return nn.Sequential(*small_model(), nn.BatchNorm1d(5)).double()


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def begun(run: LiveRun, **options: Any) -> tuple[nn.Sequential, torch.optim.Optimizer]:
    """The script's own model, and an optimizer in the run."""
    model = normed()
    return model, run.attach(model, sgd(model), **options)[1]


def step(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    dtype = next(model.parameters()).dtype
    run.weight(4)
    descend(model, optimizer, X.to(dtype), Y.to(dtype))


def changed(change: Change, **options: Any) -> Callable[[LiveRun], dict[str, torch.Tensor]]:
    """A step, a change, and another step."""

    def script(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begun(run, **options)
        step(run, model, optimizer)
        change(model, optimizer)
        step(run, model, optimizer)
        run.wait()
        return weights(model)

    return script


def clamp(model: nn.Sequential, _: torch.optim.Optimizer) -> None:
    with torch.no_grad():
        model[0].weight.clamp_(-0.01, 0.01)


CHANGES: dict[str, tuple[Change, str]] = {
    "a weight": (clamp, r"0\.weight was changed outside.*copy\.deepcopy"),
    "all weights": (lambda m, _: m.load_state_dict(normed().state_dict()), r"changed outside.*run\.load"),
    "half precision": (lambda m, _: m.half(), r"was float64 .* at attach.*float16.*autocast"),
    "another group": (lambda m, o: o.param_groups.append({**o.param_groups[0], "params": []}), "parameter groups"),
    "a smaller group": (lambda m, o: o.param_groups[0]["params"].pop(), "parameter groups"),
    "text for a learning rate": (lambda m, o: o.param_groups[0].update(lr="fast"), "lr is 'fast'"),
    "no momentum": (lambda m, o: o.param_groups[0].pop("momentum"), "no momentum"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("what", "options"), each_value(CHANGES, [{}, {"push_at": "step"}, {"overlap": "forward"}])
)
def test_changes_that_would_be_lost(what: str, options: dict[str, Any]) -> None:
    change, message = CHANGES[what]
    with pytest.raises(Unsupported, match=message):
        train([1, 1], changed(change, **options))


def test_a_weight_that_changes_between_backward_and_step() -> None:
    def script(run: LiveRun) -> None:
        model, optimizer = begun(run)
        run.weight(4)
        F.mse_loss(model(X), Y).backward()
        clamp(model, optimizer)
        optimizer.step()

    with pytest.raises(Unsupported, match="changed outside"):
        train([1], script)


def test_weights_may_change_where_each_worker_has_its_own_optimizer() -> None:
    model = normed()
    optimizer = sgd(model)
    descend(model, optimizer, X, Y)
    clamp(model, optimizer)
    descend(model, optimizer, X, Y)
    results, _ = train([1], changed(clamp), Settings(place="workers"))
    assert_equal(results["A/0"], weights(model))


def harmless(model: nn.Sequential, optimizer: torch.optim.Optimizer) -> None:
    """Reads, flags, copies, and edits of what is not carried."""
    model.eval()
    model(X)
    model.train()
    model.requires_grad_(False).requires_grad_(True)
    model.to(memory_format=torch.channels_last)
    clamp(copy.deepcopy(model), optimizer)
    model[3].running_mean.zero_()
    model.state_dict()
    optimizer.state_dict()
    optimizer.param_groups[0]["note"] = "of the user's own"


def test_what_changes_no_weight_is_allowed() -> None:
    ours, _ = train([1, 1], changed(harmless, overlap="forward"))
    expected, _ = train([1, 1], changed(lambda *_: None))
    for worker, theirs in expected.items():
        names = [name for name in theirs if "running" not in name and "batches" not in name]
        assert_equal(*({name: values[name] for name in names} for values in (ours[worker], theirs)))


def reshape_buffer(model: nn.Sequential) -> None:
    model[3].running_mean = torch.zeros(6, dtype=torch.float64)


def replace_parameter(model: nn.Sequential) -> None:
    model[0].bias = nn.Parameter(torch.zeros(64, dtype=torch.float64))


SAVED: dict[str, tuple[Callable[[nn.Sequential], Any], str]] = {
    "another buffer": (lambda m: m.register_buffer("late", torch.zeros(2)), ": late;"),
    "no buffer": (lambda m: setattr(m[3], "running_var", None), r": 3\.running_var;"),
    "a buffer of another shape": (reshape_buffer, r": 3\.running_mean;"),
    "another parameter": (replace_parameter, r": 0\.bias;"),
    "pruning": (lambda m: prune.random_unstructured(m[0], "weight", 0.5), r"0\.weight_mask, 0\.weight_orig"),
    "a parametrization": (
        lambda m: parametrize.register_parametrization(m[0], "weight", nn.Identity()), r"0\.parametrizations\.weight",
    ),
}  # fmt: skip


@pytest.mark.parametrize("what", SAVED)
def test_a_model_of_other_tensors_is_not_saved(what: str, tmp_path: Path) -> None:
    change, message = SAVED[what]

    def script(run: LiveRun) -> None:
        model, _ = begun(run)
        change(model)
        run.save(tmp_path / "c")

    with pytest.raises(Unsupported, match=message):
        train([1], script)
    assert not list(tmp_path.iterdir())


def test_an_attached_optimizer_is_not_copied() -> None:
    def script(run: LiveRun) -> None:
        _, optimizer = begun(run)
        for copied in (copy.deepcopy, pickle.dumps):
            with pytest.raises(Unsupported, match="state_dict"):
                copied(optimizer)

    train([1], script)


# -- between backward() and step() ---------------------------------------------------------------------------------


def test_nothing_changes_between_backward_and_step() -> None:
    """Nor is anybody waited for: the others may be late with their gradients."""

    def script(run: LiveRun) -> None:
        model, optimizer = begun(run)
        run.weight(4)
        F.mse_loss(model(X), Y).backward()
        before = weights(model)
        run.wait()
        model.eval()
        model(X)
        model.train()
        assert_equal(weights(model), before)
        with pytest.raises(Unsupported, match=r"call step\(\) first"):
            optimizer.state_dict()
        optimizer.step()
        assert not torch.equal(model[0].weight, before["0.weight"])

    train([1, 1], script)


@pytest.mark.parametrize("who", [{"A/0"}, {"A/0", "B/0"}])
def test_a_backward_at_the_end_changes_nothing(who: set[str]) -> None:
    def script(run: LiveRun) -> tuple[nn.Module, dict[str, torch.Tensor]]:
        model, optimizer = begun(run)
        step(run, model, optimizer)
        if run.name in who:
            run.weight(4)
            F.mse_loss(model(X), Y).backward()
        return model, weights(model)

    results, _ = train([1, 1], script)
    for model, before in results.values():
        assert_equal(weights(model), before)


def test_a_schedule_that_looks_at_different_metrics() -> None:
    def script(run: LiveRun) -> None:
        model, optimizer = begun(run)
        scheduler = lr_scheduler.ReduceLROnPlateau(optimizer, factor=0.5, patience=0)
        for number in range(4):
            step(run, model, optimizer)
            scheduler.step(1.0 / (1 + number) if run.is_first else 1.0)

    for place in ("server", "workers"):
        with pytest.raises(GeomxError, match=r"different hyper-parameters.*average a metric") as caught:
            train([1, 1], script, Settings(place=place))  # type: ignore[arg-type]
        assert getattr(caught.value, "error", None) == "Disagreement"
