"""Scripts that train on the virtual clock, with sums that are exact: so runs can be compared bit for bit.

Gradients are small integers, whatever the weights; learning rates and numbers of workers are powers of two.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from trees import assert_well

from geomx.layout import Layout, Slice
from geomx.node.aggregator import Aggregator
from geomx.node.factory import make_node
from geomx.node.port import Contribution
from geomx.node.root import Root
from geomx.node.server import Server
from geomx.node.topology import Topology
from geomx.node.uplink import Uplink
from geomx.node.worker import Worker
from geomx.rounds.round import Round
from geomx.simulate.network import Network
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Simulator
from geomx.sync import policies
from geomx.sync.contract import LocalStep
from geomx.train import LiveRun, Settings
from geomx.train.model.model_slices import LEDGER

torch.set_num_threads(1)
ELEMENTS, STEPS, LR = 25_000, 4, 2.0**-4


class Recorder:
    """A worker's port, which adds up what is pushed to each slice."""

    def __init__(self, program: Program, pushed: dict[int, torch.Tensor]) -> None:
        self._program, self._pushed = program, pushed
        self.layout: Layout | None = None
        self.weights: set[float] = set()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._program, name)

    def call(self, method: str, *arguments: Any) -> None:
        if method == "attach":
            self.layout = arguments[0]
        elif method == "contribute":
            self._note(arguments[0])
        self._program.call(method, *arguments)

    def _note(self, given: Contribution) -> None:
        push, values = given.push, given.values
        if push.kind == "gradient" and values is not None and values.dtype.is_floating_point:
            self.weights.add(push.weight)
            before = self._pushed.get(push.slice, 0.0)
            self._pushed[push.slice] = before + values.to(torch.float64)


class Weights(torch.nn.Module):
    """A tensor that travels in many blocks, one in a few, and a tiny one."""

    def __init__(self) -> None:
        super().__init__()
        for name, size in {"large": ELEMENTS, "small": 3000, "tiny": 40}.items():
            setattr(self, name, torch.nn.Parameter(torch.zeros(size)))


def gradient(place: int, step: int, tensor: int, size: int) -> torch.Tensor:
    """Integers from -7 to 7 that depend on the arguments alone."""
    generator = torch.Generator().manual_seed(1000 * place + 10 * step + tensor)
    return torch.randint(-7, 8, (size,), generator=generator).to(torch.float32)


def counts(simulator: Simulator, topology: Topology) -> Counter[str]:
    """Of what goes up to the shards: pieces that were sent, and sent again; that came, and that came too late."""
    edges = [(party, shard) for party in topology.tree.parties for shard in topology.tree.shards]
    found: Counter[str] = Counter()
    for party, shard in edges:
        for (node, peer), names in (((party, shard), ("sent", "again")), ((shard, party), ("came", "late"))):
            flow = simulator.usage(node).get("flows", {}).get(peer, {})
            found += Counter({name: sum(flow.get(name, {}).values()) for name in names})
    return found


@dataclass(frozen=True)
class Trained:
    """What is known of a run that has ended."""

    simulator: Simulator
    topology: Topology
    layout: Layout
    pushed: dict[int, torch.Tensor]  # by slice
    weights: dict[str, list[torch.Tensor]]  # by worker
    contributions: int  # of each worker
    weight: float  # of a round at the root
    rate: float  # the root's
    counts: Counter[str]
    added: dict[int, torch.Tensor]  # by slice: what the rounds at the root have brought

    def node(self, name: str) -> Any:
        return self.simulator.hosts[name].node

    def roots(self) -> list[Root]:
        return [self.node(name).sink for name in self.topology.tree.shards]

    def at_root(self) -> dict[int, torch.Tensor]:
        """The weights of each slice."""
        return {index: held for root in self.roots() for index, held in root._weights.items()}

    def counted(self) -> list[int]:
        """The ledger at the root."""
        (ledger,) = [values for root in self.roots() for name, _, values in root.parts() if name == LEDGER]
        return [int(value) for value in ledger]

    def uplinks(self) -> list[Uplink]:
        """Those of both tiers."""
        nodes = [self.node(name) for name in (*self.topology.tree.parties, *self.topology.tree.workers)]
        assert all(isinstance(node, Worker | Server) for node in nodes)
        sinks = [node.sink for node in nodes if isinstance(node, Server)]
        above = [sink.above for sink in sinks if isinstance(sink, Aggregator)]
        return [*above, *(node._uplink for node in nodes if isinstance(node, Worker))]

    def held(self, index: int) -> torch.Tensor:
        """What the codecs of both tiers hold of a slice."""
        slice_ = self.layout.slices[index]
        total = torch.zeros(slice_.elements, dtype=torch.float64)
        for uplink in self.uplinks():
            kept = uplink.kept(slice_)
            for plane in {"up.residual", "up.returned"} & kept.keys():
                total += kept[plane].to(torch.float64)
        return total

    def missing(self, index: int) -> torch.Tensor:
        """What was pushed, was not applied, and is held by no codec."""
        applied = -self.at_root()[index].to(torch.float64) * self.weight / self.rate
        return self.pushed[index] - applied - self.held(index)

    def late(self, index: int) -> torch.Tensor:
        """What was pushed, was in no round at the root, and is held by no codec."""
        return self.pushed[index] - self.added[index] - self.held(index)

    def in_slices(self, worker: str) -> dict[int, torch.Tensor]:
        """A worker's weights, as slices have them."""
        tensors = [weights.view(-1) for weights in self.weights[worker]]
        return {
            slice_.index: torch.cat([tensors[part.tensor][part.start : part.stop] for part in slice_.parts])
            for slice_ in self.layout.slices
            if slice_.role == "weight"
        }


