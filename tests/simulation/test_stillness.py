"""A run in which nothing will come any more ends, and one whose workers take their time does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
from trees import Loop, assert_well, layout_of, run_tree, start, topology_of

from geomx.errors import NodeLost, RunFailed, Stalled
from geomx.node.contract import Effect, Write
from geomx.node.peers.peer import Limits
from geomx.node.topology import Topology
from geomx.simulate.programs import Program
from geomx.simulate.simulator import Network, Simulator
from geomx.wire.messages import Push, Update

WAN = Network(100.0, 20.0)
LIMITS = Limits(stall_s=12.0)


def loop_of(topology: Topology, **more: Any) -> Loop:
    return Loop(layout_of(len(topology.tree.workers)), topology.tree.workers, 20, **more)


class Losing(Simulator):
    """A simulator in which one node loses one message for good: it never leaves, and counts as acknowledged."""

    def __init__(self, sender: str, kind: type[Push | Update], turn: int, slice_: int, to: str) -> None:
        super().__init__(0, WAN)
        self._lost = (sender, kind, turn, slice_, to)

    def carry_out(self, host: Any, effects: Iterable[Effect]) -> None:
        super().carry_out(host, [effect for effect in effects if not self._loses(host, effect)])

    def _loses(self, host: Any, effect: Effect) -> bool:
        sender, kind, turn, slice_, to = self._lost
        if not isinstance(effect, Write) or not isinstance(effect.message, kind):
            return False
        message = effect.message
        found = (host.node.name, message.turn, message.slice) == (sender, turn, slice_)
        if not found or host.connections[effect.conn].ends[sender][0] != to:
            return False
        host.node.peer(to).session.acknowledged(effect.number)
        self.hosts[to].node.peer(sender).session.accept(effect.number, message)
        return True


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize(
    ("sender", "kind", "to", "told"),
    [
        ("A", Update, "A/1", "turn 6 (`step()`) waits for A/0, A/1"),
        ("A/1", Push, "A", "turn 5 (`step()`) waits for A/0, A/1"),
        ("B", Push, "global/0", "turn 5 (`step()`) waits for B/0"),
        ("global/0", Update, "B", "turn 6 (`step()`) waits for B/0"),
    ],
)
def test_a_message_that_is_lost_for_good_ends_the_run(
    shards: int, sender: str, kind: type[Any], to: str, told: str
) -> None:
    topology = topology_of([2, 1], shards, limits=LIMITS)
    loop = loop_of(topology)
    simulator = Losing(sender, kind, 5, loop.layout.shards(shards).index(0), to)
    programs = start(simulator, topology, loop)
    simulator.run(120.0)
    assert simulator.now < 60.0
    errors = {name: simulator.error_of(name) for name in topology.tree.nodes}
    assert all(isinstance(error, Stalled | RunFailed) for error in errors.values()), errors
    told_by = [str(error) for error in errors.values() if isinstance(error, Stalled)]
    assert any(told in words for words in told_by), told_by
    if (sender, shards) == ("A", 1):  # its own server knows more
        assert {fields["whom"] for _, node, fields in simulator.noted("waiting") if node == "A"} == {"A/1"}
    assert all(program.error is not None for program in programs.values())


def test_a_worker_in_its_own_code_is_told_of_and_waited_for() -> None:
    topology = topology_of([2, 1], limits=LIMITS)
    loop = loop_of(topology)
    simulator, programs = run_tree(topology, slow(loop, A_1=300.0), WAN, until=900.0)
    assert_well(simulator, topology, programs)
    whom = {fields["whom"] for _, node, fields in simulator.noted("waiting") if node == "A"}
    assert whom == {"A/1 (which does not wait for the run)"}


def test_a_bound_of_a_turn_ends_the_run_under_the_name_of_whom_it_waits_for() -> None:
    """Which A knows, and the shard does not, though the turn has begun there before, with what B has sent."""
    topology = topology_of([2, 1], limits=Limits(stall_s=12.0, turn_s=100.0))
    simulator, _ = run_tree(topology, slow(loop_of(topology), A_0=5.0, A_1=300.0), WAN, until=900.0)
    error = simulator.error_of("A")
    assert isinstance(error, NodeLost)
    assert "A/1 is lost: turn 3 (`step()`) waits for A/1: 100 s so far, longer than limits.turn_s" in str(
        error
    )


def slow(loop: Loop, **seconds: float) -> Any:
    """The same loop, in which workers compute for so long before their third step; `A_1` is A/1."""

    class Slow(Loop):
        def contribution(self, index: int, turn: int, place: int, weights: Any) -> Any:
            who = self.members[place]
            if index == 0 and turn == 3:
                self.programs[who].sleep(seconds.get(who.replace("/", "_"), 0.0))
            return super().contribution(index, turn, place, weights)

        def __call__(self, program: Program) -> None:
            self.programs[program.name] = program
            super().__call__(program)

    made = Slow(loop.layout, loop.members, loop.rounds)
    made.programs = {}
    return made
