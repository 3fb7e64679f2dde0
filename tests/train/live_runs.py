"""Training loops on real nodes and the virtual clock, and the same training in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from trees import assert_well, topology_of

from geomx.errors import RunFailed
from geomx.node.factory import make_node
from geomx.node.topology import Topology
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Network, Simulator
from geomx.train import LiveRun, Settings

torch.set_num_threads(1)

Script = Callable[[LiveRun], Any]
Make = Callable[[nn.Module], torch.optim.Optimizer]
Faults = Callable[[Simulator, Callable[[str], None]], None]
LAN = Network(rate_mbps=1000.0, delay_ms=1.0)


def train(
    parties: Sequence[int],
    script: Script,
    settings: Settings | None = None,
    shards: int = 1,
    network: Network = LAN,
    faults: Faults = lambda *_: None,
    **plan_fields: Any,
) -> tuple[dict[str, Any], Simulator]:
    """Run a script on every worker of a run; what it returns, by worker. Raises what the first of them raised.

    `faults(simulator, restart)`: what goes wrong on the way; `restart(node)` starts one that has crashed.
    """
    topology = Topology.solo() if list(parties) == [] else topology_of(list(parties), shards, **plan_fields)
    simulator, results = Simulator(0, network), dict[str, Any]()

    def main(program: Program) -> None:
        torch.set_num_threads(1)  # holds for the thread that calls it
        run = LiveRun(
            program, name=program.name, tree=topology.tree, settings=settings, clock=lambda: program.now
        )
        with run:
            results[program.name] = script(run)

    for name in topology.tree.nodes:
        simulator.add(make_node(topology, name))
    programs = {name: simulator.program(name, main) for name in topology.tree.workers}

    def restart(node: str) -> None:
        simulator.add(make_node(topology, node, incarnation=2))
        if topology.tree.is_worker(node):
            programs[node] = simulator.program(node, main)

    faults(simulator, restart)
    simulator.run(until=600.0)
    errors = [program.error for program in programs.values() if program.error is not None]
    for error in sorted(errors, key=lambda error: isinstance(error, RunFailed)):
        raise error
    assert_well(simulator, topology, programs)
    return results, simulator


def dies(*victims: str, at_s: float, back_s: float | None = None) -> Faults:
    """Nodes crash; they are started again at `back_s`."""

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        for victim in victims:
            simulator.at(at_s, partial(simulator.crash, victim))
        for victim in victims if back_s is not None else ():
            simulator.at(back_s, partial(restart, victim))

    return faults


def pauses(victim: str, at_s: float, for_s: float) -> Faults:
    """A node stands still."""
    return lambda simulator, _: simulator.at(at_s, lambda: simulator.pause(victim, for_s))


def cuts(one: str, other: str, at_s: float, for_s: float, reset: bool = False) -> Faults:
    """Two nodes hear nothing of each other."""
    return lambda simulator, _: simulator.at(at_s, lambda: simulator.cut(one, other, for_s, reset=reset))


def small_model(seed: int = 0, dtype: torch.dtype = torch.float64) -> nn.Sequential:
    """A tensor that is cut into several slices (with `slice_elements` of 512), and some that share one."""
    generator = torch.Generator().manual_seed(seed)
    model = nn.Sequential(nn.Linear(20, 64), nn.Tanh(), nn.Linear(64, 5)).to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=dtype) * 0.2)
    return model


def batch(index: int, samples: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """Inputs [samples, 20] and targets [samples, 5] that depend on the index alone."""
    generator = torch.Generator().manual_seed(1000 + index)
    x = torch.randn(samples, 20, generator=generator, dtype=dtype)
    return x, torch.randn(samples, 5, generator=generator, dtype=dtype)


def place_of(run: LiveRun) -> int:
    return run.workers.index(run.name)


def samples_of(place: int) -> int:
    """Workers have batches of different sizes."""
    return 3 + 2 * place


def parts_of(
    step: int, places: int, dtype: torch.dtype = torch.float64
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Every worker's batch in a step."""
    return [batch(100 * step + place, samples_of(place), dtype) for place in range(places)]


