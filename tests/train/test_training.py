"""A run's arithmetic is that of plain PyTorch on the concatenated batches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from live_runs import assert_close, assert_equal, joined, parts_of, place_of, small_model, train, weights
from torch import nn

from geomx.train import LiveRun, Settings

CUT = Settings(slice_elements=512, pack_below=100)
Optimize = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]
OPTIMIZERS: dict[str, Optimize] = {
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=0.01),
    "nesterov": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01, amsgrad=True),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, betas=(0.8, 0.99)),
    "adagrad": lambda p: torch.optim.Adagrad(p, lr=0.05, initial_accumulator_value=0.1),
    "nadam": lambda p: torch.optim.NAdam(p, lr=0.01),
}
STEPS = 8


def groups_of(model: nn.Module) -> list[dict[str, Any]]:
    """Two parameter groups with different hyper-parameters."""
    biases = [p for name, p in model.named_parameters() if "bias" in name]
    others = [p for name, p in model.named_parameters() if "bias" not in name]
    return [{"params": others}, {"params": biases, "weight_decay": 0.0, "lr": 0.02}]


def plain(make: Optimize, places: int, steps: int = STEPS) -> dict[str, torch.Tensor]:
    model = small_model()
    optimizer = make(groups_of(model))
    for step in range(steps):
        x, y = joined(step, places)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return weights(model)


def script(make: Optimize, **options: Any) -> Callable[[LiveRun], dict[str, torch.Tensor]]:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        place = place_of(run)
        model = small_model(seed=place)  # all begin with the first worker's
        model, optimizer = run.attach(model, make(groups_of(model)), **options)
        for step in range(STEPS):
            x, y = parts_of(step, len(run.workers))[place]
            run.weight(len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        return weights(model)

    return main


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize(("parties", "shards"), [([1], 1), ([2, 1], 2), ([1, 2, 1], 1)])
def test_equals_plain_pytorch(name: str, parties: list[int], shards: int) -> None:
    results, _ = train(parties, script(OPTIMIZERS[name]), CUT, shards)
    expected = plain(OPTIMIZERS[name], sum(parties))
    for ours in results.values():
        assert_close(ours, expected)
    first, *others = results.values()
    for other in others:
        assert_equal(other, first)


@pytest.mark.parametrize("name", ["sgd", "adam"])
@pytest.mark.parametrize("options", [{"push_at": "step"}, {"overlap": "forward"}])
def test_options_do_not_change_the_bits(name: str, options: dict[str, str]) -> None:
    default, _ = train([2, 1], script(OPTIMIZERS[name]), CUT)
    other, _ = train([2, 1], script(OPTIMIZERS[name], **options), CUT)
    assert_equal(other["B/0"], default["A/0"])


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_optimizer_on_the_workers(name: str) -> None:
    settings = Settings(slice_elements=512, pack_below=100, place="workers")
    results, _ = train([2, 1], script(OPTIMIZERS[name]), settings)
    assert_close(results["A/1"], plain(OPTIMIZERS[name], 3))
    assert_equal(results["A/0"], results["B/0"])


def test_a_subclass_runs_on_the_workers() -> None:
    class Own(torch.optim.SGD):
        def step(self, closure: Any = None) -> Any:
            with torch.no_grad():
                for group in self.param_groups:
                    for parameter in group["params"]:
                        parameter.sub_(group["lr"] * parameter.grad.sign())

    def make(groups: Any) -> torch.optim.Optimizer:
        return Own(groups, lr=0.01)

    results, _ = train([1, 1], script(make))
    assert_close(results["B/0"], plain(make, 2))


@pytest.mark.parametrize("place", ["server", "workers", "auto"])
def test_clip_norm(place: str) -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model()
        model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.5), clip_norm=0.1)
        for step in range(STEPS):
            x, y = parts_of(step, 2)[place_of(run)]
            run.weight(len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        return weights(model)

    model = small_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for step in range(STEPS):
        x, y = joined(step, 2)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1
        optimizer.step()
    settings = Settings(slice_elements=512, pack_below=100, place=place)  # type: ignore[arg-type]
    results, _ = train([1, 1], main, settings, shards=2)
    assert_close(results["A/0"], weights(model))
    assert_equal(results["A/0"], results["B/0"])


@pytest.mark.parametrize("weight", ["equal", "dataset_size"])
def test_other_weights(weight: str) -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model()
        model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
        x, y = parts_of(0, 2)[place_of(run)]
        F.mse_loss(model(x), y).backward()
        optimizer.step()
        return weights(model)

    model = small_model()
    for x, y in parts_of(0, 2):
        (F.mse_loss(model(x), y) / 2).backward()
    torch.optim.SGD(model.parameters(), lr=0.1).step()
    results, _ = train([1, 1], main, Settings(weight=weight, dataset_size=50))  # type: ignore[arg-type]
    assert_close(results["B/0"], weights(model))


def test_alone_is_plain_pytorch_bit_for_bit() -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model(dtype=torch.float32)
        model, optimizer = run.attach(model, torch.optim.Adam(model.parameters(), lr=0.01, foreach=False))
        for step in range(STEPS):
            x, y = joined(step, 2, torch.float32)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        return weights(model)

    model = small_model(dtype=torch.float32)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01, foreach=False)
    for step in range(STEPS):
        x, y = joined(step, 2, torch.float32)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    results, _ = train([], main, CUT)
    assert_equal(results["solo/0"], weights(model))


def test_the_ledger_counts_every_step() -> None:
    def main(run: LiveRun) -> torch.Tensor:
        script(OPTIMIZERS["sgd"])(run)
        assert run.ledger is not None
        return run.ledger

    results, _ = train([2, 1], main, Settings(ledger=True))
    for ledger in results.values():
        assert ledger.tolist() == [STEPS] * 3
