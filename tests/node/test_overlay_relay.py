"""A local server that adds for another: what it waits for, sends and passes on, and whom it does not believe."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from driven import LAYOUT, Driven, hello, local_server, push, refused_by
from trees import topology_of

from geomx.errors import ProtocolError
from geomx.node.contract import Closed
from geomx.tree import TOP
from geomx.wire.messages import Beat, Push, Update, Welcome
from geomx.wire.overlay_messages import Apart, Linked, Rates, Strayed, Table, Unanswered, Void, Way

TOPOLOGY = topology_of([2, 1], overlays={TOP: "ring"})
NODES = ("A", "B", "global/0")
THROUGH_A = Way((2, 0), (2, 0))  # B sends to A, and hears from it
GLOBAL, B = 9, 5


def table(number: int = 1, **more: Any) -> Table:
    slices = len(LAYOUT.slices)
    return Table(**{"number": number, "nodes": NODES, "ways": (THROUGH_A,), "of": (0,) * slices} | more)


def update(turn: int, number: int) -> Update:
    return Update(turn, 0, "gradient", 3.0, None, (0, 0, 0), size=0, table=number)


def adding(number: int = 1) -> Driven:
    """A, through which B sends by the table of that number, behind turn 1."""
    server: Driven = local_server(TOPOLOGY)
    server.say(GLOBAL, table(number))
    assert not pushes(server)
    server.greet(B, hello("B"))
    assert [m for m in server.written(GLOBAL) if isinstance(m, Linked)] == [Linked(number, {})]
    server.say(GLOBAL, update(1, number))
    return server


def pushes(server: Driven, conn: int = GLOBAL) -> list[Push]:
    return [message for message in server.written(conn) if isinstance(message, Push)]


def ones(times: float) -> torch.Tensor:
    return torch.full((LAYOUT.slices[0].elements,), times).view(torch.uint8)


def contribute(server: Driven, turn: int = 2) -> None:
    """Its own workers."""
    server.say(1, push("A/0", turn), ones(1.0))
    server.say(2, push("A/1", turn), ones(2.0))


def test_it_waits_for_whoever_sends_through_it_and_passes_updates_on() -> None:
    server = adding()
    assert [m.turn for m in server.written(B) if isinstance(m, Update)] == [1]
    contribute(server)
    assert not pushes(server)
    server.say(B, push("B/0", 2, table=1), ones(4.0))
    (sent,) = pushes(server)
    assert (set(sent.origins), sent.weight, sent.table) == ({"A/0", "A/1", "B/0"}, 3.0, 1)
    (payload,) = [e.payload for e in server.effects if getattr(e, "message", None) is sent]
    assert payload.view(torch.float32).unique().tolist() == [7.0]
    before = len(server.written(B))
    server.say(GLOBAL, update(2, 1))
    server.say(GLOBAL, update(2, 1))  # the same, which it has missed as far as is known
    assert len(server.written(B)) == before + 1


def test_what_is_not_answered_goes_to_the_holder_once_tables_are_void() -> None:
    server = adding()
    contribute(server)
    server.say(GLOBAL, Void(1))
    (alone,) = pushes(server)
    assert (set(alone.origins), alone.table) == ({"A/0", "A/1"}, 0)
    server.say(B, push("B/0", 2, table=1), ones(4.0))  # it has not heard so yet, and sends again
    assert pushes(server) == [alone]
    server.say(GLOBAL, update(2, 1))
    contribute(server, 3)
    assert set(pushes(server)[-1].origins) == {"A/0", "A/1"}  # by that table nothing goes any more


def test_what_has_gone_to_the_holder_itself_is_asked_for() -> None:
    server = adding()
    contribute(server)
    server.say(B, push("B/0", 2, table=1), ones(4.0))
    server.say(GLOBAL, Void(1))
    assert len(pushes(server)) == 1
    assert Unanswered(0, 2) in server.written(GLOBAL)


def test_of_a_sum_that_does_not_count_its_own_goes_alone() -> None:
    server = adding()
    contribute(server)
    server.say(B, push("B/0", 2, table=1), ones(4.0))
    server.say(GLOBAL, Apart(0, 2))
    together, alone = pushes(server)
    assert set(together.origins) - set(alone.origins) == {"B/0"}
    assert alone.table == 0
    server.say(GLOBAL, Apart(0, 1))  # of a turn that is over
    assert len(pushes(server)) == 2


def test_one_that_is_lost_is_told_of_and_ends_nothing() -> None:
    server = adding()
    server(Closed(B, "", "connection reset"))
    for _ in range(60):
        server.now += 0.5
        for conn in (1, 2, GLOBAL):
            server.say(conn, Beat(0, server._numbers.get(conn, 0), 0.0), number=0)
        server.tick(0.5, 0.5)
    assert Strayed(1, "B") in server.written(GLOBAL)
    assert not server.stopped


def test_one_that_has_parted_with_it_is_met_anew() -> None:
    server = adding()
    server.say(B, Beat(1, 0, 0.0), number=0)  # it has had the update
    server.greet(B + 1, hello("B"))
    assert any(isinstance(message, Welcome) for message in server.written(B + 1))
    assert Strayed(1, "B") in server.written(GLOBAL)  # what lay between them is lost


WRONG_TABLES = {
    "fewer nodes than members": {"ways": (Way((2, 7), (2, 0)),)},
    "a way that there is not": {"of": (3,) * len(LAYOUT.slices)},
    "a worker": {"nodes": ("A", "B/0", "global/0")},
}


@pytest.mark.parametrize("more", WRONG_TABLES.values(), ids=WRONG_TABLES)
def test_a_table_that_is_none_names_who_has_sent_it(more: dict[str, Any]) -> None:
    server = local_server(TOPOLOGY)
    server.say(GLOBAL, table(**more))
    assert "global/0 broke the protocol" in str(server.error)


WRONG = {
    "of nobody": push("B/0", 2, origins={}, table=1),
    "of strangers": push("Z/0", 2, table=1),
    "of another kind": push("B/0", 2, kind="mean", table=1),
    "of those who send to somebody else": push("B/0", 2, origins={"B/0": 1, "A/1": 1}, table=1),
    "that weighs what none can": push("B/0", 2, weight=float("nan"), table=1),
    "what it is to get from here": update(2, 1),
    "of a size that does not fit": push("B/0", 2, size=3, table=1),
    "what only a holder is told": Rates({}),
}


@pytest.mark.parametrize("message", WRONG.values(), ids=WRONG)
def test_what_another_party_cannot_mean_names_it(message: Any) -> None:
    server = adding()
    error = refused_by(server, B, message)
    assert isinstance(error, ProtocolError)
    assert "B broke the protocol" in str(error)


def test_contributions_to_turns_to_come_are_few() -> None:
    server = adding()
    for turn in range(2, 6):
        server.say(B, push("B/0", turn, table=1), ones(4.0))
    assert not server.stopped
    server.say(B, push("B/0", 6, table=1), ones(4.0))
    assert "B broke the protocol" in str(server.error)


def test_who_makes_another_call_is_named() -> None:
    server = adding()
    contribute(server)
    server.say(B, push("B/0", 2, table=1, operation="other()"), ones(4.0))
    assert "A/0, A/1 called step() where B/0 called other()" in str(server.error)


def test_who_is_no_neighbour_is_not_let_in() -> None:
    server: Driven = local_server(topology_of([2, 1]))
    server.greet(B, hello("B"))
    assert server.refusal(B).code == "identity"
