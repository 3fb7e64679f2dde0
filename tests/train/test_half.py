"""Models whose parameters are in half precision: float32 masters, bytes of half the size, the same bits everywhere."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import (
    assert_alike,
    assert_equal,
    begin,
    dies,
    own,
    parts_of,
    place_of,
    sgd,
    sleep,
    small_model,
    train,
    weights,
)
from policy_runs import train_by
from safetensors.torch import load_file
from torch import nn

from geomx.codecs.pack.values import FORMS
from geomx.node.topology import Edge
from geomx.rounds.losses import Losses
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

STEPS = 6
HALVES = {"bfloat16": torch.bfloat16, "float16": torch.float16}
FORM = {torch.bfloat16: FORMS["bf16"](), torch.float16: FORMS["fp16"]()}
Make = Callable[[nn.Module], torch.optim.Optimizer]


def adamw(model: nn.Module) -> torch.optim.Optimizer:
    """Steps that are often smaller than half a unit in the last place of a bfloat16."""
    return torch.optim.AdamW(model.parameters(), lr=1e-4)


def momentum(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def loss_of(model: nn.Module, step: int, place: int, places: int) -> torch.Tensor:
    x, y = parts_of(step, places, torch.float32)[place]
    return F.mse_loss(model(x.to(next(model.parameters()).dtype)).float(), y)


def script(make: Make, dtype: torch.dtype, steps: range = range(STEPS), **files: Path) -> Any:
    """`load`, `save`: checkpoints before and behind the steps."""

    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, make, small_model(place_of(run), torch.float32).to(dtype))
        if "load" in files:
            run.load(files["load"])
        for step in steps:
            run.weight(len(parts_of(step, len(run.workers))[place_of(run)][0]))
            optimizer.zero_grad()
            loss_of(model, step, place_of(run), len(run.workers)).backward()
            optimizer.step()
        if "save" in files:
            run.save(files["save"])
        run.close()
        return weights(model)

    return main


def alone(make: Make, dtype: torch.dtype, places: int) -> dict[str, torch.Tensor]:
    """One process that does what a run of one worker a party does: sums in float32, and a float32 optimizer."""
    model = small_model(0, torch.float32).to(dtype)
    masters = small_model(0, torch.float32).to(dtype).float()
    optimizer = make(masters)
    form = FORM[dtype]
    for step in range(STEPS):
        sums = [torch.zeros_like(p) for p in masters.parameters()]
        total = 0
        for place in range(places):
            model.zero_grad()
            loss_of(model, step, place, places).backward()
            samples = len(parts_of(step, places)[place][0])
            total += samples
            for total_of, parameter in zip(sums, model.parameters(), strict=True):
                assert parameter.grad is not None
                given = (parameter.grad.float() * samples).reshape(-1)
                total_of.add_(form.unpack(form.pack(given), given.numel(), torch.float32).view_as(total_of))
        for total_of, master in zip(sums, masters.parameters(), strict=True):
            master.grad = total_of / total
        optimizer.step()
        with torch.no_grad():
            for parameter, master in zip(model.parameters(), masters.parameters(), strict=True):
                parameter.copy_(master)
    return weights(model)


@pytest.mark.parametrize("make", [momentum, adamw])
@pytest.mark.parametrize("place", ["server", "workers"])
def test_bfloat16_is_bit_for_bit_float32_masters(make: Make, place: Any) -> None:
    results, _ = train([1, 1, 1], script(make, torch.bfloat16), Settings(place=place, pack_below=0))
    assert_alike(results)
    if place == "server":
        assert_equal(results["B/0"], alone(make, torch.bfloat16, 3))
    else:  # what comes down is the mean in bfloat16
        theirs = alone(make, torch.bfloat16, 3)
        for name, values in results["A/0"].items():
            assert torch.allclose(values.float(), theirs[name].float(), rtol=0.02, atol=2e-3)


CODECS = {"dense": {}, "int4": {"wan": Edge("int4", "int4")}}


@pytest.mark.parametrize(
    ("spec", "codec", "name", "make"),
    each_value(["fsa", "hfa k1=2 k2=2", "diloco every=3"], CODECS, HALVES, [momentum, own]),
)
def test_replicas_are_alike_and_near_float32(spec: str, codec: str, name: str, make: Make) -> None:
    half, _ = train_by(spec, [2, 1], script(make, HALVES[name], range(12)), **CODECS[codec])
    full, _ = train_by(spec, [2, 1], script(make, torch.float32, range(12)), **CODECS[codec])
    assert_alike(half)
    for key, values in full["A/0"].items():
        assert half["A/0"][key].dtype == HALVES[name]
        assert torch.allclose(half["A/0"][key].float(), values, rtol=0.05, atol=0.02)


@pytest.mark.parametrize("spec", ["mixed", "downpour n_push=2"])
def test_they_learn_where_parties_do_not_wait(spec: str) -> None:
    def loss(steps: int) -> float:
        results, _ = train_by(spec, [2, 1], script(sgd, torch.bfloat16, range(steps)))
        model = small_model(0, torch.float32).bfloat16()
        model.load_state_dict(results["A/0"])
        with torch.no_grad():
            return sum(float(loss_of(model, step, place, 3)) for step in range(5) for place in range(3))

    assert loss(25) < 0.8 * loss(0)


@pytest.mark.parametrize("make", [adamw, own])
@pytest.mark.parametrize("place", ["server", "workers"])
@pytest.mark.parametrize("codec", CODECS)
def test_a_checkpoint_goes_on_with_the_same_bits(tmp_path: Path, codec: str, place: Any, make: Make) -> None:
    """Steps too small for bfloat16 are in it."""
    if make is own and place == "server":
        return
    how: dict[str, Any] = CODECS[codec]
    given = {"place": place}
    at = tmp_path / "half.safetensors"
    whole, _ = train_by("fsa", [1, 1], script(make, torch.bfloat16, range(8)), given, **how)
    train_by("fsa", [1, 1], script(make, torch.bfloat16, range(4), save=at), given, **how)
    again, _ = train_by("fsa", [1, 1], script(make, torch.bfloat16, range(4, 8), load=at), given, **how)
    assert_equal(again["A/0"], whole["A/0"])
    assert_equal(again["B/0"], whole["A/0"])


def test_masters_of_workers_are_the_servers_weights_after_a_checkpoint(tmp_path: Path) -> None:
    first, second = (tmp_path / f"{name}.safetensors" for name in ("workers", "server"))
    whole, _ = train_by("fsa", [1, 1], script(adamw, torch.bfloat16, range(8)), {"place": "server"})
    train_by("fsa", [1, 1], script(adamw, torch.bfloat16, range(4), save=first), {"place": "workers"})
    moved = script(adamw, torch.bfloat16, range(4, 8), load=first, save=second)
    again, _ = train_by("fsa", [1, 1], moved, {"place": "server"})
    assert any(name.endswith(".master") for name in load_file(first))
    assert not any(name.endswith(".master") for name in load_file(second))
    for name, values in whole["A/0"].items():
        assert torch.allclose(again["A/0"][name].float(), values.float(), rtol=0.01, atol=2e-3)


@pytest.mark.parametrize("place", ["server", "workers"])
def test_loading_the_state_that_is_there_changes_nothing(place: Any) -> None:
    """Not even what is too small for the parameter's type."""

    def of(loads: bool) -> dict[str, dict[str, torch.Tensor]]:
        def main(run: LiveRun) -> dict[str, torch.Tensor]:
            model, optimizer = begin(run, adamw, small_model(0, torch.float32).bfloat16())
            for step in range(12):
                run.weight(len(parts_of(step, 2)[place_of(run)][0]))
                optimizer.zero_grad()
                loss_of(model, step, place_of(run), 2).backward()
                optimizer.step()
                if step == 5 and loads:
                    optimizer.load_state_dict(optimizer.state_dict())
            run.close()
            return weights(model)

        return train_by("fsa", [1, 1], main, {"place": place})[0]

    assert_equal(of(True)["B/0"], of(False)["A/0"])


