"""Optimizers that evaluate the model several times in a step: a worker's own business, where steps are local."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import (
    assert_alike,
    assert_close,
    begin,
    dies,
    parts_of,
    place_of,
    samples_of,
    sleep,
    small_model,
    train,
    weights,
)
from policy_runs import train_by
from torch import nn

from geomx.errors import Unsupported
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.train import LiveRun
from geomx.wire.session import Patience

STEPS = 4
INT4 = {"wan": Edge("int4 size_lower_bound=1", "int4 size_lower_bound=1")}


class SAM(torch.optim.Optimizer):
    """Sharpness-aware minimization (arXiv 2010.01412): from here, by the gradient at the worst weights nearby."""

    def __init__(self, params: Any, rho: float = 0.05, **kwargs: Any) -> None:
        super().__init__(params, {"rho": rho, **kwargs})
        self.base = torch.optim.SGD(self.param_groups, **kwargs)
        self.param_groups = self.base.param_groups

    @torch.no_grad()
    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        closure = torch.enable_grad()(closure)
        loss = closure()
        moved = []
        for group in self.param_groups:
            norm = torch.stack([p.grad.norm() for p in group["params"]]).norm()
            for parameter in group["params"]:
                moved.append((parameter, parameter.clone()))
                parameter.add_(parameter.grad, alpha=float(group["rho"] / (norm + 1e-12)))
        self.zero_grad()
        closure()
        for parameter, before in moved:
            parameter.copy_(before)
        self.base.step()
        return loss


OPTIMIZERS: dict[str, Callable[[nn.Module], torch.optim.Optimizer]] = {
    "lbfgs": lambda m: torch.optim.LBFGS(m.parameters(), lr=0.3, max_iter=4, line_search_fn="strong_wolfe"),
    "sam": lambda m: SAM(m.parameters(), lr=0.05, momentum=0.9),
    "sgd": lambda m: torch.optim.SGD(m.parameters(), lr=0.05, momentum=0.9),
    "adam": lambda m: torch.optim.Adam(m.parameters(), lr=0.01),
}


def step_of(model: nn.Module, optimizer: torch.optim.Optimizer, step: int, place: int, places: int) -> Any:
    x, y = parts_of(step, places)[place]

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        dtype = next(model.parameters()).dtype
        loss = F.mse_loss(model(x if dtype.is_complex else x.to(dtype)).to(y.dtype), y)
        loss.backward()
        return loss

    return optimizer.step(closure)


@pytest.mark.parametrize(
    ("name", "spec"),
    each_value(["lbfgs", "sam", "sgd"], ["hfa k1=2 k2=1", "diloco every=2 lr=1.0 momentum=0.0"]),
)
def test_two_workers_are_the_mean_of_two_processes(name: str, spec: str) -> None:
    make = OPTIMIZERS[name]

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, make)
        for step in range(STEPS):
            run.weight(samples_of(place_of(run)))
            assert step_of(model, optimizer, step, place_of(run), 2) is not None
        return weights(model)

    results, _ = train_by(spec, [1, 1], main)
    assert_alike(results)
    models = [small_model(0), small_model(0)]
    optimizers = [make(model) for model in models]
    for step in range(STEPS):
        for place in range(2):
            step_of(models[place], optimizers[place], step, place, 2)
        if step % 2:
            share = samples_of(0) / (samples_of(0) + samples_of(1))
            with torch.no_grad():
                for one, other in zip(models[0].parameters(), models[1].parameters(), strict=True):
                    one.mul_(share).add_(other, alpha=1 - share)
                    other.copy_(one)
    assert_close(results["A/0"], weights(models[0]), rtol=1e-10)


class Waves(nn.Module):
    """Weights that are complex."""

    def __init__(self) -> None:
        super().__init__()
        values = torch.randn(20, 5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * 0.3
        self.spectrum = nn.Parameter(torch.view_as_complex(values))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.complex128) @ self.spectrum).abs()


@pytest.mark.parametrize(
    ("name", "model_of", "spec", "edges"),
    [
        ("lbfgs", small_model, "hfa k1=2 k2=2", {}),
        ("lbfgs", small_model, "diloco every=3", INT4),
        ("sam", small_model, "hfa k1=2 k2=2", INT4),
        ("sam", small_model, "diloco every=3", {}),
        ("sgd", Waves, "hfa k1=2 k2=2", INT4),
        ("sgd", Waves, "diloco every=3", {}),
        ("adam", Waves, "fsa", INT4),
    ],
)
@pytest.mark.parametrize("victims", [("B/0",), ("B", "B/0")])
def test_whoever_comes_back_goes_on_from_the_others(
    name: str, model_of: Callable[[], nn.Module], spec: str, edges: dict[str, Any], victims: tuple[str, ...]
) -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, OPTIMIZERS[name], model_of())
        while run.step < 60:
            sleep(run, 0.05)
            run.weight(1)
            if name == "adam":
                x, y = parts_of(run.step, 3)[place_of(run)]
                optimizer.zero_grad()
                F.mse_loss(model(x), y).backward()
                optimizer.step()
            else:
                step_of(model, optimizer, run.step, place_of(run), 3)
        run.close()
        return weights(model)

    how: dict[str, Any] = {"losses": Losses("continue", 60.0), "patience": Patience(0.1, 0.4), **edges}
    faults = dies(*victims, at_s=0.5, back_s=1.3)
    results, _ = train_by(spec, [2, 1], main, {"on_loss": "continue"}, faults=faults, **how)
    assert_alike(results)
    assert len(results) == 3
    assert all(bool(torch.view_as_real(v).isfinite().all() if v.is_complex() else v.isfinite().all())
               for v in results["A/0"].values())  # fmt: skip


def test_half_precision_is_stepped_in_float32() -> None:
    def main(run: LiveRun) -> float:
        model, optimizer = begin(run, OPTIMIZERS["sam"], small_model(0).bfloat16())
        losses = [
            step_of(model, optimizer, 0, place_of(run), 2).item() for _ in range(20) if run.weight(1) is None
        ]
        assert {p.dtype for p in model.parameters()} == {torch.bfloat16}
        return losses[-1] / losses[0]

    results, _ = train_by("hfa k1=2 k2=1", [1, 1], main)
    assert max(results.values()) < 0.8


def test_where_each_evaluation_would_be_a_round_it_is_refused() -> None:
    def main(run: LiveRun) -> None:
        begin(run, OPTIMIZERS["lbfgs"])

    with pytest.raises(Unsupported, match="diloco"):
        train([1], main)
