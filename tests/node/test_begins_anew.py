"""What a worker says once more to a server that knows nothing of it any more."""

from __future__ import annotations

from driven import Driven, welcome, worker
from trees import topology_of

from geomx.node.contract import Called, Closed
from geomx.node.port import Left
from geomx.rounds.losses import Losses
from geomx.wire.messages import Ack, Attach, Attached, Leave

AWAITED = topology_of([1, 1], losses=Losses("wait", 60.0))


def is_anew(node: Driven, conn: int) -> None:
    """Its server was restarted: it hangs up, and dials once more with a new incarnation."""
    node(Closed(conn, "A", "gone"))
    node.knock(conn + 1, "A")
    node.say(conn + 1, welcome("A", 2), number=0)
    node.knock(conn + 2, "A")
    node.say(conn + 2, welcome("A", 2), number=0)


def test_a_leave_is_said_again_and_only_then_heard() -> None:
    node = worker(AWAITED)
    node(Called("leave", ({"": 3},)))
    is_anew(node, 1)
    assert [type(m) for m in node.written(3) if isinstance(m, Attach | Leave)] == [Attach]
    node.say(3, Ack(1), number=0)  # of its model, not of its leave
    assert not [item for item in node.notified() if isinstance(item, Left)]
    node.say(3, Attached())
    assert [m.turns for m in node.written(3) if isinstance(m, Leave)] == [{"": 3}]
    node.say(3, Ack(2), number=0)
    assert [item for item in node.notified() if isinstance(item, Left)]


def test_who_has_attached_nothing_leaves_at_once() -> None:
    node = Driven("A/0", AWAITED)
    node.reach(1, "A")
    node(Called("leave", ({"": 3},)))
    is_anew(node, 1)
    assert [m.turns for m in node.written(3) if isinstance(m, Leave)] == [{"": 3}]
    node.say(3, Ack(1), number=0)
    assert [item for item in node.notified() if isinstance(item, Left)]
