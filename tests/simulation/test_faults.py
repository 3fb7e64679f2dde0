"""Nothing hangs: a node that dies, stalls or does not fit is named, at every node, within a bounded time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest
import torch
from trees import SGD, Loop, assert_well, layout_of, run_tree, topology_of

from geomx.errors import Disagreement, NodeLost, Refused, RunFailed, WaitTimeout
from geomx.node.factory import make_node
from geomx.node.peers.peer import Limits
from geomx.node.port import Arrived, Contribution, Ready
from geomx.node.topology import Topology
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Network, Simulator
from geomx.wire.session import Patience

WAN = Network(100.0, 20.0)


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


def test_a_cut_of_five_seconds_is_survived() -> None:
    topology = topology_of([2, 2])

    def faults(simulator: Simulator) -> None:
        simulator.at(0.4, lambda: simulator.cut("B", "global/0", 5.0, reset=True))

    calm = loop_of(topology)
    run_tree(topology, calm, WAN)
    shaken = loop_of(topology)
    simulator, programs = run_tree(topology, shaken, WAN, faults=faults)
    assert_well(simulator, topology, programs)
    assert any(fields["peer"] == "global/0" for _, node, fields in simulator.noted("resumed") if node == "B")
    assert all(torch.equal(calm.weights["A/0"][s], w) for s, w in shaken.weights["A/0"].items())


def test_a_stop_shorter_than_the_timeout_is_survived() -> None:
    topology = topology_of([2, 1])
    loop = loop_of(topology)
    simulator, programs = run_tree(topology, loop, WAN, faults=lambda s: s.at(0.4, lambda: s.pause("A", 8.0)))
    assert_well(simulator, topology, programs)


@pytest.mark.parametrize("last", ["global/0", "global/1", "A", "A/0", "B/1"])
def test_start_order_does_not_matter(last: str) -> None:
    topology = topology_of([2, 2], 2)
    simulator = Simulator(0, WAN)
    for name in topology.tree.nodes:
        simulator.add(make_node(topology, name), at=20.0 if name == last else 0.0)
    loop = loop_of(topology, 3)
    programs = {name: simulator.program(name, loop) for name in topology.tree.workers}
    simulator.run(120.0)
    assert_well(simulator, topology, programs)


def test_a_run_that_never_gathers_says_who_is_missing() -> None:
    topology = topology_of([2, 2], limits=Limits(start_s=40.0))
    simulator = Simulator(0, WAN)
    for name in topology.tree.nodes:
        if name != "B/1":
            simulator.add(make_node(topology, name))
    programs = {
        name: simulator.program(name, loop_of(topology)) for name in topology.tree.workers if name != "B/1"
    }
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


def test_a_worker_that_starts_again_with_its_clock_set_back_is_let_in() -> None:
    topology = topology_of([1, 1])
    simulator = Simulator(0, WAN)
    for name in topology.tree.nodes:
        simulator.add(make_node(topology, name, incarnation=5))
    again = make_node(topology, "B/0", incarnation=4)
    simulator.at(1.0, lambda: simulator.crash("B/0"))
    simulator.at(1.1, lambda: simulator.add(again))
    simulator.run(3.0)
    assert simulator.error_of("B/0") is None
    assert again.identity.incarnation == 6
    assert [node for _, node, fields in simulator.noted("joined") if fields["peer"] == "B/0"] == ["B", "B"]


def test_a_restarted_worker_catches_up() -> None:
    topology = topology_of([2, 1])
    loop, again = loop_of(topology, 60), loop_of(topology, 60)
    joined = []

    def restart(simulator: Simulator) -> None:
        simulator.crash("A/1")
        simulator.add(make_node(topology, "A/1", incarnation=2))
        simulator.program("A/1", lambda program: rejoin(program, again, joined))

    _, programs = run_tree(topology, loop, WAN, faults=lambda s: s.at(1.0, lambda: restart(s)))
    assert programs["A/0"].error is None
    assert joined[0] > 0
    for index, weights in loop.weights["A/0"].items():
        assert torch.equal(again.weights["A/1"][index], weights)


def rejoin(program: Program, loop: Loop, joined: list[int]) -> None:
    """What a training loop does that comes back in the middle of a run."""
    weights = loop.weights[program.name] = {}
    have: dict[int, int] = {}
    turns: list[int] = []

    def hear(item: Any) -> None:
        if isinstance(item, Ready):
            turns.extend(own for own, _ in item.by_slice.values())
        elif isinstance(item, Arrived):
            have[item.update.slice] = item.update.turn
            if item.values is not None:
                weights[item.update.slice] = item.values

    program.listen(hear)
    program.call("attach", loop.layout, loop.settings)
    program.wait(lambda: len(have) == len(loop.layout.slices), lambda: "the current weights")
    joined.append(min(turns))
    place = loop.members.index(program.name)
    for turn in range(min(turns) + 1, loop.rounds + 1):
        for slice_ in loop.layout.slices:
            if have[slice_.index] < turn:
                program.call("contribute", loop.contribution(slice_.index, turn, place, weights))
        program.wait(lambda t=turn: min(have.values()) >= t, lambda: "the updates")  # type: ignore[misc]
    program.call("leave", {"": loop.rounds})


def test_workers_with_different_hyperparameters_are_told() -> None:
    topology = topology_of([2, 1])

    class Odd(Loop):
        def contribution(
            self, index: int, turn: int, place: int, weights: dict[int, torch.Tensor]
        ) -> Contribution:
            self.hyper = {**SGD, "lr": 0.05 if turn < 3 or place != 2 else 0.01}
            return super().contribution(index, turn, place, weights)

    simulator, _ = run_tree(topology, Odd(layout_of(3), topology.tree.workers, 10), WAN)
    error = simulator.error_of("global/0")
    assert isinstance(error, Disagreement)
    assert "B/0" in str(error)
    assert "hyper-parameters" in str(error)
    assert all(simulator.has_stopped(name) for name in topology.tree.nodes)


def test_workers_that_make_different_calls_are_told() -> None:
    topology = topology_of([1, 1])

    class Odd(Loop):
        def contribution(
            self, index: int, turn: int, place: int, weights: dict[int, torch.Tensor]
        ) -> Contribution:
            usual = super().contribution(index, turn, place, weights)
            if turn != 2 or not place:
                return usual
            return replace(usual, push=msgspec.structs.replace(usual.push, operation="save()"))

    simulator, _ = run_tree(topology, Odd(layout_of(2), topology.tree.workers, 10), WAN)
    error = simulator.error_of("global/0")
    assert isinstance(error, Disagreement)
    assert "save()" in str(error)
    assert "step()" in str(error)


def test_a_long_wait_is_reported_with_whom() -> None:
    topology = topology_of([2, 1], limits=Limits(stall_s=5.0))

    class Slow(Loop):
        def __call__(self, program: Program) -> None:
            compute_s = 25.0 if program.name == "A/1" else 0.1
            Loop.__call__(replace(self, compute_s=compute_s), program)

    simulator, _ = run_tree(topology, Slow(layout_of(3), topology.tree.workers, 2), WAN, until=40.0)
    waits = [fields for _, node, fields in simulator.noted("waiting") if node == "A"]
    assert waits
    assert all(fields["whom"] == "A/1 (which does not wait for the run)" for fields in waits)


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