@pytest.mark.parametrize(("codec", "victims"), each_value(CODECS, [("B/0",), ("B", "B/0"), ("A/1",)]))
def test_whoever_comes_back_has_the_weights_of_the_others(codec: str, victims: tuple[str, ...]) -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        model, optimizer = begin(run, adamw, small_model(place_of(run), torch.float32).bfloat16())
        while run.step < 60:
            sleep(run, 0.05)
            run.weight(1)
            optimizer.zero_grad()
            loss_of(model, run.step, place_of(run), 3).backward()
            optimizer.step()
        run.close()
        return weights(model)

    how: dict[str, Any] = {
        "losses": Losses("continue", 60.0),
        "patience": Patience(0.1, 0.4),
        **CODECS[codec],
    }
    faults = dies(*victims, at_s=0.5, back_s=1.3)
    results, _ = train_by("fsa", [2, 1], main, {"on_loss": "continue"}, faults=faults, **how)
    assert len(results) == 3
    assert_alike(results)


class Several(nn.Module):
    """Parts in several types; of one, only what it adds is trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = small_model(0, torch.float32).bfloat16()
        self.norm = nn.BatchNorm1d(5).bfloat16()
        self.last = nn.Linear(5, 5)
        frozen = torch.arange(25.0).view(5, 5).to(torch.float8_e4m3fn)
        self.base = nn.Parameter(frozen, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(self.body(x.bfloat16())).float()
        return self.last(x + 1e-3 * (x @ self.base.float()))


@pytest.mark.parametrize("spec", ["fsa", "hfa k1=2 k2=2"])
def test_several_types_in_one_model(spec: str) -> None:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        torch.manual_seed(place_of(run))
        model, optimizer = begin(run, momentum, Several())
        for step in range(STEPS):
            x, y = parts_of(step, 2, torch.float32)[place_of(run)]
            run.weight(len(x))
            optimizer.zero_grad()
            F.mse_loss(model(x), y).backward()
            optimizer.step()
        run.close()
        return {name: value for name, value in weights(model).items() if "running" not in name}

    results, _ = train_by(spec, [1, 1], main)
    assert {str(value.dtype) for value in results["A/0"].values()} >= {
        "torch.bfloat16", "torch.float32", "torch.float8_e4m3fn"
    }  # fmt: skip
    for name, value in results["A/0"].items():
        assert torch.equal(value.float(), results["B/0"][name].float()), name


def test_bytes_are_half() -> None:
    def sent(dtype: torch.dtype) -> tuple[int, int]:
        _, simulator = train([1, 1], script(momentum, dtype, range(20)))
        return simulator.sent_bytes("A", "global/0"), simulator.sent_bytes("global/0", "A")

    for half, full in zip(sent(torch.bfloat16), sent(torch.float32), strict=True):
        assert half < 0.62 * full  # the first weights travel in float32
