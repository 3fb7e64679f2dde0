"""A user's loop, to be run in plain PyTorch and on two workers."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from live_runs import assert_close, joined, parts_of, place_of, small_model, train, weights
from torch import nn

from geomx.train import LiveRun, Settings

STEPS = 6


@dataclass
class Loop:
    """What a user's loop works with. `batches(step)`: this worker's, or in plain PyTorch everybody's."""

    model: nn.Module
    optimizer: torch.optim.Optimizer
    batches: Callable[[int], tuple[torch.Tensor, torch.Tensor]]
    accumulate: Callable[[], AbstractContextManager[None]]
    mean: Callable[[float], float] = lambda loss: loss

    def gradient(self, step: int, model: Callable[..., torch.Tensor] | None = None) -> torch.Tensor:
        x, y = self.batches(step)
        loss = F.mse_loss((model or self.model)(x), y)
        loss.backward()
        return loss

    def step(self, step: int) -> None:
        self.optimizer.zero_grad()
        self.gradient(step)
        self.optimizer.step()


MakeOptimizer = Callable[[nn.Module], torch.optim.Optimizer]
Body = Callable[[Loop], None]


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.01)


def both(
    body: Body,
    make_model: Callable[[], nn.Module] = small_model,
    make_optimizer: MakeOptimizer = momentum,
    settings: Settings | None = None,
    rtol: float = 1e-12,
    **options: Any,
) -> dict[str, torch.Tensor]:
    """Run a loop in plain PyTorch and on two workers; both must end with the same weights."""

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model = make_model()
        model, optimizer = run.attach(model, make_optimizer(model), **options)

        def batches(step: int) -> tuple[torch.Tensor, torch.Tensor]:
            part = parts_of(step, 2)[place_of(run)]
            run.weight(len(part[0]))
            return part

        body(Loop(model, optimizer, batches, run.accumulate))
        run.wait()
        return weights(model)

    model = make_model()
    body(Loop(model, make_optimizer(model), lambda step: joined(step, 2), contextlib.nullcontext))
    results, _ = train([1, 1], main, settings)
    assert_close(results["A/0"], weights(model), rtol)
    assert_close(results["B/0"], results["A/0"], rtol=0.0)
    return results["A/0"]


def plain_steps(loop: Loop) -> None:
    for step in range(STEPS):
        loop.step(step)
