"""What a worker tells of each step: how long it computed, whatever it waited for."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from live_runs import begin, small_model, train
from live_runs import sleep as sleep_in

from geomx.config.compatibility.choices import Overlap
from geomx.simulate.simulator import Network
from geomx.sync import policies
from geomx.train import LiveRun, Settings

FORWARD_S, BACKWARD_S, STEPS = 0.25, 0.5, 4
WAN = Network(rate_mbps=1.0, delay_ms=200.0)


class Slow(torch.autograd.Function):
    """Passes on what it is given; the gradient comes later."""

    @staticmethod
    def forward(context: Any, x: torch.Tensor, sleep: Callable[[float], None]) -> torch.Tensor:
        context.sleep = sleep
        return x.clone()

    @staticmethod
    def backward(context: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None]:
        context.sleep(BACKWARD_S)
        return gradients[0], None


def small(run: LiveRun) -> tuple[Any, torch.optim.Optimizer, Callable[[float], None]]:
    """A model, its optimizer, and the sleep of the virtual clock."""
    model, optimizer = begin(run, model=small_model(dtype=torch.float32))
    return model, optimizer, partial(sleep_in, run)


def steps_of(settings: Settings, policy: str = "fsa", epochs: int = 1) -> list[dict[str, Any]]:
    """What A/0 noted of its steps; the second layer's gradients are complete `BACKWARD_S` before the first one's."""

    def main(run: LiveRun) -> None:
        model, optimizer, sleep = small(run)
        for _ in range(epochs):
            for (x,) in run.shard([(torch.randn(8, 20),) for _ in range(STEPS)]):
                optimizer.zero_grad()
                sleep(FORWARD_S)
                hidden = model[1](model[0](x))
                model[2](Slow.apply(hidden, sleep)).square().mean().backward()
                optimizer.step()
            sleep(10.0)  # looks at test data

    _, simulator = train([1, 1], main, settings, network=WAN, policy=policy)
    return [fields for _, node, fields in simulator.noted("step") if node == "A/0" and fields["samples"]]


@pytest.mark.parametrize(
    ("policy", "overlap"),
    [("fsa", "none"), ("fsa", "forward"), ("hfa k1=1 k2=2", "none"), ("downpour", "none")],
)
def test_waiting_is_no_computing(policy: str, overlap: Overlap) -> None:
    first, *others = steps_of(Settings(overlap=overlap, policy=policies.make(policy)), policy)
    assert first["compute_s"] is None
    assert len(others) == STEPS - 1
    backward_s = pytest.approx(BACKWARD_S) if policy == "fsa" else None  # else nothing leaves in backward
    for step in others:
        assert step["compute_s"] == pytest.approx(FORWARD_S + BACKWARD_S)
        assert step["backward_s"] == backward_s


def test_what_comes_between_two_passes_belongs_to_no_step() -> None:
    told = [step["compute_s"] for step in steps_of(Settings(), epochs=2)]
    assert [seconds is None for seconds in told] == [True, *[False] * (STEPS - 1)] * 2
    assert max(seconds for seconds in told if seconds is not None) < 1.0


@pytest.mark.parametrize(("overlap", "passes", "steps"), [("none", 6, 1), ("forward", 3, 4)])
def test_who_slows_steps_down_is_told_of_every_step_s_own_computation(
    overlap: Overlap, passes: int, steps: int
) -> None:
    """From the first batch on, whatever comes between: an evaluation within a pass, and the sleep itself."""
    told: list[float | None] = []

    def main(run: LiveRun) -> None:
        model, optimizer, sleep = small(run)

        def after_step(seconds: float | None) -> None:
            told.append(seconds)
            sleep(2.0)

        run._timeline._after_step = after_step
        for _ in range(passes):
            for batch, (x,) in enumerate(run.shard([(torch.randn(8, 20),) for _ in range(2 * steps)])):
                sleep(FORWARD_S)
                model(x).square().mean().backward()
                if batch % 2:  # two batches a step
                    optimizer.step()
                    optimizer.zero_grad()
                    sleep(10.0)  # looks at test data

    train([], main, Settings(overlap=overlap, push_at="step"), network=WAN)
    assert told == pytest.approx([2 * FORWARD_S] * passes * steps)


def test_without_shard_a_step_is_what_comes_between_two() -> None:
    told: list[float | None] = []

    def main(run: LiveRun) -> None:
        model, optimizer, sleep = small(run)
        for _ in range(3):
            run.weight(8)
            sleep(FORWARD_S)
            model(torch.randn(8, 20)).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

    train([], main, Settings(after_step=told.append), network=WAN)
    assert told == [None, pytest.approx(FORWARD_S), pytest.approx(FORWARD_S)]
