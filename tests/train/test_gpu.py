"""Models on a GPU: what a run makes of them is what it makes of them on the CPU. Skipped where there is none."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from finite_runs import CODECS
from live_runs import Make, adam, assert_alike, own, place_of, sgd, small_model, weights
from policy_runs import train_by
from test_sparse_gradients import Words, batch_of
from torch import nn

from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.layout import Layout, Tensor
from geomx.node.slices.devices import beside, on_host, placed
from geomx.node.topology import Edge
from geomx.train import LiveRun

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU that PyTorch can compute on"),
]
STEPS = 8


def script(device: str, make: Make, model_of: Any, batches: Any, loss_of: Any, **options: Any) -> Any:
    def main(run: LiveRun) -> dict[str, torch.Tensor]:
        inner = model_of(place_of(run)).to(device)
        model, optimizer = run.attach(inner, make(inner), **options)
        for step in range(STEPS):
            x, y = batches(step, place_of(run))
            run.weight(len(x))
            optimizer.zero_grad()
            loss_of(model(x.to(device)).double(), y.to(device)).backward()
            optimizer.step()
        run.close()
        return {name: value.cpu() for name, value in weights(model).items()}

    return main


def numbers(step: int, place: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(100 * step + place)
    samples = 3 + 2 * place
    x = torch.randn(samples, 20, generator=generator, dtype=torch.float64)
    return x, torch.randn(samples, 5, generator=generator, dtype=torch.float64)


def both(spec: str, make: Make, dtype: torch.dtype = torch.float64, how: Any = None, **options: Any) -> Any:
    """On the GPU, and on the CPU."""

    def batches(step: int, place: int) -> tuple[torch.Tensor, torch.Tensor]:
        x, y = numbers(step, place)
        return x.to(dtype), y

    def of(device: str) -> dict[str, dict[str, torch.Tensor]]:
        main = script(device, make, lambda seed: small_model(seed).to(dtype), batches, F.mse_loss, **options)
        return train_by(spec, (2, 1), main, None, **(how or {}))[0]

    there, here = of("cuda"), of("cpu")
    if spec not in ("mixed", "downpour"):  # whose parties have other weights
        assert_alike(there)
    return there["A/0"], here["A/0"]


@pytest.mark.parametrize("spec", ["fsa", "hfa k1=2 k2=2", "diloco every=2", "mixed", "downpour"])
def test_policies(spec: str) -> None:
    there, here = both(spec, sgd)
    for name, values in here.items():
        assert torch.allclose(there[name], values, rtol=1e-9, atol=1e-12), name


@pytest.mark.parametrize("make", [adam, own])
@pytest.mark.parametrize("options", [{"push_at": "step"}, {"overlap": "forward"}, {"clip_norm": 0.1}])
def test_options_of_attach(make: Make, options: dict[str, Any]) -> None:
    if make is own and "overlap" in options:
        return  # needs an optimizer on the global servers
    there, here = both("fsa", make, **options)
    for name, values in here.items():
        assert torch.allclose(there[name], values, rtol=1e-7, atol=1e-9), name


@pytest.mark.parametrize("make", [adam, own])
@pytest.mark.parametrize("codec", ["dense", "int4"])
def test_half_precision(codec: str, make: Make) -> None:
    there, here = both("fsa", make, torch.bfloat16, {"wan": Edge(codec, codec)})
    for name, values in here.items():
        assert torch.allclose(there[name].float(), values.float(), rtol=0.05, atol=0.02), name


@pytest.mark.parametrize("codec", CODECS)
def test_codecs_write_there_what_kernels_write_here(codec: str) -> None:
    """Three turns, with what each leaves for the next."""
    slice_ = Layout((Tensor("x", (50_000,), "float32"),)).slices[0]
    there, here = make_codec(codec, RngKey()), make_codec(codec, RngKey())
    for turn in range(3):
        values = torch.randn(slice_.elements, generator=torch.Generator().manual_seed(turn))
        on_gpu = placed(values, torch.device("cuda", 0))
        with beside(on_gpu.device):
            payload = on_host(there.encode(slice_, turn, on_gpu, 2.0))
        assert torch.equal(payload, here.encode(slice_, turn, values, 2.0))


def test_a_worker_encodes_there_and_keeps_what_is_left_there() -> None:
    there, here = both("fsa", sgd, torch.float32, {"lan": Edge("int4 size_lower_bound=1", "dense")})
    for name, values in here.items():
        assert torch.allclose(there[name], values, rtol=0.01, atol=0.01), name


@pytest.mark.parametrize("spec", ["fsa", "diloco every=20"])
def test_the_loop_waits_for_nothing(spec: str) -> None:
    """PyTorch's own word for it: whatever makes this thread wait raises."""

    def main(run: LiveRun) -> None:
        model, optimizer = run.attach(inner := small_model(0).cuda(), sgd(inner))
        x, y = (each.cuda() for each in numbers(0, place_of(run)))
        run.weight(len(x))
        loss = F.mse_loss(model(x), y)
        torch.cuda.set_sync_debug_mode("error")
        try:
            loss.backward()
            if spec != "fsa":
                optimizer.step()
        finally:
            torch.cuda.set_sync_debug_mode("default")
        if spec == "fsa":
            optimizer.step()
        run.close()

    train_by(spec, (), main)


@pytest.mark.parametrize("make", [sgd, own])
def test_sparse_gradients(make: Make) -> None:
    def plain(model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.5) if make is sgd else make(model)

    def of(device: str) -> dict[str, torch.Tensor]:
        main = script(device, plain, Words, batch_of, F.cross_entropy)
        return train_by("fsa", (1, 1), main)[0]["A/0"]

    there, here = of("cuda"), of("cpu")
    for name, values in here.items():
        assert torch.allclose(there[name], values, rtol=1e-9, atol=1e-12), name
