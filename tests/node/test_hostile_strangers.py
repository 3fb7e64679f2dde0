"""What somebody at the door can do to a node, and what a node does about a peer that it cannot reach."""

from __future__ import annotations

import pytest
from driven import Driven, hello, local_server, welcome
from trees import topology_of

from geomx.errors import NodeLost, ProtocolError, WaitTimeout
from geomx.node.contract import Closed, Opened, Timer
from geomx.node.peers.handshake import LEAST_STRANGERS, MOST_DIFFERENCES, STRANGER_S
from geomx.node.peers.peer import Limits
from geomx.wire.messages import HEAD_LIMIT_BYTES, Beat, Failure, Welcome, encode_head


def test_a_flood_of_connections_pushes_out_the_oldest_of_itself_and_lets_others_in():
    server = Driven("A")
    for conn in range(1, 1001):
        server(Opened(conn))
    assert server.hung_up() == list(range(1, 1001 - LEAST_STRANGERS))
    server.greet(2000, hello("A/0"))
    assert isinstance(server.written(2000)[1], Welcome)
    server.tick(STRANGER_S)
    assert len(server.hung_up()) == 1001 - LEAST_STRANGERS  # that one needed room as well
    server.tick(1.0)
    assert sorted(server.hung_up()) == list(range(1, 1001))
    assert not server.stopped


def test_a_large_run_bears_as_many_strangers_as_may_come_at_once():
    server = Driven("A", topology_of([500]))
    for conn in range(1, 1001):
        server(Opened(conn))
    assert server.hung_up() == []


ABSURD = {
    "a manifest of ten thousand fields": {"manifest": {f"{n:x}": None for n in range(10_000)}},
    "a value of 60 kB": {"manifest": {"sync.policy": "\U0001f600" * 15_000}},
    "a name of 60 kB": {"node": "\x1b[2J" * 15_000},
    "a run of 60 kB": {"run": "\U000e0001" * 15_000},
    "a version of its own": {"version": (1 << 64) - 1},
    "more received than was ever sent": {"received": 1 << 62},
}


@pytest.mark.parametrize("what", ABSURD)
def test_what_a_stranger_says_comes_back_short_printable_and_harms_nobody(what):
    server = Driven("A")
    server.greet(1, hello(**{"node": "A/0"} | ABSURD[what]))
    refusal = server.refusal(1)
    assert len(encode_head(refusal)) <= HEAD_LIMIT_BYTES
    assert len(refusal.differences) <= MOST_DIFFERENCES
    words = [refusal.reason, *(word for d in refusal.differences for word in (d.field, d.yours, d.ours))]
    assert all(word.isprintable() and len(word) < 300 for word in words)
    (note,) = server.noted("refused")
    assert all(word.isprintable() and len(word) < 300 for word in note.values())
    assert not server.stopped
    server.greet(2, hello("A/0"))
    assert isinstance(server.written(2)[1], Welcome)


@pytest.mark.parametrize("message", [Beat(0, 0, 0.0), welcome("A"), Failure("A", "NodeLost", "gone")])
def test_whatever_else_a_stranger_says_costs_it_its_connection(message):
    server = Driven("A")
    server(Opened(1))
    try:
        server.say(1, message, None, 0)
    except ProtocolError:
        server(Closed(1, "", "refused by admit"))
    else:
        assert server.hung_up() == [1]
    assert not server.stopped


def test_why_a_peer_cannot_be_reached_is_said_once_for_each_reason():
    node = Driven("A/0")
    reasons = ["connection refused", "TLS: CERTIFICATE_VERIFY_FAILED"]
    node(Closed(0, "A", reasons[0]))
    assert node.noted("unreachable") == []  # it may be a moment late
    node.tick(6.0)
    for reason in reasons:
        for _ in range(5):
            node(Closed(0, "A", reason))
    assert [fields["reason"] for fields in node.noted("unreachable")] == reasons


def test_a_peer_that_hangs_up_on_a_greeting_may_want_certificates():
    node = Driven("A/0")
    node.tick(6.0)
    node(Opened(1, "A"))
    node(Closed(1, "A", "closed by the peer"))
    assert "certificates" in node.noted("unreachable")[0]["reason"]


@pytest.mark.parametrize(
    ("reason", "told_s"),
    [
        (" (connection refused)", [31, 61, 91]),  # why is told sooner, by `unreachable`
        ("", [6, 36, 66, 96]),  # it may have been killed before it could dial, which nobody else notices
    ],
)
def test_a_start_that_takes_long_says_for_whom_and_why_and_then_gives_up(reason, told_s):
    node = Driven("A", topology_of([2, 1], limits=Limits(start_s=100.0, stall_s=30.0)))
    node.greet(1, hello("A/0"))
    if reason:
        node(Closed(0, "global/0", "connection refused"))
    for _ in range(99):
        node.tick(1.0)
        node.say(1, Beat(0, 0, 0.0), None, 0)
    waits = node.noted("waiting")
    assert [round(fields["seconds"]) for fields in waits] == told_s
    assert {fields["whom"] for fields in waits} == {f"global/0{reason}, A/1"}
    node.tick(2.0)
    assert isinstance(node.error, WaitTimeout)
    assert f"waited 100 s for global/0{reason}, A/1 to join; start them" in str(node.error)


def test_a_peer_that_accepts_and_never_answers_is_dialled_anew():
    node = Driven("A/0")
    node(Opened(1, "A"))
    node.tick(7.0)
    assert node.hung_up() == [1]
    assert any(isinstance(effect, Timer) and effect.key == "dial A" for effect in node.effects)


def test_a_peer_that_greets_and_then_falls_silent_is_named():
    server = local_server()
    server.tick(5.0)
    for _ in range(12):
        server.tick(1.0)
        for conn in (2, 9):
            if not server.stopped:
                server.say(conn, Beat(0, 0, 0.0), None, 0)
    assert isinstance(server.error, NodeLost)
    assert server.error.node == "A/0"
    told = [message for message in server.written(9) if isinstance(message, Failure)]
    assert [(failure.node, failure.error) for failure in told] == [("A/0", "NodeLost")]