def rounds_added(shard: Server) -> dict[int, torch.Tensor]:
    """By slice, the sum of what all closed rounds of steps bring to a shard from now on."""
    root, totals = shard.sink, dict[int, torch.Tensor]()
    close = root.closed

    def closed(slice_: Slice, round_: Round) -> None:
        if round_.kind == "gradient" and slice_.role == "weight":
            for decode in shard.decoders(slice_, round_):
                totals[slice_.index] = totals.get(slice_.index, 0.0) + decode().to(torch.float64)
        close(slice_, round_)

    root.closed = closed  # type: ignore[method-assign]
    return totals


def train(
    topology: Topology,
    network: Network,
    seed: int,
    faults: Callable[[Simulator], None] = lambda simulator: None,
    steps: int = STEPS,
    pause_s: Callable[[int, int], float] = lambda place, step: 0.05,
) -> Trained:
    """A run on the virtual clock: a script of `steps` steps on every worker, until every node has ended well.

    `pause_s`: how long the worker at a place computes in a step, from the second on.
    """
    simulator, policy = Simulator(seed, network), policies.make(topology.policy)
    settings = Settings(
        slice_elements=ELEMENTS,
        pack_below=100,
        policy=policy,
        ledger=True,
        size_bounds=(1000,),
        weight="equal",
    )
    pushed: dict[int, torch.Tensor] = {}
    recorders: list[Recorder] = []
    weights: dict[str, list[torch.Tensor]] = {}
    contributions: set[int] = set()

    def main(program: Program) -> None:
        torch.set_num_threads(1)  # holds for the thread that calls it
        place, recorder = topology.tree.workers.index(program.name), Recorder(program, pushed)
        recorders.append(recorder)
        run = LiveRun(
            recorder,  # type: ignore[arg-type]  # which it hands on to
            name=program.name,
            tree=topology.tree,
            settings=settings,
            clock=lambda: program.now,
        )
        with run:
            model = Weights()
            model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=LR))
            for step in range(steps):
                optimizer.zero_grad()
                for number, parameter in enumerate(model.parameters()):
                    (parameter * gradient(place, step, number, parameter.numel())).sum().backward()
                program.sleep(pause_s(place, step) if step else 0.4)  # by then datagrams may pass
                optimizer.step()
            weights[program.name] = [parameter.detach().clone() for parameter in model.parameters()]
            assert run._attached is not None
            contributions.add(run._attached.ledger.contributions)

    for name in topology.tree.nodes:
        simulator.add(make_node(topology, name))
    added = {name: rounds_added(simulator.hosts[name].node) for name in topology.tree.shards}
    programs = {name: simulator.program(name, main) for name in topology.tree.workers}
    faults(simulator)
    simulator.run(until=600.0)
    assert_well(simulator, topology, programs)
    (weight,) = {weight for recorder in recorders for weight in recorder.weights}
    ((contributed),) = contributions
    workers = len(topology.tree.workers) if policy.sync_group == "run" else len(topology.tree.children("A"))
    rate, layout = 1.0 if policy.plans is LocalStep else LR, recorders[0].layout
    assert layout is not None
    found = counts(simulator, topology)
    brought = {index: total for totals in added.values() for index, total in totals.items()}
    return Trained(
        simulator, topology, layout, pushed, weights, contributed, weight * workers, rate, found, brought
    )


def check(trained: Trained, is_exact: bool) -> None:
    """Nothing is missing, everything was counted once, and equal are the weights that have to be."""
    for index, pushed in trained.pushed.items():
        missing = trained.missing(index)
        most = 0.0 if is_exact else 1e-5 * float(pushed.abs().max())
        assert float(missing.abs().max()) <= most, (
            f"slice {index}: {int((missing != 0).sum())} elements of {missing.numel()} are wrong, "
            f"by {float(missing.abs().max())} at most"
        )
    assert trained.counted() == [trained.contributions] * len(trained.topology.tree.workers)
    apart = policies.make(trained.topology.policy).sync_group == "party"
    at_root = trained.at_root()
    for party in trained.topology.tree.parties:
        workers = trained.topology.tree.children(party)
        for index, ours in trained.in_slices(workers[0]).items():
            assert apart or torch.equal(ours, at_root[index]), f"slice {index} of {party} is not the root's"
            assert all(torch.equal(ours, trained.in_slices(worker)[index]) for worker in workers[1:])
