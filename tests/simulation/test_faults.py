"""Nothing hangs: a node that dies, stalls or does not fit is named, at every node, within a bounded time."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

import pytest
from trees import Loop, assert_well, layout_of, run_tree, start, topology_of

from geomx.errors import NodeLost, Refused, RunFailed, WaitTimeout
from geomx.node.factory import make_node
from geomx.node.peers.peer import Limits
from geomx.node.topology import Topology
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Network, Simulator
from geomx.wire.session import Patience

WAN, SLOW = Network(100.0, 20.0), Network(5.0, 9.3)


def loop_of(topology: Topology, rounds: int = 30, **more: Any) -> Loop:
    return Loop(layout_of(len(topology.tree.workers)), topology.tree.workers, rounds, **more)


@pytest.mark.parametrize("victim", ["A/1", "B", "global/0", "global/1"])
@pytest.mark.parametrize("how", ["crash", "power cut", "stop"])
def test_death_is_noticed_and_named_everywhere(victim: str, how: str) -> None:
    topology = topology_of([2, 2], 2)

    def faults(simulator: Simulator) -> None:
        if how == "stop":
            simulator.at(0.5, lambda: simulator.pause(victim, 1e6))
        else:
            simulator.at(0.5, lambda: simulator.crash(victim, silent=how == "power cut"))

    simulator, programs = run_tree(topology, loop_of(topology), WAN, faults=faults, until=60.0)
    for name in set(topology.tree.nodes) - {victim}:
        error = simulator.error_of(name)
        assert isinstance(error, NodeLost | RunFailed), (name, error)
        assert error.node == victim, (name, error)
    for name in set(topology.tree.workers) - {victim}:
        assert programs[name].error is simulator.error_of(name)


def test_edges_that_have_little_to_say_are_not_dialled_anew() -> None:
    """A step takes longer than the silence that an edge bears, at the least patience that a description may have."""
    topology = topology_of([2, 1], 2, patience=Patience(heartbeat_s=1.0, timeout_s=3.0))
    simulator, programs = run_tree(topology, loop_of(topology, 4, compute_s=4.7), Network(100.0, 100.0, 20.0))
    assert_well(simulator, topology, programs)
    assert not list(simulator.noted("resumed"))


@pytest.mark.parametrize("last", ["global/0", "global/1", "A", "A/0", "B/1"])
def test_start_order_does_not_matter(last: str) -> None:
    topology = topology_of([2, 2], 2)
    simulator = Simulator(0, WAN)
    programs = start(simulator, topology, loop_of(topology, 3), last, 20.0)
    simulator.run(120.0)
    assert_well(simulator, topology, programs)


def test_a_run_that_never_gathers_says_who_is_missing() -> None:
    topology = topology_of([2, 2], limits=Limits(start_s=40.0))
    simulator = Simulator(0, WAN)
    programs = start(simulator, topology, loop_of(topology), "B/1", inf)
    simulator.run(200.0)
    assert isinstance(simulator.error_of("B"), WaitTimeout)
    assert "B/1" in str(simulator.error_of("B"))
    for name in ("global/0", "A", "A/0"):
        error = simulator.error_of(name)
        assert isinstance(error, RunFailed)
        assert "B/1" in str(error)
    assert isinstance(programs["A/0"].error, RunFailed)


def test_another_description_of_the_run_is_refused_with_its_fields() -> None:
    topology = replace(topology_of([1, 1]), manifest={"sync.policy": "fsa", "wan.codec_up": "dense"})
    other = replace(topology, manifest={"sync.policy": "hfa", "wan.codec_up": "dense"})
    simulator = Simulator(0, WAN)
    for name in topology.tree.nodes:
        simulator.add(make_node(other if name == "B/0" else topology, name))
    simulator.program("B/0", loop_of(topology))
    simulator.run(5.0)
    error = simulator.error_of("B/0")
    assert isinstance(error, Refused)
    assert "sync.policy: B/0 has hfa, B has fsa" in str(error)
    assert "codec_up" not in str(error)
    assert simulator.error_of("B") is None  # a stranger cannot end the run


def test_another_model_is_refused_with_its_fields() -> None:
    topology = topology_of([1, 1])
    simulator = Simulator(0, WAN)
    for name in topology.tree.nodes:
        simulator.add(make_node(topology, name))
    simulator.program("A/0", loop_of(topology))
    odd = loop_of(topology, settings={"optimizer": "torch.optim.Adam", "clip_norm": None})
    simulator.program("B/0", odd)
    simulator.run(60.0)
    errors = [simulator.error_of(name) for name in topology.tree.nodes]
    assert all(isinstance(error, Refused | RunFailed) for error in errors)
    assert any("optimizer" in str(error) and "torch.optim.Adam" in str(error) for error in errors)


def test_members_that_leave_early_do_not_hold_up_the_others() -> None:
    topology = topology_of([2, 1])

    class Short(Loop):
        def __call__(self, program: Program) -> None:
            rounds = 2 if program.name == "A/1" else 6
            Loop.__call__(replace(self, rounds=rounds, weights=self.weights, arrived=self.arrived), program)

    loop = Short(layout_of(3), topology.tree.workers, 6)
    simulator, programs = run_tree(topology, loop, WAN)
    assert_well(simulator, topology, programs)
    ledger = next(slice_.index for slice_ in loop.layout.slices if slice_.role == "ledger")
    assert loop.weights["A/0"][ledger].tolist() == [6, 2, 6]


@pytest.mark.parametrize("who", ["A", "global/0"])
def test_a_node_that_was_suspended_for_long_names_itself(who: str) -> None:
    """The others have given it up meanwhile; it declares nobody lost before one time-out is over."""
    topology = topology_of([2, 1])
    simulator, _ = run_tree(
        topology, loop_of(topology), WAN, faults=lambda s: s.at(0.4, lambda: s.pause(who, 60.0)), until=200.0
    )
    error = simulator.error_of(who)
    assert isinstance(error, NodeLost | RunFailed)
    assert error.node == who
    assert all(error.node == who for name in topology.tree.nodes if (error := simulator.error_of(name)))  # type: ignore[union-attr]
    ((_, _, fields),) = [note for note in simulator.noted("slept") if note[1] == who]
    assert 58 < fields["seconds"] < 62


def test_a_restarted_local_server_ends_the_run_at_once() -> None:
    topology = topology_of([2, 1])

    def restart(simulator: Simulator) -> None:
        simulator.crash("A")
        simulator.at(simulator.now + 1.0, lambda: simulator.add(make_node(topology, "A", incarnation=2)))

    simulator, _ = run_tree(topology, loop_of(topology), WAN, faults=lambda s: s.at(0.4, lambda: restart(s)))
    ends = {node: (int(time), fields["node"]) for time, node, fields in simulator.noted("failed")}
    assert ends == {
        **dict.fromkeys(("global/0", "A", "B", "B/0"), (1, "A")),
        **dict.fromkeys(("A/0", "A/1"), (2, "A")),  # it is still there to tell them
    }


def left_at(topology: Topology, server: str) -> float:
    """When a server of an undisturbed run hears of the last leave."""
    simulator, _ = run_tree(topology, loop_of(topology, 3), SLOW)
    return max(at for at, node, note in simulator.notes if note.name == "left" and node == server)


@pytest.mark.parametrize("edge", [("B/1", "B"), ("B", "global/0")])
def test_an_edge_may_break_while_a_leave_is_acknowledged(edge: tuple[str, str]) -> None:
    """A run ends well wherever its last words are cut off."""
    topology = topology_of([2, 2], patience=Patience(heartbeat_s=0.5, timeout_s=30.0))
    heard = left_at(topology, edge[1])
    for part in range(-6, 8):
        at_s = heard + part * 0.003

        def cut(simulator: Simulator, at_s: float = at_s) -> None:
            simulator.at(at_s, lambda: simulator.cut(*edge, 2.8, True))

        simulator, programs = run_tree(topology, loop_of(topology, 3), SLOW, faults=cut)
        assert_well(simulator, topology, programs)


@pytest.mark.parametrize("shards", [1, 2])
def test_a_round_closes_at_the_time_until_which_its_policy_waits(shards: int) -> None:
    topology = topology_of([2, 1], shards, policy="late_answers:LateAnswers least_s=0.5")
    loop = Loop(layout_of(3), topology.tree.workers, rounds=3)
    simulator, programs = run_tree(topology, loop, Network(delay_ms=5.0))
    assert_well(simulator, topology, programs)
    times = sorted({turn: time for time, _, turn, _ in loop.arrived}.items())
    later = [after - before for (_, before), (_, after) in pairwise(times)]
    # Both tiers wait, one after the other: 0.5 s each, and two round trips over 5 ms each way.
    assert all(1.0 < seconds < 1.1 for seconds in later)
