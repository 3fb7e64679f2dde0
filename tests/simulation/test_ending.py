"""A run ends well wherever its last words are cut off."""

from __future__ import annotations

import pytest
from trees import Loop, assert_well, layout_of, run_tree, topology_of

from geomx.simulate.simulator import Network, Simulator
from geomx.wire.session import Patience

ROUNDS = 3
PATIENCE = Patience(heartbeat_s=0.5, timeout_s=30.0)
NETWORK = Network(5.0, 9.3)
TOPOLOGY = topology_of([2, 2], patience=PATIENCE)


def left_at(server: str) -> float:
    """When a server of an undisturbed run hears of the last leave."""
    loop = Loop(layout_of(4), TOPOLOGY.tree.workers, ROUNDS)
    simulator, _ = run_tree(TOPOLOGY, loop, NETWORK)
    return max(at for at, node, note in simulator.notes if note.name == "left" and node == server)


@pytest.mark.parametrize("edge", [("B/1", "B"), ("B", "global/0")])
def test_an_edge_may_break_while_a_leave_is_acknowledged(edge: tuple[str, str]) -> None:
    heard = left_at(edge[1])
    for part in range(-6, 8):
        at_s = heard + part * 0.003

        def cut(simulator: Simulator, at_s: float = at_s) -> None:
            simulator.at(at_s, lambda: simulator.cut(*edge, 2.8, True))

        loop = Loop(layout_of(4), TOPOLOGY.tree.workers, ROUNDS)
        simulator, programs = run_tree(TOPOLOGY, loop, NETWORK, faults=cut)
        assert_well(simulator, TOPOLOGY, programs)
