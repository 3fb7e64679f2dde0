"""`run.resume`: schedules where the run is, with the bits of one that never stopped, and without a warning."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from live_runs import batch, begin, descend, small_model, train
from torch.optim import lr_scheduler
from torch.optim.swa_utils import SWALR

from geomx.errors import Unsupported
from geomx.train import LiveRun

STEPS, TOTAL = 7, 12
Make = Callable[[torch.optim.Optimizer], Any]
SCHEDULES: dict[str, Make] = {
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "MultiplicativeLR": lambda o: lr_scheduler.MultiplicativeLR(o, lambda step: 0.97),
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.7),
    "MultiStepLR": lambda o: lr_scheduler.MultiStepLR(o, [2, 5], 0.7),
    "ConstantLR": lambda o: lr_scheduler.ConstantLR(o, 0.3, 4),
    "LinearLR": lambda o: lr_scheduler.LinearLR(o, 0.1, 1.0, 9),
    "ExponentialLR": lambda o: lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: lr_scheduler.PolynomialLR(o, TOTAL, 2.0),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, TOTAL, 1e-4),
    "CosineAnnealingWarmRestarts": lambda o: lr_scheduler.CosineAnnealingWarmRestarts(o, 2, 2),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=TOTAL + 1),
    "SWALR": lambda o: SWALR(o, 0.05, 5),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.CosineAnnealingLR(o, TOTAL)], [3]
    ),
    "SequentialLR of warm restarts": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.ConstantLR(o, 0.1, 4), lr_scheduler.CosineAnnealingWarmRestarts(o, 3)], [4]
    ),
}


def optimizer_of(model: torch.nn.Module) -> torch.optim.Optimizer:
    first, *others = model.parameters()
    groups = [{"params": [first], "lr": 0.02}, {"params": others}]
    return torch.optim.SGD(groups, lr=0.1, momentum=0.9)


def with_tensor(model: torch.nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)


def rates(optimizer: torch.optim.Optimizer) -> list[tuple[float, Any]]:
    return [(float(group["lr"]), group.get("momentum")) for group in optimizer.param_groups]


def trained(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, schedules: Sequence[Any], steps: range
) -> list[Any]:
    """The rates before each step."""
    found = []
    for step in steps:
        found.append(rates(optimizer))
        x, y = batch(step, 3)
        descend(model, optimizer, x, y)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The epoch parameter")  # SequentialLR itself has torch say so
            for schedule in schedules:
                schedule.step()
    return found


def saved(path: Path, *make: Make, of: Callable[[torch.nn.Module], Any] = optimizer_of) -> list[Any]:
    """The rates of a run that writes a checkpoint behind `STEPS` steps."""

    def script(run: LiveRun) -> list[Any]:
        model, optimizer = begin(run, of)
        schedules = [each(optimizer) for each in make]
        trained(model, optimizer, schedules, range(STEPS))
        run.save(path)
        return trained(model, optimizer, schedules, range(STEPS, TOTAL))

    results, _ = train([], script)
    (found,) = results.values()
    assert isinstance(found, list)
    return found


def resumed(path: Path, script: Callable[[LiveRun, Any], list[Any]]) -> list[Any]:
    """The rates of a run that goes on from there; torch's warnings are errors."""

    def main(run: LiveRun) -> list[Any]:
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            return script(run, small_model())

    results, _ = train([], main)
    (found,) = results.values()
    assert isinstance(found, list)
    return found


@pytest.mark.parametrize(
    ("name", "of"), [*((name, optimizer_of) for name in SCHEDULES), ("ExponentialLR", with_tensor)]
)
def test_a_schedule_goes_on_with_its_bits(name: str, of: Any, tmp_path: Path) -> None:
    """Made before `attach`, behind it, or behind `load`; resumed before `load`, behind it, or twice."""
    path, make = tmp_path / "c", SCHEDULES[name]
    expected = saved(path, make, of=of)

    def script(run: LiveRun, model: Any, order: str) -> list[Any]:
        optimizer = of(model)
        early = make(optimizer) if order == "made before attach" else None
        model, optimizer = run.attach(model, optimizer)
        if order != "resumed before load":
            run.load(path)
        schedule = early or make(optimizer)
        born = rates(optimizer)
        run.resume(schedule)
        if order == "resumed before load":
            assert rates(optimizer) == born
            trained(model, optimizer, [schedule], range(2))
            run.load(path)
        if order == "resumed twice":
            run.resume(schedule)
        return trained(model, optimizer, [schedule], range(STEPS, TOTAL))

    for order in ("resumed twice", "made before attach", "resumed before load"):
        assert resumed(path, partial(script, order=order)) == expected, order


