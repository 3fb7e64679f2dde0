"""Learning-rate schedules, made before `attach` or after it, go as in plain PyTorch."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from exploring import each_value
from loops import STEPS, Loop, MakeOptimizer, adam, both, momentum
from test_resume import SCHEDULES
from torch import nn
from torch.optim import lr_scheduler


def steps(loop: Loop, scheduler: Any, count: int = STEPS) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)  # torch's, when it thinks that step() was not called
        warnings.filterwarnings("ignore", "The epoch parameter")  # SequentialLR itself has torch say so
        for step in range(count):
            loop.step(step)
            scheduler.step()


@pytest.mark.parametrize(("name", "make_optimizer"), each_value(SCHEDULES, [momentum, adam]))
def test_schedulers(name: str, make_optimizer: MakeOptimizer) -> None:
    both(lambda loop: steps(loop, SCHEDULES[name](loop.optimizer)), make_optimizer=make_optimizer)


def test_a_scheduler_made_before_attach() -> None:
    schedulers: list[Any] = []

    def make(model: nn.Module) -> torch.optim.Optimizer:
        optimizer = momentum(model)
        schedulers.append(lr_scheduler.ExponentialLR(optimizer, 0.8))
        return optimizer

    def body(loop: Loop) -> None:
        steps(loop, next(s for s in schedulers if s.optimizer.param_groups is loop.optimizer.param_groups))

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
        steps(loop, lr_scheduler.ExponentialLR(loop.optimizer, 0.5), 3)

    both(body, make_optimizer=make, rtol=1e-7)  # plain PyTorch computes with a float32 learning rate
