"""Runs of sync policies on the virtual clock, for tests: settings, scripts, and how long steps take."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from live_runs import (
    Make,
    parts_of,
    place_of,
    small_model,
    weights,
)
from torch import nn

from geomx.sync.contract import Policy
from geomx.train import LiveRun, Settings

STEPS = 50

ALGORITHMS = [
    "fsa",
    "mixed",
    "mixed staleness=1",
    "hfa k1=2 k2=2",
    "diloco every=4",
    "diloco every=6 fragments=2 overlap=2",
    "downpour",
    "downpour n_push=3 n_fetch=2",
    "esync",
    "esync wait=true",
]


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def settings(policy: Policy, **more: Any) -> Settings:
    return Settings(slice_elements=512, pack_below=100, policy=policy, **more)


def script(make: Make, steps: int = STEPS, pause_s: Callable[[LiveRun, int], float] | None = None) -> Any:
    """Steps on batches that depend on worker and step alone."""

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = small_model(seed=place_of(run))
        model, optimizer = run.attach(model, make(model))
        for step in range(steps):
            x, y = parts_of(step, len(run.workers))[place_of(run)]
            run.weight(len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            if pause_s is not None:
                run._client.port.sleep(pause_s(run, step))  # type: ignore[attr-defined]  # of the virtual clock
            optimizer.step()
        return weights(model)

    return main


def uneven(run: LiveRun, step: int) -> float:
    """Seconds of computing: parties differ, and each step is different."""
    party = run.parties.index(run.party)
    return 0.02 * (1 + 2.5 * party) * (1 + 0.3 * ((7 * step + 3 * party) % 5))


def lockstep(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    for step in range(steps):
        x, y = parts_of(step, len(run.workers))[place_of(run)]
        run.weight(len(x))
        optimizer.zero_grad()
        F.mse_loss(model(x), y).backward()
        optimizer.step()


def assert_differ(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    for name in ("0.0.weight", "0.2.weight"):
        assert not torch.equal(ours[name], theirs[name])
