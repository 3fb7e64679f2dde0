"""Runs of sync policies on the virtual clock, for tests: settings, scripts, and how long steps take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from live_runs import Make, Script, begin, drawn, sleep, train, weights
from torch import nn

from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.train import LiveRun, Settings

STEPS = 20

ALGORITHMS = [
    "fsa", "mixed", "mixed staleness=1", "hfa k1=2 k2=2", "diloco every=4",
    "diloco every=6 fragments=2 overlap=2", "downpour", "downpour n_push=3 n_fetch=2", "esync",
    "esync wait=true",
]  # fmt: skip
# one of each kind
KINDS = [
    spec for spec in ALGORITHMS if spec not in ("mixed", "diloco every=4", "downpour", "esync wait=true")
]


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)


def settings(spec: str = "fsa", **more: Any) -> Settings:
    return Settings(**({"slice_elements": 512, "pack_below": 100, "policy": policies.make(spec)} | more))


def train_by(
    spec: str, parties: Sequence[int], main: Script, given: dict[str, Any] | None = None, **how: Any
) -> tuple[dict[str, Any], Simulator]:
    """A run with this policy; `given`: more of its settings, `how`: what else `train` takes."""
    return train(parties, main, settings(spec, **(given or {})), policy=spec, **how)


def script(make: Make, steps: int = STEPS, pause_s: Callable[[LiveRun, int], float] | None = None) -> Any:
    """Steps on batches that depend on worker and step alone."""

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, make)
        for step in range(steps):
            x, y = drawn(run, step)
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            if pause_s is not None:
                sleep(run, pause_s(run, step))
            optimizer.step()
        return weights(model)

    return main


def uneven(run: LiveRun, step: int) -> float:
    """Seconds of computing: parties differ, and each step is different."""
    party = run.parties.index(run.party)
    return 0.02 * (1 + 2.5 * party) * (1 + 0.3 * ((7 * step + 3 * party) % 5))


def assert_differ(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    for name in ("0.0.weight", "0.2.weight"):
        assert not torch.equal(ours[name], theirs[name])
