"""overlap="forward": the forward begins before the update is complete, and nobody reads a stale weight."""

from __future__ import annotations

import copy
import io
import pickle
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from exploring import each_value
from live_runs import assert_equal, batch, drawn, lockstep, small_model, train, weights
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from geomx.simulate.simulator import Network
from geomx.train import LiveRun, Settings
from geomx.train.steps.pending import Pending

WAN = Network(rate_mbps=2.0, delay_ms=20.0)
CUT = Settings(slice_elements=256, pack_below=100)
Read = Callable[[nn.Module], Any]


def pending(model: nn.Module) -> list[str]:
    return [name for name, parameter in model.named_parameters() if type(parameter) is Pending]


def attached(run: LiveRun, overlap: str, model: nn.Module | None = None) -> tuple[Any, torch.optim.Optimizer]:
    model = small_model() if model is None else model
    return run.attach(model, torch.optim.Adam(model.parameters(), lr=0.01), overlap=overlap)  # type: ignore[arg-type]


def with_and_without(main: Callable[[LiveRun, str], Any], parties: tuple[int, ...] = (1, 1)) -> list[Any]:
    """What the last worker's script returns with overlap, and without, where `step()` waits."""
    found = []
    for overlap in ("forward", "none"):
        results, _ = train(parties, partial(main, overlap=overlap), CUT, network=WAN)
        found.append(list(results.values())[-1])
        torch._dynamo.reset()
    return found


def same_as_without_overlap(read: Read, make_model: Callable[[], nn.Module] = small_model) -> None:
    """What `read` sees right after a step is what it sees without overlap."""

    def main(run: LiveRun, overlap: str) -> list[torch.Tensor]:
        model, optimizer = attached(run, overlap, make_model())
        lockstep(run, model, optimizer, [0])
        assert bool(pending(model)) == (overlap == "forward")
        leaves = torch.utils._pytree.tree_leaves(read(model))
        return [leaf.detach().clone() for leaf in leaves if isinstance(leaf, torch.Tensor)]

    ours, theirs = with_and_without(main)
    assert ours
    assert all(torch.equal(one, other) for one, other in zip(ours, theirs, strict=True))


X = batch(7, 4)[0]


def ema(model: nn.Module) -> Any:
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9))
    averaged.update_parameters(model)
    averaged.update_parameters(model)
    return list(averaged.parameters())


def pickled(model: nn.Module) -> Any:
    return list(pickle.loads(pickle.dumps(model)).parameters())


def saved(model: nn.Module) -> Any:
    file = io.BytesIO()
    torch.save(model.state_dict(keep_vars=True), file)
    file.seek(0)
    return torch.load(file)


def evaluated(model: nn.Module) -> Any:
    model.eval()
    with torch.no_grad():
        output = model(X)
    assert not pending(model)
    return output


READS: dict[str, Read] = {
    "forward": lambda model: model(X),
    "evaluation": evaluated,
    "state_dict": lambda model: model.state_dict(),
    "state_dict of tensors that know their history": lambda model: {
        name: tensor.data for name, tensor in model.state_dict(keep_vars=True).items()
    },
    "deepcopy": lambda model: list(copy.deepcopy(model).parameters()),
    "pickle": pickled,
    "torch.save": saved,
    "a list in one call": lambda model: torch._foreach_mul(list(model.parameters()), 2.0),
    "parameters_to_vector": lambda model: nn.utils.parameters_to_vector(model.parameters()),
    "norm": lambda model: nn.utils.get_total_norm(list(model.parameters())),
    "functional_call": lambda model: torch.func.functional_call(model, dict(model.named_parameters()), (X,)),
    "ensemble": lambda model: torch.func.stack_module_state([model, model])[0],
    "exponential moving average": ema,
    "numpy": lambda model: [torch.from_numpy(p.detach().numpy().copy()) for p in model.parameters()],
    "data": lambda model: [p.data for p in model.parameters()],
    "untyped_storage": lambda model: [torch.tensor(list(p.untyped_storage())[:64]) for p in model.parameters()],
    "indexing": lambda model: model[0].weight[1, 2:4],
    "text": lambda model: [torch.tensor(list(repr(p).encode())) for p in model.parameters()],
    "operators": lambda model: model[0].weight.T @ model[0].weight + 1,
    "to": lambda model: list(model.to(torch.float32).parameters()),
    "load_state_dict of another": lambda model: [
        small_model(1).load_state_dict(model.state_dict()), *model.parameters()
    ],
    "submodule": lambda model: model[2](torch.ones(1, 64, dtype=torch.float64)),
    "item": lambda model: torch.tensor([p.sum().item() for p in model.parameters()]),
}  # fmt: skip


