"""Who is let in, who is fenced off, and what a connection may do before it has greeted."""

from __future__ import annotations

import pytest
from driven import Driven, attach, hello, local_server, push, worker
from trees import topology_of

from geomx.errors import Fenced, ProtocolError, Refused
from geomx.node.contract import Closed, Opened, Write
from geomx.node.peers.handshake import STRANGER_S
from geomx.wire.messages import Attach, Hello, Refuse, Welcome
from geomx.wire.session import Patience


def test_a_newer_incarnation_fences_the_older_off() -> None:
    server = Driven("A")
    server.greet(1, hello("A/0", incarnation=1))
    server.greet(2, hello("A/0", incarnation=2))
    assert server.refusal(1).code == "fenced"
    assert server.hung_up() == [1]
    assert isinstance(server.written(2)[0], Welcome)
    server.greet(3, hello("A/0", incarnation=1))
    assert server.refusal(3).code == "fenced"
    assert server.hung_up() == [1, 3]
    assert not server.stopped


def test_the_same_incarnation_resumes_and_gets_what_it_has_not() -> None:
    server = local_server()
    server(Closed(1, "", "connection reset"))
    assert server.noted("away") == [{"peer": "A/0", "reason": "connection reset"}]
    server.greet(3, hello("A/0", received=0))
    again = [effect for effect in server.effects if isinstance(effect, Write) and effect.conn == 3]
    assert [(effect.number, type(effect.message).__name__) for effect in again] == [
        (0, "Welcome"),
        (1, "Attached"),
    ]
    assert server.noted("resumed") == [{"peer": "A/0"}]


def test_who_connects_anew_before_the_old_connection_is_gone_takes_its_place() -> None:
    server = local_server()
    server.greet(3, hello("A/0"))
    assert server.hung_up() == [1]
    with pytest.raises(ProtocolError, match="before the connection was greeted"):
        server.say(1, push("A/0"))  # what the old connection still brings is no longer heard
    assert not server.stopped


def test_who_is_fenced_ends_with_an_error_that_says_so() -> None:
    node = worker()
    node.say(1, Refuse("fenced", "a newer A/0 has joined"), number=0)
    assert isinstance(node.error, Fenced)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (hello("A/0", version=99), "version"),
        (hello("A/0", run="another"), "run"),
        (hello("C/7"), "identity"),
        (hello("B/0"), "identity"),
        (hello("A/0", manifest={"sync.policy": "hfa"}), "manifest"),
    ],
)
def test_who_does_not_belong_is_refused_with_a_code(message: Hello, code: str) -> None:
    server = Driven("A")
    server.greet(1, message)
    assert server.refusal(1).code == code
    assert server.hung_up() == [1]
    assert not server.stopped


@pytest.mark.parametrize(("workers", "expected"), [(8, "A/7, not C/7"), (9, "A/7 and 1 more, not C/7")])
def test_a_refusal_names_eight_of_those_who_belong(workers: int, expected: str) -> None:
    server = Driven("A", topology_of([workers]))
    server.greet(1, hello("C/7"))
    assert server.refusal(1).reason.endswith(expected)


def test_a_stranger_may_not_announce_a_payload() -> None:
    server = Driven("A")
    server(Opened(1))
    with pytest.raises(ProtocolError, match="a Attach before the connection was greeted"):
        server.node.admit(1, Attach("x", {}, 1 << 62))
    assert not server.stopped


def test_a_stranger_that_says_nothing_is_dropped() -> None:
    server = Driven("A")
    server(Opened(1))
    server.tick(STRANGER_S)
    assert server.hung_up() == []
    server.tick(1.0)
    assert server.hung_up() == [1]


def test_a_refused_worker_says_by_whom() -> None:
    node = Driven("A/0")
    node(Opened(1, "A"))
    node.say(1, Refuse("run", "run 'x'; A belongs to run 'y'"), number=0)
    assert isinstance(node.error, Refused)
    assert "A refused A/0" in str(node.error)


def test_where_messages_can_be_lost_a_greeting_is_said_again_and_answered_again() -> None:
    lossy = topology_of([1], patience=Patience(heartbeat_s=0.5, timeout_s=30.0, resend_s=0.25))
    node = Driven("A/0", lossy)
    node(Opened(1, "A"))
    node.tick(1.0, 0.25)
    assert len(node.written(1)) == 5
    server = Driven("A", lossy)
    server.greet(1, hello("A/0"))
    server.say(1, hello("A/0"), number=0)
    assert [type(message) for message in server.written(1)] == [Welcome, Welcome]
    node.say(1, Welcome("A", 1, 0), number=0)
    node.say(1, Welcome("A", 1, 0), number=0)
    assert not node.stopped
    attach("A/0", server, 2)
