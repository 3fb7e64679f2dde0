"""Learning-rate schedules, made before `attach` or after it, go as in plain PyTorch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from loops import STEPS, Loop, MakeOptimizer, adam, both, momentum
from torch import nn
from torch.optim import lr_scheduler

SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "StepLR": lambda o: lr_scheduler.StepLR(o, 2, 0.5),
    "CosineAnnealingLR": lambda o: lr_scheduler.CosineAnnealingLR(o, STEPS),
    "OneCycleLR": lambda o: lr_scheduler.OneCycleLR(o, 0.1, total_steps=STEPS + 1),
    "CyclicLR": lambda o: lr_scheduler.CyclicLR(o, 0.01, 0.1, step_size_up=2),
    "LambdaLR": lambda o: lr_scheduler.LambdaLR(o, lambda step: 1 / (1 + step)),
    "ChainedScheduler": lambda o: lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(o, 0.5, 3), lr_scheduler.ExponentialLR(o, 0.9)]
    ),
    "SequentialLR": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o, 0.1, 1.0, 3), lr_scheduler.ExponentialLR(o, 0.9)], [3]
    ),
}


@pytest.mark.parametrize("name", SCHEDULERS)
@pytest.mark.parametrize("make_optimizer", [momentum, adam])
def test_schedulers(name: str, make_optimizer: MakeOptimizer) -> None:
    def body(loop: Loop) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter(
                "error", UserWarning
            )  # torch warns when it thinks that step() was not called
            scheduler = SCHEDULERS[name](loop.optimizer)
            for step in range(STEPS):
                loop.step(step)
                scheduler.step()

    both(body, make_optimizer=make_optimizer)


def test_a_scheduler_made_before_attach() -> None:
    schedulers: list[Any] = []

    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = momentum(model)
        schedulers.append(lr_scheduler.ExponentialLR(optimizer, 0.8))
        return optimizer

    def body(loop: Loop) -> None:
        scheduler = next(s for s in schedulers if s.optimizer.param_groups is loop.optimizer.param_groups)
        with warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            for step in range(STEPS):
                loop.step(step)
                scheduler.step()

    both(body, make_optimizer=make)


def test_reduce_on_plateau() -> None:
    def body(loop: Loop) -> None:
        scheduler = lr_scheduler.ReduceLROnPlateau(loop.optimizer, factor=0.5, patience=1)
        for step in range(STEPS):
            loop.step(step)
            scheduler.step(1.0)  # the same on every worker
        assert loop.optimizer.param_groups[0]["lr"] < 0.1

    both(body)


def test_a_tensor_as_learning_rate() -> None:
    def make(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=torch.tensor(0.01), foreach=False)

    def body(loop: Loop) -> None:
        scheduler = lr_scheduler.ExponentialLR(loop.optimizer, 0.5)
        for step in range(3):
            loop.step(step)
            scheduler.step()

    both(body, make_optimizer=make, rtol=1e-7)  # plain PyTorch computes with a float32 learning rate
