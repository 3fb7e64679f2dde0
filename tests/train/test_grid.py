"""A run of any size computes what one process would; in float32 the same bits each time, over one shard or two."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from exploring import pairwise
from live_runs import assert_close, joined, parts_of, place_of, small_model, train, weights
from torch import nn

from geomx.train import LiveRun, Settings

CUT = Settings(slice_elements=512, pack_below=100)
ROUNDS = 20
OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "SGD": lambda model: torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9),
    "Adam": lambda model: torch.optim.Adam(model.parameters(), lr=0.01),
    "AdamW": lambda model: torch.optim.AdamW(model.parameters(), lr=0.01),
}


def rounds(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    batches: Callable[[int], tuple[torch.Tensor, torch.Tensor]],
) -> dict[str, torch.Tensor]:
    for step in range(ROUNDS):
        x, y = batches(step)
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()
    return weights(model)


@functools.cache
def in_one_process(name: str, workers: int) -> dict[str, torch.Tensor]:
    model = small_model()
    return rounds(model, OPTIMIZERS[name](model), lambda step: joined(step, workers))


def script(name: str, dtype: torch.dtype) -> Callable[[LiveRun], dict[str, torch.Tensor]]:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
            x, y = parts_of(step, len(run.workers), dtype)[place_of(run)]
            run.weight(len(x))
            return x, y

        model = small_model(seed=place_of(run), dtype=dtype)
        return rounds(*run.attach(model, OPTIMIZERS[name](model)), batches)

    return main


@pytest.mark.parametrize(
    ("name", "workers", "parties", "shards"), pairwise(OPTIMIZERS, [1, 2, 4], [1, 2, 3], [1, 2])
)
def test_equals_one_process_on_the_concatenated_batches(
    name: str, workers: int, parties: int, shards: int
) -> None:
    """`workers` in each party; no two workers have batches of the same size."""
    results, _ = train([workers] * parties, script(name, torch.float64), CUT, shards)
    assert len(results) == workers * parties
    for ours in results.values():
        assert_close(ours, in_one_process(name, workers * parties), rtol=1e-12)


@pytest.mark.parametrize("parties", [[2, 1], [1, 2, 1]])
@pytest.mark.parametrize("name", OPTIMIZERS)
def test_in_float32_every_worker_of_every_run_ends_with_the_same_bits(name: str, parties: list[int]) -> None:
    def hashes(shards: int) -> list[str]:
        _, simulator = train(parties, script(name, torch.float32), CUT, shards)
        return [fields["parameters_sha256"] for _, _, fields in simulator.noted("finished")]

    first, again, two_shards = hashes(1), hashes(1), hashes(2)
    assert len(first) == len(two_shards) == sum(parties)
    assert len({*first, *again, *two_shards}) == 1


def test_the_hash_tells_other_weights_apart() -> None:
    def hashes(name: str) -> set[str]:
        _, simulator = train([1, 1], script(name, torch.float32), CUT)
        return {fields["parameters_sha256"] for _, _, fields in simulator.noted("finished")}

    assert len({*hashes("Adam"), *hashes("AdamW"), *hashes("SGD")}) == 3
