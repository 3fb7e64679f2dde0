"""What a PyTorch loop may do, it may do in a run: the same loop in plain PyTorch and on two workers."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import assert_close, batch, begin, place_of, small_model, train, weights
from loops import STEPS, Body, Loop, MakeOptimizer, adam, both, momentum, plain_steps
from torch import nn
from torch.utils.checkpoint import checkpoint

from geomx.config.compatibility.choices import OptimizerPlace
from geomx.train import LiveRun, Settings


class Tied(nn.Module):
    """An embedding whose weight is the last layer's as well."""

    def __init__(self) -> None:
        super().__init__()
        model = small_model()
        self.first, self.last = nn.Linear(20, 20).double(), nn.Linear(20, 20, bias=False).double()
        with torch.no_grad():
            self.first.weight.copy_(model[0].weight[:20] + model[0].weight[20:40])
            self.first.bias.zero_()
        self.last.weight = self.first.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x).tanh())[:, :5]


class PartlyUsed(nn.Module):
    """A branch is used in every third step only."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.branch = small_model(), small_model(seed=1)
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return self.body(x) + (self.branch(x) if self.calls % 3 == 0 else 0)


class Mixed(nn.Module):
    """A part in float64 and a part in float32."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = small_model(), nn.Linear(5, 5)
        with torch.no_grad():
            self.last.weight.copy_(torch.eye(5))
            self.last.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.body(x).float()).double()


class ChannelsLast(nn.Module):
    """Weights that lie in memory in another order than they are counted in."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(2, 6, 2).double(), nn.Conv2d(6, 5, 2).double()
        generator = torch.Generator().manual_seed(0)
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.3)
        self.to(memory_format=torch.channels_last)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.first(x.reshape(-1, 2, 2, 5)).relu().repeat(1, 1, 2, 1)).mean((2, 3))


class Waves(nn.Module):
    """Weights that are complex."""

    def __init__(self) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(20, 5, 2, generator=generator, dtype=torch.float64) * 0.3
        self.spectrum = nn.Parameter(torch.view_as_complex(values))
        self.shift = nn.Parameter(torch.zeros(5, dtype=torch.complex128))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x.to(torch.complex128) @ self.spectrum + self.shift).abs()


PLACES = [(momentum, "server"), (adam, "server"), (adam, "workers")]


@pytest.mark.parametrize(("make_optimizer", "place"), PLACES)
def test_several_dtypes_and_channels_last(make_optimizer: MakeOptimizer, place: OptimizerPlace) -> None:
    after = both(plain_steps, Mixed, make_optimizer, Settings(place=place), rtol=1e-4)
    assert {tensor.dtype for tensor in after.values()} == {torch.float32, torch.float64}
    assert not ChannelsLast().last.weight.is_contiguous()
    both(plain_steps, ChannelsLast, make_optimizer, Settings(place=place, slice_elements=50))


@pytest.mark.parametrize(("make_optimizer", "place"), PLACES)
def test_complex_parameters(make_optimizer: MakeOptimizer, place: OptimizerPlace) -> None:
    after = both(plain_steps, Waves, make_optimizer, Settings(place=place, slice_elements=50, pack_below=20))
    assert after["spectrum"].is_complex()


@pytest.mark.parametrize(
    ("options", "make_optimizer"),
    each_value([{}, {"push_at": "step"}, {"overlap": "forward"}], [momentum, adam]),
)
def test_tied_parameters(make_optimizer: MakeOptimizer, options: dict[str, str]) -> None:
    both(plain_steps, Tied, make_optimizer, **options)


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("make_optimizer", [momentum, adam])
def test_unused_parameters_are_skipped_as_in_pytorch(
    make_optimizer: MakeOptimizer, set_to_none: bool
) -> None:
    """With set_to_none=False a gradient of zeros stays, and momentum goes on; with True the parameter rests."""

    def body(loop: Loop) -> None:
        for step in range(STEPS + 2):
            loop.optimizer.zero_grad(set_to_none)
            loop.gradient(step)
            loop.optimizer.step()

    for place in ("auto", "workers"):
        both(body, PartlyUsed, make_optimizer, Settings(place=place))


def test_frozen_parameters_stay_and_come_from_the_first_worker() -> None:
    def make() -> nn.Module:
        model = small_model()
        model[0].weight.requires_grad_(False)
        return model

    before = make()[0].weight
    after = both(plain_steps, make)
    assert torch.equal(after["0.weight"], before)


def freezes(loop: Loop) -> None:
    for step in range(STEPS):
        loop.model.get_parameter("0.weight").requires_grad_(step % 4 < 2)
        loop.step(step)


def accumulates(loop: Loop) -> None:
    for step in range(4):
        loop.optimizer.zero_grad()
        with loop.accumulate():
            loop.model.calls = 2  # type: ignore[assignment]  # the next call uses the branch
            loop.gradient(step)
        loop.gradient(step)
        loop.optimizer.step()


def closes(loop: Loop) -> None:
    for step in range(STEPS):

        def closure(step: int = step) -> torch.Tensor:
            loop.optimizer.zero_grad()
            return loop.gradient(step)

        assert loop.optimizer.step(closure) is not None


def edits(loop: Loop) -> None:
    for step in range(STEPS):
        loop.optimizer.zero_grad()
        loop.gradient(step)
        for parameter in loop.model.parameters():
            assert parameter.grad is not None
            parameter.grad.mul_(0.5)
        loop.optimizer.step()


def casts(loop: Loop) -> None:
    for step in range(STEPS):
        x, y = (t.float() for t in loop.batches(step))
        loop.optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output = loop.model(x)
        F.mse_loss(output.float(), y).backward()
        loop.optimizer.step()


class Recomputed(nn.Module):
    """Its activations are computed once more in backward."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_model()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return checkpoint(self.body, x, use_reentrant=False)


