"""Who is let in, who is fenced off, and what a connection may do before it has greeted."""

from __future__ import annotations

import pytest
from trees import plan_of

from geomx.errors import Fenced, ProtocolError, Refused
from geomx.node.build import make_node
from geomx.node.contract import Effect, Event, Fired, Hangup, Opened, Received, Started, Stop, Write
from geomx.protocol.messages import PROTOCOL_VERSION, Attach, Beat, Hello, Push, Refuse, Welcome

PLAN = plan_of([2, 1])


def hello(
    node: str = "A/0", incarnation: int = 1, run: str = "test", version: int = PROTOCOL_VERSION
) -> Hello:
    return Hello(version, run, node, incarnation, {}, 0)


class Driven:
    """A node, and what it has done."""

    def __init__(self, name: str) -> None:
        self.node = make_node(PLAN, name)
        self.now = 0.0
        self(Started())

    def __call__(self, event: Event) -> list[Effect]:
        return list(self.node.handle(event, self.now))

    def greet(self, conn: int, message: Hello) -> list[Effect]:
        self(Opened(conn))
        return self(Received(conn, 0, message))


def writes(effects: list[Effect], conn: int) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, Write) and effect.conn == conn]


def test_a_newer_incarnation_fences_the_older_off() -> None:
    server = Driven("A")
    assert isinstance(writes(server.greet(1, hello(incarnation=1)), 1)[0], Welcome)
    effects = server.greet(2, hello(incarnation=2))
    (refusal,) = writes(effects, 1)
    assert isinstance(refusal, Refuse)
    assert refusal.code == "fenced"
    assert any(isinstance(effect, Hangup) and effect.conn == 1 for effect in effects)
    assert isinstance(writes(effects, 2)[0], Welcome)


def test_who_is_fenced_ends_with_an_error_that_says_so() -> None:
    worker = Driven("A/0")
    worker(Opened(1, "A"))
    worker(Received(1, 0, Welcome("A", 1, 0)))
    effects = worker(Received(1, 0, Refuse("fenced", "a newer A/0 has joined")))
    (stop,) = [effect for effect in effects if isinstance(effect, Stop)]
    assert isinstance(stop.error, Fenced)


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (hello(version=99), "version"),
        (hello(run="another"), "run"),
        (hello(node="C/7"), "identity"),
        (hello(node="B/0"), "identity"),
    ],
)
def test_who_does_not_belong_is_refused_with_a_code(message: Hello, code: str) -> None:
    server = Driven("A")
    effects = server.greet(1, message)
    (refusal,) = writes(effects, 1)
    assert isinstance(refusal, Refuse)
    assert refusal.code == code
    assert any(isinstance(effect, Hangup) for effect in effects)
    assert not any(isinstance(effect, Stop) for effect in effects)


def test_a_stranger_may_not_send_anything_but_a_greeting() -> None:
    server = Driven("A")
    server(Opened(1))
    with pytest.raises(ProtocolError):
        server.node.admit(1, Attach("x", {}, 1 << 62))
    effects = server(Received(1, 0, Beat(0)))
    assert any(isinstance(effect, Hangup) and effect.conn == 1 for effect in effects)


def test_a_stranger_that_says_nothing_is_dropped() -> None:
    server = Driven("A")
    server(Opened(1))
    effects: list[Effect] = []
    while server.now < 12.0:
        server.now += 1.0
        effects += server(Fired("tick"))
    assert [effect.conn for effect in effects if isinstance(effect, Hangup)] == [1]


def test_a_member_that_announces_an_impossible_payload_ends_the_run_by_name() -> None:
    server = Driven("A")
    server.greet(1, hello())
    push = Push(1, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", False, size=1 << 62)
    with pytest.raises(ProtocolError):
        server.node.admit(1, push)
    effects = server(Fired("tick"))
    (stop,) = [effect for effect in effects if isinstance(effect, Stop)]
    assert isinstance(stop.error, ProtocolError)


def test_a_refused_worker_says_by_whom() -> None:
    worker = Driven("A/0")
    worker(Opened(1, "A"))
    effects = worker(Received(1, 0, Refuse("run", "run 'x'; A belongs to run 'y'")))
    (stop,) = [effect for effect in effects if isinstance(effect, Stop)]
    assert isinstance(stop.error, Refused)
    assert "A refused A/0" in str(stop.error)
