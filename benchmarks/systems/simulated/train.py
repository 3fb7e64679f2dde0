"""A whole run of geomx in the simulator: the real nodes, a virtual clock, a network of given rate and delay.

Model of the machine: a node has a processor of its own that touches memory at `MEMORY_BYTES_PER_S`; each directed
pair of nodes has a link of its own. Within a party links are as fast as this machine's loopback. Tensors have shapes
but no values, so that a thousand parties find place in a process.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any

import torch

from benchmarks import training
from benchmarks.cells import Cell
from geomx.layout import Layout, Tensor
from geomx.node.contract import Effect, Event, Job
from geomx.node.factory import make_node
from geomx.node.port import Arrived, Contribution, Ready
from geomx.simulate.simulator import Network, Simulator
from geomx.wire.presence import pack

MEMORY_BYTES_PER_S = 2e9
CHUNK_BYTES = 256 << 10  # larger than the real ones: nothing overtakes here, and there are fewer events
LAN = Network(rate_mbps=16_000.0, delay_ms=0.05)
HEADERS = 1500 / 1448  # of IP and TCP, which the lab's rates count
OFF = {"momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False}
SGD = {"lr": 1e-3, **OFF}


class Counted:
    """A node, and how many seconds its jobs have touched memory."""

    def __init__(self, node: Any) -> None:
        self._node = node
        self.cpu_s = 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._node, name)

    def handle(self, event: Event, now: float) -> Iterable[Effect]:
        effects = list(self._node.handle(event, now))
        self.cpu_s += (
            sum(effect.cost_bytes for effect in effects if isinstance(effect, Job)) / MEMORY_BYTES_PER_S
        )
        return effects


class Loop:
    """A training loop without a thread: it computes for a while and pushes, as soon as it has every update.

    `stepped`: hears of each turn of which it has all; turn 0 is the beginning.
    """

    def __init__(
        self, simulator: Simulator, name: str, cell: Cell, layout: Layout, stepped: Callable[[int], None]
    ) -> None:
        self._simulator, self._name, self._cell, self._layout = simulator, name, cell, layout
        self._stepped, self._is_first = stepped, name == cell.worker_names[0]
        self._turn = self._missing = 0

    def __call__(self, item: Any) -> None:
        if isinstance(item, Ready):
            self._push()
        elif isinstance(item, Arrived):
            self._missing -= 1
            if not self._missing:
                self._end_turn()

    def _end_turn(self) -> None:
        self._stepped(self._turn)
        self._turn += 1
        if self._turn > self._cell.steps:
            self._simulator.call(self._name, "leave", {"": self._cell.steps})
        else:
            self._simulator.at(self._simulator.now + 1e-3 * self._cell.step_ms, self._push)

    def _push(self) -> None:
        self._missing = len(self._layout.slices)
        for slice_ in self._layout.slices:
            weights, present = torch.empty(slice_.elements, device="meta"), None
            if self._turn:
                mine = Contribution(self._turn, slice_.index, "gradient", "step()", 1.0, weights, None, SGD)
            else:
                if not self._is_first:
                    weights, present = None, pack([False] * len(slice_.parts))
                mine = Contribution(0, slice_.index, "assign", "attach()", 0.0, weights, present)
            self._simulator.call(self._name, "contribute", mine)


def main() -> None:
    """To the end; raises what ended a node."""
    job = training.Job.here()
    cell, told = job.cell, {key: float(value) for key, value in job.addresses.items()}
    parties = {party: tuple(f"{party}/{rank}" for rank in range(cell.workers)) for party in cell.sites}
    plan = Plan("bench", parties)
    sizes = training.synthetic_sizes(cell.parameters)
    layout = Layout(tuple(Tensor(f"{place}", (size,), "float32") for place, size in enumerate(sizes)))
    wan = Network(rate_mbps=told["rate_mbps"] / HEADERS, delay_ms=told["delay_ms"])
    simulator = Simulator(0, wan, MEMORY_BYTES_PER_S, CHUNK_BYTES)
    nodes = {name: Counted(make_node(plan, name)) for name in plan.nodes}
    for node in nodes.values():
        simulator.add(node)  # type: ignore[arg-type]
    file = training.record_path(job.folder, job.name).open("w")

    def write_down(turn: int) -> None:
        ways = {"sent": (job.party, "global/0"), "received": ("global/0", job.party)}
        moved = {key: simulator.sent_bytes(*way) for key, way in ways.items()}
        cpu = {name: nodes[name].cpu_s for name in ("global/0", job.party, job.name)}
        file.write(json.dumps({"t": simulator.now, "step": turn, **moved, "cpu": cpu}) + "\n")

    for name in plan.workers:
        simulator.link(name, plan.parents(name)[0], LAN)
        stepped = write_down if name == job.name else lambda turn: None
        simulator.listen(name, Loop(simulator, name, cell, layout, stepped))
    simulator.run(1.0)
    for name in plan.workers:
        simulator.call(name, "attach", layout, {"optimizer": "torch.optim.SGD"})
    simulator.run(1e6)
    errors = [error for name in plan.nodes if (error := simulator.error_of(name)) is not None]
    if errors:
        raise errors[0]


if __name__ == "__main__":
    main()
