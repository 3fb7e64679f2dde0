"""A thousand and six hundred workers in one process: tensors have shapes but no values, jobs have costs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from trees import SGD, topology_of

from geomx.layout import Layout, Tensor
from geomx.node.factory import make_node
from geomx.node.port import Arrived, Contribution, Ready
from geomx.simulate.simulator import Network, Simulator
from geomx.wire.presence import pack

PARTIES, WORKERS = 200, 8
LAYOUT = Layout((Tensor("weights", (500, 500), "float32"),), slice_elements=1 << 18)


class Counter:
    """A training loop without a thread: it pushes again as soon as it is answered and has computed."""

    def __init__(self, simulator: Simulator, name: str, place: int, rounds: int) -> None:
        self.simulator, self.name, self.place, self.rounds = simulator, name, place, rounds
        self.turn = 0

    def __call__(self, item: Any) -> None:
        if isinstance(item, Ready):
            self.push()
        elif isinstance(item, Arrived):
            self.turn += 1
            if self.turn > self.rounds:
                self.simulator.call(self.name, "leave", {"": self.rounds})
            else:
                compute_s = 0.3 + 0.05 * self.simulator.random.random()
                self.simulator.at(self.simulator.now + compute_s, self.push)

    def push(self) -> None:
        weights = torch.empty(LAYOUT.slices[0].elements, device="meta")
        if self.turn:
            mine = Contribution.of(self.turn, 0, "gradient", "step()", 32.0, weights, None, SGD)
        elif self.place:
            mine = Contribution.of(0, 0, "assign", "attach()", 0.0, None, pack([False]))
        else:
            mine = Contribution.of(0, 0, "assign", "attach()", 0.0, weights)
        self.simulator.call(self.name, "contribute", mine)


@pytest.mark.no_cover
@pytest.mark.parametrize("rounds", [3, pytest.param(100, marks=pytest.mark.grids)])
def test_two_hundred_parties_of_eight_workers_run_many_rounds(rounds: int) -> None:
    topology = topology_of([WORKERS] * PARTIES)
    simulator = Simulator(0, Network(delay_ms=20.0, rate_mbps=1000.0), chunk_bytes=4 << 20)
    for name in topology.tree.nodes:
        simulator.add(make_node(topology, name))
    for place, name in enumerate(topology.tree.workers):
        simulator.listen(name, Counter(simulator, name, place, rounds))
    simulator.run(1.0)
    for name in topology.tree.workers:
        simulator.call(name, "attach", LAYOUT, {"optimizer": "torch.optim.SGD"})
    simulator.run(10_000.0)
    assert all(
        simulator.has_stopped(name) and simulator.error_of(name) is None for name in topology.tree.nodes
    )
    closed = [fields["turn"] for _, node, fields in simulator.noted("round") if node == "global/0"]
    assert closed == list(range(1, rounds + 1))
    pushed = LAYOUT.slices[0].size_bytes * (rounds + 1)
    assert simulator.sent_bytes("Z", "global/0") > pushed - LAYOUT.slices[0].size_bytes