class Odd(nn.Module):
    """A parameter without dimensions, and one without elements."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.scale, self.none = (
            small_model(),
            nn.Parameter(torch.ones(()).double()),
            nn.Parameter(torch.zeros(0, 3).double()),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x) * self.scale + self.none.sum()


class Recurrent(nn.Module):
    """Attention, and a recurrent layer."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.rnn, self.last = nn.GRU(4, 6, batch_first=True), nn.Linear(6, 5)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.double()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        seen, _ = self.rnn(x.view(-1, 5, 4))
        return self.last(self.attention(seen, seen, seen)[0].mean(1))


def normed() -> nn.Module:
    model = small_model()
    nn.utils.parametrizations.weight_norm(model[0])
    return model


def hooked() -> nn.Module:
    """Hooks of a module and of a parameter, which double a gradient and what a layer gives."""
    model = small_model()
    model[2].weight.register_hook(lambda gradient: 2 * gradient)
    model[1].register_forward_hook(lambda _module, _inputs, output: 2 * output)
    model[2].register_full_backward_hook(lambda _module, inputs, _outputs: inputs)
    return model


def penalizes(loop: Loop) -> None:
    """A backward through gradients."""
    for step in range(STEPS):
        x, y = loop.batches(step)
        loop.optimizer.zero_grad()
        x = x.requires_grad_()
        output = loop.model(x)
        (slope,) = torch.autograd.grad(output.square().sum(1).mean(), x, create_graph=True)
        weight = len(x) / len(y)
        (F.mse_loss(output, y) + weight * (slope * len(x)).square().sum(1).mean()).backward()
        loop.optimizer.step()


def looks_twice(loop: Loop) -> None:
    """Two forwards before one backward."""
    for step in range(STEPS):
        x, y = loop.batches(step)
        loop.optimizer.zero_grad()
        (F.mse_loss(loop.model(x), y) + F.mse_loss(loop.model(-x), y)).backward()
        loop.optimizer.step()


def retains(loop: Loop) -> None:
    for step in range(STEPS):
        x, y = loop.batches(step)
        loop.optimizer.zero_grad()
        loss = F.mse_loss(loop.model(x), y)
        loss.backward(retain_graph=True)
        loss.backward()
        loop.optimizer.step()


def calls_functionally(loop: Loop) -> None:
    for step in range(STEPS):
        x, y = loop.batches(step)
        loop.optimizer.zero_grad()
        F.mse_loss(
            torch.func.functional_call(loop.model, dict(loop.model.named_parameters()), (x,)), y
        ).backward()
        loop.optimizer.step()


def averages(loop: Loop) -> None:
    """A mean over steps, beside the model; the last step begins with it."""
    mean = torch.optim.swa_utils.AveragedModel(loop.model)
    for step in range(STEPS):
        loop.step(step)
        mean.update_parameters(loop.model)
    assert not torch.equal(next(mean.module.parameters()), next(loop.model.parameters()))


def detects(loop: Loop) -> None:
    for step in range(STEPS):
        loop.optimizer.zero_grad()
        with torch.autograd.set_detect_anomaly(
            True
        ):  # of the whole process, so nobody else may go on within it
            loop.gradient(step)
        loop.optimizer.step()