@pytest.mark.parametrize("how", READS)
def test_nobody_reads_a_stale_weight(how: str) -> None:
    same_as_without_overlap(READS[how])


class Attention(nn.Module):
    """`nn.MultiheadAttention` reads the parameters of its child `out_proj` without calling it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.attention = nn.MultiheadAttention(20, 2, batch_first=True, dtype=torch.float64)
        self.last = nn.Linear(20, 5, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x[:, None]
        return self.last(self.attention(x, x, x)[0])[:, 0]


class Recurrent(nn.Module):
    """An LSTM hands all its weights to one function as a list."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.lstm = nn.LSTM(20, 16, dtype=torch.float64)
        self.last = nn.Linear(16, 5, dtype=torch.float64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(self.lstm(x)[0])


@pytest.mark.parametrize("make_model", [Attention, Recurrent])
def test_modules_that_read_what_is_not_theirs(make_model: Callable[[], nn.Module]) -> None:
    same_as_without_overlap(lambda model: model(X), make_model)
    same_as_without_overlap(evaluated, make_model)


def test_what_says_nothing_about_values_does_not_wait() -> None:
    def main(run: LiveRun) -> None:
        model, optimizer = attached(run, "forward")
        lockstep(run, model, optimizer, [0])
        before = pending(model)
        for parameter in model.parameters():
            assert isinstance(parameter, nn.Parameter)
            assert parameter.shape == parameter.size()
            assert len(parameter) == parameter.shape[0]
            assert parameter.numel() == torch.numel(parameter)
            assert parameter.requires_grad
            assert parameter.is_leaf
            assert parameter.dtype == torch.float64
            assert parameter.device.type == "cpu"
            assert parameter.ndim == parameter.dim()
            assert parameter.grad is not None
            assert hash(parameter) == id(parameter)
            assert parameter in {parameter}
        optimizer.zero_grad()
        model.requires_grad_(True)
        assert pending(model) == before == ["0.weight", "0.bias", "2.weight", "2.bias"]

    train([1, 1], main, CUT, network=WAN)


def test_the_forward_begins_before_the_update_is_complete() -> None:
    """The first layer's weights overtake the others, and the forward waits for each layer in turn."""
    steps = 3

    def main(run: LiveRun) -> None:
        model, optimizer = attached(run, "forward")
        lockstep(run, model, optimizer, range(steps))

    _, simulator = train([1, 1], main, CUT, network=WAN)
    spans = [fields for _, node, fields in simulator.noted("span") if node == "A/0"]

    def of(label: str) -> list[dict[str, Any]]:
        return [span for span in spans if span["label"] == label]

    forwards, waits = of("forward"), of("wait for 2.weight")
    assert len(forwards) == steps
    for forward, first, last in zip(forwards[1:], of("wait for 0.weight"), waits, strict=True):
        assert forward["start"] == first["start"]  # the forward had begun ...
        assert first["stop"] < last["stop"] <= forward["stop"]  # ... and ended waiting for the last layer
    assert [span["stop"] - span["start"] for span in of("step")] == [0.0] * steps  # step() waited for nothing


def test_pushes_leave_during_backward() -> None:
    def main(run: LiveRun) -> list[str]:
        model, optimizer = attached(run, "none")
        x, y = drawn(run, 0)
        seen: list[str] = []
        call = run._client.port.call

        def spy(method: str, *arguments: Any) -> None:
            seen.append(method)
            call(method, *arguments)

        run._client.port.call = spy  # type: ignore[method-assign]
        model[0].weight.register_hook(lambda gradient: seen.append("gradient of the first layer"))
        F.mse_loss(model(x), y).backward()
        seen.append("end of backward")
        optimizer.step()
        return seen

    results, _ = train([1, 1], main, CUT)
    seen = results["A/0"]
    first_layer, end = seen.index("gradient of the first layer"), seen.index("end of backward")
    assert "contribute" in seen[:first_layer]
    assert "contribute" in seen[first_layer:end]
    assert "contribute" not in seen[end:]


def test_close_and_wait_leave_ordinary_parameters() -> None:
    def main(run: LiveRun) -> nn.Module:
        model, optimizer = attached(run, "forward")
        lockstep(run, model, optimizer, [0])
        run.wait()
        assert not pending(model)
        lockstep(run, model, optimizer, [1])
        return model

    results, _ = train([1, 1], main, CUT, network=WAN)
    for model in results.values():
        assert all(type(parameter) is nn.Parameter for parameter in model.parameters())
        assert not any(vars(parameter) for parameter in model.parameters())
        assert not model._forward_pre_hooks
        assert not model._forward_hooks


def test_parameters_of_another_class_are_waited_for() -> None:
    class Own(nn.Parameter):
        pass

    def main(run: LiveRun, overlap: str) -> dict[str, torch.Tensor]:
        model = small_model()
        model[0].weight.__class__ = Own
        model, optimizer = attached(run, overlap, model)
        lockstep(run, model, optimizer, [0])
        assert "0.weight" not in pending(model)
        return weights(model)

    assert_equal(*with_and_without(main))


# torch deprecates tracing; users have traced modules all the same.
@pytest.mark.filterwarnings(
    r"ignore:`torch.jit.trace(_method)?` is deprecated:DeprecationWarning:torch.jit._trace"
)
def test_a_scripted_module_is_waited_for() -> None:
    def main(run: LiveRun, overlap: str) -> tuple[list[str], torch.Tensor]:
        model = small_model()
        model[0] = torch.jit.trace(model[0], X)
        model, optimizer = attached(run, overlap, model)
        lockstep(run, model, optimizer, [0])
        return pending(model), model(X).detach()

    overlapped, waited = with_and_without(main)
    assert overlapped[0] == ["2.weight"]  # the biases share a slice
    assert torch.equal(overlapped[1], waited[1])


@pytest.mark.usefixtures("_fresh_dynamo")
@pytest.mark.parametrize(
    ("compiled", "backend"),
    each_value(
        ["a function of weights", "a function that calls the model", "a submodule"], ["aot_eager", "eager"]
    ),
)
def test_compiled_code_reads_no_stale_weight(compiled: str, backend: str) -> None:
    """Also when it is compiled again and again, until the limit at which torch gives up compiling.

    One worker: torch compiles in one thread of a process at a time, and here workers are threads.
    """

    def main(run: LiveRun, overlap: str) -> list[torch.Tensor]:
        model, optimizer = attached(run, overlap)
        first = torch.compile(model[0], backend=backend)
        functions: dict[str, Callable[[], torch.Tensor]] = {
            "a function of weights": lambda: model[0].weight * 2 + model[2].weight.sum(),
            "a function that calls the model": lambda: model(X),
            "a submodule": lambda: model[2](model[1](first(X))),
        }
        function = functions[compiled]
        if compiled != "a submodule":
            function = torch.compile(function, backend=backend)
        seen = []
        for step in range(torch._dynamo.config.recompile_limit + 3):
            lockstep(run, model, optimizer, [step])
            seen.append(function().detach().clone())
        return seen

    for ours, theirs in zip(*with_and_without(main, (1,)), strict=True):
        # torch says "compiling" to every thread: Adam at the root, here a thread, then computes with float32 numbers
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)  # a stale weight is off by 1e-2


def test_what_cannot_wait_sees_no_stale_weight() -> None:
    """The transforms of torch.func take tensors without asking them; they see NaN, unless one waits before."""

    def main(run: LiveRun) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        model, optimizer = attached(run, "forward")
        square = torch.func.grad(lambda weight: (weight**2).sum())
        lockstep(run, model, optimizer, [0])
        early = square(model[0].weight).detach()
        run.wait()
        return early, square(model[0].weight).detach(), model[0].weight.detach().clone()

    results, _ = train([1, 1], main, CUT, network=WAN)
    early, late, weight = results["A/0"]
    assert early.isnan().all()
    assert torch.equal(late, 2 * weight)


def test_a_graph_from_before_the_update_is_refused_as_in_pytorch() -> None:
    def main(run: LiveRun) -> None:
        model, optimizer = attached(run, "forward")
        loss = model(X).square().sum()
        lockstep(run, model, optimizer, [0])
        run.wait()
        loss.backward()

    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        train([1], main, CUT, network=WAN)