def drawn(run: LiveRun, step: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """A worker's own batch in a step, which it has weighed."""
    x, y = parts_of(step, len(run.workers), dtype)[place_of(run)]
    run.weight(len(x))
    return x, y


def joined(step: int, places: int, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    """The concatenated batch of all workers in a step."""
    xs, ys = zip(*parts_of(step, places, dtype), strict=True)
    return torch.cat(xs), torch.cat(ys)


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.05)


def adam(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adam(model.parameters(), lr=0.003)


class OwnSGD(torch.optim.SGD):
    """No rule of the servers': it runs on the workers."""


def own(model: nn.Module) -> torch.optim.Optimizer:
    return OwnSGD([p for p in model.parameters() if p.requires_grad], lr=0.05, momentum=0.9)


def begin(
    run: LiveRun, make: Make = sgd, model: nn.Module | None = None, **options: Any
) -> tuple[Any, torch.optim.Optimizer]:
    """A model and an optimizer in the run; unless one is given, each worker comes with weights of its own."""
    model = model or small_model(seed=place_of(run))
    return run.attach(model, make(model), **options)


def descend(model: nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor, y: torch.Tensor) -> None:
    """A step as a user writes it."""
    optimizer.zero_grad()
    F.mse_loss(model(x), y).backward()
    optimizer.step()


def lockstep(run: LiveRun, model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int]) -> None:
    """A worker's steps with these numbers, on its own batches, which it has weighed."""
    for step in steps:
        descend(model, optimizer, *drawn(run, step, next(model.parameters()).dtype))


def plain(
    model: nn.Module, optimizer: torch.optim.Optimizer, steps: Iterable[int], places: int
) -> dict[str, torch.Tensor]:
    """The same in plain PyTorch, on the batches of all; the weights behind it."""
    for step in steps:
        descend(model, optimizer, *joined(step, places))
    return weights(model)


def sleep(run: LiveRun, seconds: float) -> None:
    """Of the virtual clock."""
    run._client.port.sleep(seconds)  # type: ignore[attr-defined]


def now(run: LiveRun) -> float:
    """Of the virtual clock, in seconds."""
    return float(run._client.port.now)  # type: ignore[attr-defined]


def gradients(model: nn.Module, step: int, places: list[int], everyone: int) -> list[torch.Tensor]:
    """The sample-weighted mean gradient of some workers, in plain PyTorch."""
    parts = parts_of(step, everyone)
    total = sum(len(parts[place][0]) for place in places)
    means = [torch.zeros_like(p) for p in model.parameters()]
    for place in places:
        x, y = parts[place]
        found = torch.autograd.grad(F.mse_loss(model(x), y), list(model.parameters()))
        for mean, gradient in zip(means, found, strict=True):
            mean.add_(gradient, alpha=len(x) / total)
    return means


def apply(model: nn.Module, optimizer: torch.optim.Optimizer, found: list[torch.Tensor]) -> None:
    for parameter, gradient in zip(model.parameters(), found, strict=True):
        parameter.grad = gradient
    optimizer.step()


def weights(model: nn.Module) -> dict[str, torch.Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def assert_close(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor], rtol: float = 1e-12) -> None:
    """Equal up to float64's rounding, relative to each tensor's largest element."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        if not expected.numel():
            continue
        error = (ours[name] - expected).abs().max().item()
        assert error <= rtol * max(expected.abs().max().item(), 1e-30), f"{name}: {error}"


def assert_equal(ours: dict[str, torch.Tensor], theirs: dict[str, torch.Tensor]) -> None:
    """Bit for bit."""
    assert ours.keys() == theirs.keys()
    for name, expected in theirs.items():
        assert torch.equal(ours[name], expected), name


def assert_alike(results: dict[str, dict[str, torch.Tensor]]) -> None:
    """All workers have the same bits."""
    first, *others = results.values()
    for other in others:
        assert_equal(other, first)


def root_s(simulator: Simulator, name: str) -> list[dict[str, Any]]:
    """What the first shard has noted under this name."""
    return [fields for _, node, fields in simulator.noted(name) if node == "global/0"]
