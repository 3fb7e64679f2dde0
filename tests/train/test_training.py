"""A run's arithmetic is that of plain PyTorch on the concatenated batches; in float32 the same bits each time."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import (
    assert_alike,
    assert_close,
    assert_equal,
    begin,
    descend,
    joined,
    lockstep,
    parts_of,
    place_of,
    plain,
    sgd,
    small_model,
    train,
    weights,
)
from torch import nn

from geomx.train import LiveRun, Settings

cut = partial(Settings, slice_elements=512, pack_below=100)
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


def in_one_process(make: Optimize, places: int) -> dict[str, torch.Tensor]:
    model = small_model()
    return plain(model, make(groups_of(model)), range(STEPS), places)


def script(
    make: Optimize, dtype: torch.dtype = torch.float64, **options: Any
) -> Callable[[LiveRun], dict[str, torch.Tensor]]:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model(seed=place_of(run), dtype=dtype)  # all begin with the first worker's
        model, optimizer = run.attach(model, make(groups_of(model)), **options)
        lockstep(run, model, optimizer, range(STEPS))
        return weights(model)

    return main


TREES = [([1], 1), ([2, 1], 2), ([1, 2, 1], 1), ([4, 4, 4], 2), ([2], 2)]


@pytest.mark.parametrize(("name", "tree", "place"), each_value(OPTIMIZERS, TREES, ["server", "workers"]))
def test_equals_plain_pytorch(name: str, tree: tuple[list[int], int], place: Any) -> None:
    """No two workers have batches of the same size."""
    parties, shards = tree
    results, _ = train(parties, script(OPTIMIZERS[name]), cut(place=place), shards)
    assert_close(results["A/0"], in_one_process(OPTIMIZERS[name], sum(parties)))
    assert len(results) == sum(parties)
    assert_alike(results)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_in_float32_every_worker_of_every_run_ends_with_the_same_bits(name: str) -> None:
    """Whatever the number of shards; and the hash tells other weights apart."""

    def hashes(shards: int, name: str = name) -> list[str]:
        _, simulator = train([1, 2, 1], script(OPTIMIZERS[name], torch.float32), cut(), shards)
        return [fields["parameters_sha256"] for _, _, fields in simulator.noted("finished")]

    first, again, two_shards = hashes(1), hashes(1), hashes(2)
    assert len(first) == len(two_shards) == 4
    assert len({*first, *again, *two_shards}) == 1
    assert not {*first} & {*hashes(1, "adamw")}


@pytest.mark.parametrize(
    ("name", "options"), [("sgd", {"push_at": "step"}), ("adam", {"overlap": "forward"})]
)
def test_options_do_not_change_the_bits(name: str, options: dict[str, str]) -> None:
    default, _ = train([2, 1], script(OPTIMIZERS[name]), cut())
    other, _ = train([2, 1], script(OPTIMIZERS[name], **options), cut())
    assert_equal(other["B/0"], default["A/0"])


@pytest.mark.parametrize("place", ["server", "workers", "auto"])
def test_clip_norm(place: Any) -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, clip_norm=0.1)
        lockstep(run, model, optimizer, range(STEPS))
        return weights(model)

    model = small_model()
    optimizer = sgd(model)
    for step in range(STEPS):
        x, y = joined(step, 2)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.1) > 0.1
        optimizer.step()
    results, _ = train([1, 1], main, cut(place=place), shards=2)
    assert_close(results["A/0"], weights(model))
    assert_equal(results["A/0"], results["B/0"])


@pytest.mark.parametrize("weight", ["equal", "dataset_size"])
def test_other_weights(weight: Any) -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run)
        descend(model, optimizer, *parts_of(0, 2)[place_of(run)])
        return weights(model)

    model = small_model()
    for x, y in parts_of(0, 2):
        (F.mse_loss(model(x), y) / 2).backward()
    sgd(model).step()
    results, _ = train([1, 1], main, Settings(weight=weight, dataset_size=50))
    assert_close(results["B/0"], weights(model))
