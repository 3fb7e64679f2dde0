"""Workers that reduce among themselves, where the run goes on without whoever is lost: their party ends as a whole."""

from __future__ import annotations

import pytest
from driven import Driven, worker
from trees import topology_of

from geomx.errors import NodeLost, RunFailed
from geomx.node.contract import Called, Stop, Write
from geomx.rounds.losses import Losses
from geomx.wire.messages import Attached, Failure
from geomx.wire.roster_messages import Roster

TREE = topology_of([2, 1]).tree


def member(out: tuple[str, ...] = ()) -> Driven:
    """A/0 of a party of two, which has attached."""
    topology = topology_of([2, 1], collective=frozenset({"A"}), losses=Losses("continue", 60.0))
    return worker(topology, Attached(roster=Roster(1, TREE.bitmap_of(out))))


def ended(node: Driven) -> list[Stop]:
    return [effect for effect in node.effects if isinstance(effect, Stop)]


def told(node: Driven) -> list[Write]:
    return [e for e in node.effects if isinstance(e, Write) and isinstance(e.message, Failure)]


def test_a_worker_ends_with_another_of_its_job_and_does_not_end_the_run() -> None:
    node = member()
    node.say(1, Roster(2, TREE.bitmap_of(("B/0",))))
    assert not ended(node)
    node.say(1, Roster(3, TREE.bitmap_of(("A/1", "B/0"))))
    (stop,) = ended(node)
    assert isinstance(stop.error, NodeLost)
    assert stop.error.node == "A/1"
    assert not told(node)


def test_whoever_of_a_job_is_still_to_be_let_in_ends_nobody() -> None:
    node = member(out=("A/1",))
    node.say(1, Roster(2, TREE.bitmap_of(("A/1", "B/0"))))
    node.say(1, Roster(3, TREE.bitmap_of(("B/0",))))
    assert not ended(node)
    node.say(1, Roster(4, TREE.bitmap_of(("A/1", "B/0"))))
    assert len(ended(node)) == 1


def test_a_job_that_breaks_does_not_end_the_run() -> None:
    node = member()
    node(Called("give_up", ("gloo: connection closed by peer",)))
    (stop,) = ended(node)
    assert isinstance(stop.error, RunFailed)
    assert stop.error.node == "A/0"
    assert not told(node)


@pytest.mark.parametrize("party", ["A", "B"])
def test_others_go_on_by_themselves(party: str) -> None:
    topology = topology_of([2, 1], collective=frozenset({party}), losses=Losses("continue", 60.0))
    assert topology.job_of("A/0") == ({"A/1"} if party == "A" else frozenset())
    assert topology.job_of("B/0") == frozenset()
