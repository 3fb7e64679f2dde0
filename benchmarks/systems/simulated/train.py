"""A whole run of geomx in the simulator: the real nodes, a virtual clock, a network of given rate and delay.

Model of the machine: a node has a processor of its own that touches memory at `MEMORY_BYTES_PER_S`; each directed
pair of nodes has a link of its own. Within a party links are as fast as this machine's loopback.
"""

from __future__ import annotations

import json
from collections import defaultdict
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
SGD = {
    "lr": 1e-3,
    "momentum": 0.0,
    "dampening": 0.0,
    "weight_decay": 0.0,
    "nesterov": False,
    "maximize": False,
}


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

    def __init__(self, run: Run, name: str, place: int) -> None:
        self._run, self._name, self._place = run, name, place
        self._turn = 0
        self._missing = 0

    def __call__(self, item: Any) -> None:
        if isinstance(item, Ready):
            self._push()
        elif isinstance(item, Arrived):
            self._missing -= 1
            if not self._missing:
                self._stepped()

    def _stepped(self) -> None:
        run = self._run
        run.stepped(self._name, self._turn)
        self._turn += 1
        if self._turn > run.job.steps:
            run.simulator.call(self._name, "leave", {"": run.job.steps})
        else:
            run.simulator.at(run.simulator.now + 1e-3 * run.job.step_ms, self._push)

    def _push(self) -> None:
        slices = self._run.layout.slices
        self._missing = len(slices)
        for slice_ in slices:
            weights = torch.empty(slice_.elements, device="meta")
            if self._turn:
                mine = Contribution.of(
                    self._turn, slice_.index, "gradient", "step()", 1.0, weights, None, SGD
                )
            elif self._place:
                absent = pack([False] * len(slice_.parts))
                mine = Contribution.of(0, slice_.index, "assign", "attach()", 0.0, None, absent)
            else:
                mine = Contribution.of(0, slice_.index, "assign", "attach()", 0.0, weights)
            self._run.simulator.call(self._name, "contribute", mine)


class Run:
    """All nodes of a run, and the lines that its first worker's steps are written down in."""

    def __init__(self, job: training.Job, parties: tuple[str, ...]) -> None:
        self.job = job
        plan = Topology(
            "bench", {party: tuple(f"{party}/{r}" for r in range(job.workers)) for party in parties}
        )
        sizes = training.synthetic_sizes(job.parameters)
        self.layout = Layout(
            tuple(Tensor(f"{place}", (size,), "float32") for place, size in enumerate(sizes))
        )
        wan = Network(
            rate_mbps=float(job.addresses["rate_mbps"]) / HEADERS, delay_ms=float(job.addresses["delay_ms"])
        )
        self.simulator = Simulator(0, wan, MEMORY_BYTES_PER_S, CHUNK_BYTES)
        self.nodes = {name: Counted(make_node(plan, name)) for name in plan.nodes}
        for node in self.nodes.values():
            self.simulator.add(node)  # type: ignore[arg-type]
        for place, name in enumerate(plan.workers):
            self.simulator.link(name, plan.parents(name)[0], LAN)
            self.simulator.listen(name, Loop(self, name, place))
        self.first = plan.workers[0]
        self.plan = plan
        self.lines: list[dict[str, Any]] = []

    def stepped(self, name: str, turn: int) -> None:
        """The first worker has every update of a turn; turn 0 is the beginning."""
        if name != self.first:
            return
        party = name.partition("/")[0]
        cpu: dict[str, float] = defaultdict(float)
        for node in ("global/0", party, name):
            cpu[node] = self.nodes[node].touched_bytes / MEMORY_BYTES_PER_S
        sent = self.simulator.sent_bytes(party, "global/0")
        received = self.simulator.sent_bytes("global/0", party)
        line = {"t": self.simulator.now, "step": turn, "sent": sent, "received": received, "paused": 0.0}
        self.lines.append(line | {"cpu": dict(cpu)})

    def run(self) -> None:
        """To the end; raises what ended a node."""
        self.simulator.run(1.0)
        for name in self.plan.workers:
            self.simulator.call(name, "attach", self.layout, {"optimizer": "torch.optim.SGD"})
        self.simulator.run(1e6)
        for name in self.plan.nodes:
            if (error := self.simulator.error_of(name)) is not None:
                raise error


def main() -> None:
    job, _ = training.begin()
    told = json.loads((job.folder / "job.json").read_text())
    run = Run(job, tuple(told["party_names"]))
    run.run()
    with training.record_path(job.folder, job.name).open("w") as file:
        file.writelines(json.dumps(line) + "\n" for line in run.lines)


if __name__ == "__main__":
    main()