BFLOAT16_RTOL = 2e-2
LOOPS: dict[str, tuple[Body, dict[str, Any]]] = {
    "freezing later": (freezes, {}),
    "a parameter that the optimizer does not have": (
        plain_steps, {"make_optimizer": lambda m: torch.optim.SGD(m[2].parameters(), lr=0.1)},
    ),
    "named parameters": (plain_steps, {"make_optimizer": lambda m: torch.optim.Adam(m.named_parameters(), lr=0.01)}),
    "a parameter that only an accumulated batch used": (accumulates, {"make_model": PartlyUsed}),
    "a closure": (closes, {}),
    "edits of gradients": (edits, {"push_at": "step"}),
    "activation checkpointing": (plain_steps, {"make_model": Recomputed}),
    "parameters without dimensions or elements": (plain_steps, {"make_model": Odd}),
    "recurrent layers and attention": (plain_steps, {"make_model": Recurrent}),
    "a parametrization before attach": (plain_steps, {"make_model": normed}),
    "hooks": (plain_steps, {"make_model": hooked}),
    "a gradient penalty": (penalizes, {}),
    "two forwards before a backward": (looks_twice, {}),
    "retain_graph": (retains, {"push_at": "step"}),
    "torch.func.functional_call": (calls_functionally, {}),
    "an average of the weights": (averages, {}),
    "anomaly detection": (detects, {"push_at": "step"}),
    "maximize, amsgrad": (
        plain_steps,
        {"make_optimizer": lambda m: torch.optim.Adam(m.parameters(), lr=0.01, amsgrad=True, maximize=True)},
    ),
    "foreach": (plain_steps, {"make_optimizer": lambda m: torch.optim.AdamW(m.parameters(), lr=0.01, foreach=True)}),
    "autocast": (
        casts, {"make_model": lambda: small_model(dtype=torch.float32), "rtol": BFLOAT16_RTOL},
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LOOPS)
def test_loops(name: str) -> None:
    body, how = LOOPS[name]
    both(body, **how)


@pytest.mark.parametrize(("each", "options"), [(False, {"push_at": "step"}), (True, {})])
def test_gradient_accumulation(options: dict[str, str], each: bool) -> None:
    """Gradients add up, unscaled; the weight is that of all micro-batches, told at once or one by one."""

    def micro(step: int, place: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        return [batch(1000 * step + 10 * place + i, 4 + place) for i in range(2 + place)]

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, momentum, **options)
        for step in range(STEPS):
            optimizer.zero_grad()
            *first, last = micro(step, place_of(run))
            if not each:
                run.weight(sum(len(x) for x, _ in (*first, last)))
            for x, y in (*first, last):
                with run.accumulate() if x is not last[0] else nullcontext():
                    if each:
                        run.weight(len(x))
                    F.mse_loss(model(x), y).backward()
            optimizer.step()
        return weights(model)

    model = small_model()
    optimizer = momentum(model)
    for step in range(STEPS):
        optimizer.zero_grad()
        sums = [
            ((2 + place) * (4 + place), sum(F.mse_loss(model(x), y) for x, y in micro(step, place)))
            for place in range(2)
        ]
        (sum(w * loss for w, loss in sums) / sum(w for w, _ in sums)).backward()
        optimizer.step()
    results, _ = train([1, 1], main)
    assert_close(results["B/0"], weights(model))


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize(
    ("when", "options"), each_value(["before", "after", "in place"], [{}, {"overlap": "forward"}])
)
def test_compile(when: str, options: dict[str, str]) -> None:
    """`aot_eager` goes through all of compilation but the code generator."""

    def make() -> nn.Module:
        model = small_model()
        return torch.compile(model, backend="aot_eager") if when == "before" else model  # type: ignore[return-value]

    def body(loop: Loop) -> None:
        model: Any = loop.model
        if when == "after":
            model = torch.compile(model, backend="aot_eager")
        elif when == "in place":
            model.compile(backend="aot_eager")
        for step in range(4):
            loop.optimizer.zero_grad()
            loop.gradient(step, model)
            loop.optimizer.step()

    both(body, make, **options)


def test_training_goes_on_while_another_worker_makes_no_gradient() -> None:
    """A worker whose loss used nothing of the model counts with its weight, and with zeros."""
    x, y = batch(0, 4)

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, momentum)
        run.weight(4)
        if run.is_first:
            F.mse_loss(model(x), y).backward()
        optimizer.step()
        return weights(model)

    model = small_model()
    (F.mse_loss(model(x), y) / 2).backward()
    momentum(model).step()
    for place in ("auto", "workers"):
        results, _ = train([1, 1], main, Settings(place=place))
        assert_close(results["B/0"], weights(model))
