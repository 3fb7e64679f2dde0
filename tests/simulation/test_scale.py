"""A thousand and six hundred workers in one process: tensors have shapes but no values, jobs have costs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from trees import SGD, topology_of

from geomx.layout import Layout, Tensor
from geomx.node.factory import make_node
from geomx.node.port import Arrived, Contribution, Ready
from geomx.node.topology import Topology
from geomx.rounds.losses import Losses
from geomx.simulate.network import Network
from geomx.simulate.simulator import Simulator
from geomx.wire.presence import pack
from geomx.wire.session import Patience

DELAY_S = 0.02
LAYOUT = Layout((Tensor("weights", (100, 100), "float32"),), slice_elements=1 << 18)
(SLICE,) = LAYOUT.slices


class Member:
    """A training loop without a thread, which also begins with a later turn: it pushes as soon as it has computed."""

    def __init__(
        self, simulator: Simulator, name: str, is_first: bool, rounds: int, compute_s: Callable[[], float]
    ) -> None:
        self.simulator, self.name, self.is_first, self.rounds = simulator, name, is_first, rounds
        self.compute_s, self.turn = compute_s, 0
        simulator.listen(name, self)

    def __call__(self, item: Any) -> None:
        if isinstance(item, Ready):
            self.turn = item.begins.get("", 0)
            self.push()
        elif isinstance(item, Arrived) and item.update.turn >= self.turn:
            self.turn = item.update.turn + 1
            if self.turn > self.rounds:
                self.simulator.call(self.name, "leave", {"": self.rounds})
            else:
                self.simulator.at(self.simulator.now + self.compute_s(), self.push)

    def attach(self) -> None:
        self.simulator.call(self.name, "attach", LAYOUT, {"optimizer": "torch.optim.SGD"})

    def push(self) -> None:
        if self.simulator.has_stopped(self.name):
            return
        weights = torch.empty(SLICE.elements, device="meta")
        if self.turn:
            mine = Contribution.of(self.turn, 0, "gradient", "step()", 32.0, weights, None, SGD)
        elif self.is_first:
            mine = Contribution.of(0, 0, "assign", "attach()", 0.0, weights)
        else:
            mine = Contribution.of(0, 0, "assign", "attach()", 0.0, None, pack([False]))
        self.simulator.call(self.name, "contribute", mine)


def begun(topology: Topology, network: Network, rounds: int, jitter_s: float = 0.0) -> Simulator:
    """A run of which all workers attach after a second, and compute for 0.3 s."""
    simulator = Simulator(0, network, chunk_bytes=4 << 20)
    for name in topology.tree.nodes:
        simulator.add(make_node(topology, name))
    members = [
        Member(simulator, name, not place, rounds, lambda: 0.3 + jitter_s * simulator.random.random())
        for place, name in enumerate(topology.tree.workers)
    ]
    simulator.run(1.0)
    for member in members:
        member.attach()
    return simulator


def assert_ended(simulator: Simulator, topology: Topology) -> None:
    for name in topology.tree.nodes:
        assert simulator.has_stopped(name), name
        assert simulator.error_of(name) is None, name


@pytest.mark.no_cover
@pytest.mark.parametrize(("parties", "rounds"), [(60, 3), pytest.param(200, 100, marks=pytest.mark.grids)])
def test_hundreds_of_parties_of_eight_workers_run_many_rounds(parties: int, rounds: int) -> None:
    topology = topology_of([8] * parties)
    simulator = begun(topology, Network(delay_ms=20.0, rate_mbps=1000.0), rounds, 0.05)
    simulator.run(10_000.0)
    assert_ended(simulator, topology)
    closed = [fields["turn"] for _, node, fields in simulator.noted("round") if node == "global/0"]
    assert closed == list(range(1, rounds + 1))
    assert simulator.sent_bytes("Z", "global/0") > SLICE.size_bytes * rounds


@pytest.mark.no_cover
@pytest.mark.parametrize("parties", [2, 32, pytest.param(1000, marks=pytest.mark.grids)])
def test_a_change_costs_a_trip_of_each_tier_and_later_rounds_nothing(parties: int) -> None:
    """Of who takes part; with two parties as with a thousand."""
    changes, rounds = 4, 40
    topology = topology_of(
        [1] * parties, patience=Patience(heartbeat_s=0.5, timeout_s=2.0), losses=Losses("continue", 60.0)
    )
    simulator = begun(topology, Network(delay_ms=1000 * DELAY_S, rate_mbps=10_000.0), rounds)

    def restart(name: str, incarnation: int) -> None:
        simulator.add(make_node(topology, name, incarnation))
        member = Member(simulator, name, False, rounds, lambda: 0.3)
        simulator.at(simulator.now + 0.2, member.attach)

    for change in range(changes):
        at_s = 4.0 + 2.5 * change
        simulator.at(at_s, lambda: simulator.crash("B/0"))
        simulator.at(at_s + 1.2, lambda number=change: restart("B/0", 2 + number))
    # Rounds that the first server has closed, and what has gone down to a party.
    marks: list[tuple[int, int]] = []

    def look() -> None:
        marks.append((len(simulator.noted("round")), simulator.sent_bytes("global/0", "A")))

    for at_s in (2.0, 3.9, 16.0, 17.9):
        simulator.at(at_s, look)
    simulator.run(10_000.0)
    assert_ended(simulator, topology)
    rosters = [
        (at_s, node, fields["number"])
        for at_s, node, fields in simulator.noted("roster")
        if "members" in fields
    ]
    lost = [at_s for at_s, _, _ in simulator.noted("lost")]
    assert len(lost) == changes
    assert max(number for _, _, number in rosters) == 2 * changes
    for number, told_s in enumerate(lost):
        heard = {node: at_s for at_s, node, roster in rosters if roster == 2 * number + 1}
        assert heard.keys() == {"global/0", *topology.tree.servers}
        assert max(heard.values()) - told_s < 2 * DELAY_S + 0.005  # up to the global server, and down
    (rounds_before, before), (rounds_then, then), (rounds_after, after), (rounds_last, last) = marks
    each_before = (then - before) / (rounds_then - rounds_before)
    each_after = (last - after) / (rounds_last - rounds_after)
    assert each_after == pytest.approx(each_before, rel=0.02)  # heartbeats fall as they do
