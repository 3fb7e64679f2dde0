"""A whole run of geomx in the simulator: the real nodes, a virtual clock, a network of given rate and delay.

Model of the machine: a node has a processor of its own that touches memory at `MEMORY_BYTES_PER_S`; each directed
pair of nodes has a link of its own. Within a party links are as fast as this machine's loopback. Tensors have shapes
but no values, so that a thousand parties find place in a process.
"""

import json
from collections.abc import Iterable
from typing import Any

import torch

from benchmarks import training
from geomx.layout import Layout, Tensor
from geomx.node.contract import Effect, Event, Job
from geomx.node.factory import make_node
from geomx.node.port import Arrived, Contribution, Ready
from geomx.node.topology import Topology
from geomx.simulate.simulator import Network, Simulator
from geomx.wire.presence import pack

MEMORY_BYTES_PER_S = 2e9
CHUNK_BYTES = 256 << 10  # larger than the real ones: nothing overtakes here, and there are fewer events
LAN = Network(rate_mbps=16_000.0, delay_ms=0.05)
HEADERS = 1500 / 1448  # of IP and TCP, which the lab's rates count
OFF = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
SGD = {"lr": 1e-3, **OFF}


class Counted:
    """A node, and how many bytes its jobs have touched."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.touched_bytes = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def handle(self, event: Event, now: float) -> Iterable[Effect]:
        effects = list(self._node.handle(event, now))
        self.touched_bytes += sum(effect.cost_bytes for effect in effects if isinstance(effect, Job))
        return effects


class Loop:
    """A training loop without a thread: it computes for a while and pushes, as soon as it has every update."""

    def __init__(self, run: "Run", name: str) -> None:
        self._run, self._name = run, name
        self._turn = self._missing = 0

    def __call__(self, item: Any) -> None:
        self._missing -= isinstance(item, Arrived)
        if isinstance(item, Ready):
            self._push()
        elif isinstance(item, Arrived) and not self._missing:
            self._end_turn()

    def _end_turn(self) -> None:
        simulator, cell = self._run.simulator, self._run.job.cell
        if self._name == self._run.job.name:
            self._run.write_down(self._turn)
        self._turn += 1
        if self._turn > cell.steps:
            simulator.call(self._name, "leave", {"": cell.steps})
        else:
            simulator.at(simulator.now + 1e-3 * cell.step_ms, self._push)

    def _push(self) -> None:
        """Gradients; in turn 0 the first values, which the first worker alone has."""
        self._missing = len(self._run.layout.slices)
        for slice_ in self._run.layout.slices:
            weights = torch.empty(slice_.elements, device="meta")
            if self._turn:
                mine = Contribution.of(
                    self._turn, slice_.index, "gradient", "step()", 1.0, weights, None, SGD
                )
            elif self._name == self._run.job.name:
                mine = Contribution.of(0, slice_.index, "assign", "attach()", 0.0, weights)
            else:
                absent = pack([False] * len(slice_.parts))
                mine = Contribution.of(0, slice_.index, "assign", "attach()", 0.0, None, absent)
            self._run.simulator.call(self._name, "contribute", mine)


class Run:
    """All nodes of a run, whose first worker's steps are written down."""

    def __init__(self, job: training.Job) -> None:
        self.job, told = job, {key: float(value) for key, value in job.addresses.items()}
        wan = Network(rate_mbps=told["rate_mbps"] / HEADERS, delay_ms=told["delay_ms"])
        sizes = enumerate(training.synthetic_sizes(job.cell.parameters))
        self.layout = Layout(tuple(Tensor(f"{place}", (size,), "float32") for place, size in sizes))
        workers = range(job.cell.workers)
        plan = Topology.of_parties(
            "bench", {party: tuple(f"{party}/{rank}" for rank in workers) for party in job.cell.sites}
        )
        self.simulator = Simulator(0, wan, MEMORY_BYTES_PER_S, CHUNK_BYTES)
        self.plan, self.nodes = plan, {name: Counted(make_node(plan, name)) for name in plan.tree.nodes}
        for node in self.nodes.values():
            self.simulator.add(node)
        for name in plan.tree.workers:
            self.simulator.link(name, plan.tree.parents(name)[0], LAN)
            self.simulator.listen(name, Loop(self, name))
        self._file = training.record_path(job.folder, job.name).open("w")

    def write_down(self, turn: int) -> None:
        """The first worker has every update of a turn; turn 0 is the beginning."""
        party, simulator = self.job.party, self.simulator
        line = {"t": simulator.now, "step": turn, "sent": simulator.sent_bytes(party, "global/0")}
        line["received"] = simulator.sent_bytes("global/0", party)
        touched = {name: self.nodes[name].touched_bytes for name in ("global/0", party, self.job.name)}
        line["cpu"] = {name: each / MEMORY_BYTES_PER_S for name, each in touched.items()}
        self._file.write(json.dumps(line) + "\n")


def main(job: training.Job) -> None:
    """To the end; raises what ended a node."""
    run = Run(job)
    run.simulator.run(1.0)
    for name in run.plan.tree.workers:
        run.simulator.call(name, "attach", run.layout, {"optimizer": "torch.optim.SGD"})
    run.simulator.run(1e6)
    for name in run.plan.tree.nodes:
        if (error := run.simulator.error_of(name)) is not None:
            raise error