def test_several_schedules_of_one_optimizer_go_on_together(tmp_path: Path) -> None:
    path, both = tmp_path / "c", [SCHEDULES["LinearLR"], SCHEDULES["ExponentialLR"]]
    expected = saved(path, *both)

    def script(run: LiveRun, model: Any) -> list[Any]:
        model, optimizer = run.attach(model, optimizer_of(model))
        run.load(path)
        schedules = [make(optimizer) for make in both]
        run.resume(*schedules)
        with pytest.raises(Unsupported, match=r"pass all in one call, run\.resume\(first, second\)"):
            run.resume(schedules[0])
        return trained(model, optimizer, schedules, range(STEPS, TOTAL))

    assert resumed(path, script) == expected


def test_a_schedule_that_is_not_the_checkpoint_s_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "c"
    saved(path, SCHEDULES["CosineAnnealingLR"])

    def resume(every: Any) -> None:
        def script(run: LiveRun, model: Any) -> list[Any]:
            model, optimizer = run.attach(model, optimizer_of(model))
            run.load(path)
            schedule = SCHEDULES["CosineAnnealingLR"](optimizer)
            schedule.step()  # so that there is something to do for it
            run.resume(schedule, every=every)
            return []

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            train([], lambda run: script(run, small_model()))

    with caplog.at_level(logging.WARNING, "geomx"):
        resume("step")
        assert not caplog.records
        resume("epoch")
    (record,) = caplog.records
    assert "CosineAnnealingLR after 0 steps" in record.getMessage()
    assert "it is another schedule, or not stepped every epoch" in record.getMessage()


def test_what_cannot_be_resumed_is_refused() -> None:
    def script(run: LiveRun) -> None:
        model = small_model()
        optimizer: torch.optim.Optimizer = optimizer_of(model)
        other = torch.optim.SGD(model.parameters(), lr=0.1)
        with pytest.raises(Unsupported, match=r"run\.resume\(\) before run\.attach"):
            run.resume(lr_scheduler.ExponentialLR(optimizer, 0.9))
        model, optimizer = run.attach(model, optimizer)
        for given, told in (
            (lr_scheduler.ReduceLROnPlateau(optimizer), "save and load its state_dict"),
            (lr_scheduler.ExponentialLR(other, 0.9), "to another optimizer"),
            (3, "found a int"),
        ):
            with pytest.raises(Unsupported, match=told):
                run.resume(given)  # type: ignore[arg-type]
        with pytest.raises(Unsupported, match=r"run\.resume\(scheduler\)"):
            run.resume()
        with pytest.raises(Unsupported, match='"step" or "epoch"'):
            run.resume(lr_scheduler.ExponentialLR(optimizer, 0.9), every="batch")  # type: ignore[arg-type]

    train([], script)


def test_a_schedule_that_has_an_end_cannot_go_beyond_it(tmp_path: Path) -> None:
    path = tmp_path / "c"
    saved(path, SCHEDULES["ExponentialLR"])

    def script(run: LiveRun, model: Any) -> list[Any]:
        model, optimizer = run.attach(model, optimizer_of(model))
        run.load(path)
        with pytest.raises(Unsupported, match=r"OneCycleLR after 7 steps .* is not possible"):
            run.resume(lr_scheduler.OneCycleLR(optimizer, 0.1, total_steps=4))
        return []

    resumed(path, script)


def test_an_old_checkpoint_knows_its_epoch_and_not_its_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "c"
    saved(path, SCHEDULES["ExponentialLR"])
    data = path.read_bytes()
    new, old = b', \\"batches\\": [], \\"step\\": 7, \\"first_loss\\": null, \\"absent\\": []}', b"}"
    assert data.count(new) == 1
    path.write_bytes(data.replace(new, old + b" " * (len(new) - len(old))))  # within JSON, in JSON's header

    def script(run: LiveRun, model: Any) -> list[Any]:
        run.attach(model, optimizer_of(model))
        run.load(path)
        return [run.step, run.epoch]

    with caplog.at_level(logging.WARNING, "geomx"):
        assert resumed(path, script) == [0, 0]
    assert "does not say its step" in caplog.text
