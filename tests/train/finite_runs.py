"""Runs in which a gradient is NaN, Inf, or too large, for tests: settings, and scripts that spoil one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from live_runs import assert_equal, begin, parts_of, place_of, small_model, weights
from torch import nn

from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.layout import Slice
from geomx.simulate.simulator import Simulator
from geomx.train import LiveRun, Settings
from geomx.train.model.model_slices import nothing

CODECS = [
    "dense", "fp16", "bf16", "int8", "int4 stochastic=true", "sign", "two_bit threshold=0.05", "topk ratio=0.2",
    "bisparse ratio=0.2", "bisparse ratio=0.2 values=int4", "mpq ratio=0.2",
]  # fmt: skip
NUMBERS = [math.nan, math.inf, -math.inf]
WORDS = {math.inf: "Inf", -math.inf: "-Inf"}
BAD_WORKER, BAD_STEP, STEPS = "A/1", 1, 4
Sgd = Callable[[nn.Module], torch.optim.Optimizer]


def settings(codec: str = "dense", on_nonfinite: str = "skip", **more: Any) -> Settings:
    """Slices of 512 elements: the first parameter is cut into three."""
    fields: dict[str, Any] = {"slice_elements": 512, "pack_below": 100, "ledger": True} | more
    return Settings(on_nonfinite=on_nonfinite, room=make_codec(codec, RngKey()).room, **fields)


@dataclass
class Script:
    """Steps of which one may be spoiled on one worker. `value`: what is in its gradient of 2.bias; None: nothing odd.

    `instead(run, model)`, `then(model)`: what that worker does in that step before and after `backward()`, in a run to
    compare with.
    """

    value: float | None = None
    instead: Callable[[LiveRun, nn.Module], None] = lambda *_: None
    then: Callable[[nn.Module], None] = lambda _: None
    make: Sgd = lambda model: torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    dtype: torch.dtype = torch.float32
    attach: dict[str, Any] = field(default_factory=dict)
    everywhere: bool = False
    steps: int = STEPS
    ledgers: list[list[int]] = field(default_factory=list)
    # by worker: weights, step by step
    behind: dict[str, list[dict[str, torch.Tensor]]] = field(default_factory=dict)

    def __call__(self, run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, self.make, small_model(place_of(run), self.dtype), **self.attach)
        bad = False
        model[2].bias.register_hook(lambda g: self.spoiled(g) if bad else g)
        for step in range(self.steps):
            x, y = parts_of(step, len(run.workers), self.dtype)[place_of(run)]
            bad = step == BAD_STEP and (self.everywhere or run.name == BAD_WORKER)
            run.weight(len(x))
            optimizer.zero_grad()
            if bad:
                self.instead(run, model)
            F.mse_loss(model(x), y).backward()
            if bad:
                self.then(model)
            optimizer.step()
            run.wait()
            self.behind.setdefault(run.name, []).append(weights(model))
        if run.ledger is not None:
            self.ledgers.append(run.ledger.tolist())
        return weights(model)

    def spoiled(self, gradient: torch.Tensor) -> torch.Tensor:
        if self.value is not None:
            gradient = gradient.clone()
            gradient[3] = self.value
        return gradient


def weightless(run: LiveRun, _: nn.Module) -> None:
    """The whole step counts nothing."""
    run.weight(0)


def slice_of_bias(run: LiveRun) -> Slice:
    assert run._attached is not None
    slices = run._attached.model_slices
    (number,) = [number for number in slices.trained if slices.name(number) == "2.bias"]
    return slices.layout.slices[slices.slices_of[number][0]]


def without_the_slice(run: LiveRun, _: nn.Module) -> None:
    """The slice that has 2.bias counts nothing in this turn."""
    client, slice_, now = run._client, slice_of_bias(run), run.turn
    contribute = client.contribute

    def instead(index: int, kind: Any, operation: str, weight: float, packed: Any, **more: Any) -> None:
        if index == slice_.index and client.turns[more.get("cohort", "")] == now:
            weight, packed = 0.0, nothing(slice_).packed
        contribute(index, kind, operation, weight, packed, **more)

    client.contribute = instead  # type: ignore[method-assign]


def told(simulator: Simulator) -> list[tuple[str, dict[str, Any]]]:
    return [(node, fields) for _, node, fields in simulator.noted("skipped")]


def assert_same_runs(ours: dict[str, Any], theirs: dict[str, Any]) -> None:
    for name, expected in theirs.items():
        assert all(bool(w.isfinite().all()) for w in expected.values())
        assert_equal(ours[name], expected)
