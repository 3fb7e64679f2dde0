"""Who is let in, who is fenced off, and what a connection may do before it has greeted."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driven import (
    LAYOUT,
    NONCES,
    Driven,
    attach,
    bring_model,
    global_server,
    hello,
    local_server,
    push,
    welcome,
)
from trees import topology_of

from geomx.errors import Fenced, NodeLost, ProtocolError, Refused, Unsupported
from geomx.node.contract import Closed, Opened, Timer, Write
from geomx.node.peers.handshake import SILENT_BEATS, TELL_EVERY_S
from geomx.wire.messages import Attached, Beat, Challenge, Failure, Hello, Reading, Refuse, Update, Welcome
from geomx.wire.proof import NONCE_BYTES
from geomx.wire.session import Patience


def test_a_newer_incarnation_takes_the_place_of_one_that_has_fallen_silent() -> None:
    server = Driven("A")
    server.greet(1, hello("A/0", incarnation=1))
    server.greet(2, hello("A/0", incarnation=2))
    assert server.refusal(2).code == "held"
    assert (server.hung_up(), server.stopped) == ([2], False)
    server.tick(SILENT_BEATS + 1.0)
    server.greet(3, hello("A/0", incarnation=2))
    assert server.refusal(1).code == "fenced"
    assert server.hung_up() == [2, 1]
    assert isinstance(server.written(3)[1], Welcome)
    server.greet(4, hello("A/0", incarnation=1))
    assert (server.refusal(4).code, server.refusal(4).newest) == ("fenced", 2)
    assert not server.stopped


def test_the_same_incarnation_resumes_and_gets_what_it_has_not() -> None:
    server = local_server()
    server(Closed(1, "", "connection reset"))
    assert server.noted("away") == [{"peer": "A/0", "reason": "connection reset"}]
    server.greet(3, hello("A/0", received=0))
    again = [effect for effect in server.effects if isinstance(effect, Write) and effect.conn == 3]
    assert [(effect.number, type(effect.message).__name__) for effect in again] == [
        (0, "Challenge"),
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


def test_a_process_whose_clock_is_behind_takes_the_next_number_if_it_was_never_welcome() -> None:
    node = Driven("A/0")
    node.knock(1, "A")
    node.say(1, Refuse("fenced", "a newer A/0 has joined", newest=41), number=0)
    assert (node.stopped, node.hung_up()) == (False, [1])
    node.knock(2, "A")
    assert isinstance(node.written(2)[0], Hello)
    assert node.written(2)[0].incarnation == 42
    node.say(2, welcome("A"), number=0)
    node(Closed(2, "A", "connection reset"))
    node.knock(3, "A")
    node.say(3, Refuse("fenced", "a newer A/0 has joined", newest=99), number=0)
    assert isinstance(node.error, Fenced)


def test_a_name_that_is_held_is_asked_for_until_the_timeout() -> None:
    node = Driven("A/0", topology_of([1], patience=Patience(1.0, 5.0)))
    for conn in range(1, 7):
        node.knock(conn, "A")
        node.say(conn, Refuse("held", "another A/0 is connected and alive"), number=0)
        assert not node.stopped
        node.tick(1.0)
    node.knock(7, "A")
    node.say(7, Refuse("held", "another A/0 is connected and alive"), number=0)
    assert isinstance(node.error, Refused)
    assert "another A/0 is connected" in str(node.error)


SECRET = b"a secret of the run"
SAFE = replace(topology_of([2, 1]), secret=SECRET)
UNPROVED = {
    "none": hello("A/0"),
    "another": hello("A/0", secret=b"another secret of a run"),
    "of another connection": hello("A/0", secret=SECRET, nonces=(b"o" * NONCE_BYTES, NONCES[1])),
    "of another name": hello("A/0", proof=hello("A/1", secret=SECRET).proof),
    "of another incarnation": hello("A/0", proof=hello("A/0", incarnation=2, secret=SECRET).proof),
    "of the other side": hello("A/0", proof=welcome("A/0", secret=SECRET).proof),
    "and another version": hello("A/0", version=1),
    "and nobody's name": hello("C/9"),
    "and another run": hello("A/0", run="another"),
}


@pytest.mark.parametrize("what", UNPROVED)
def test_without_a_proof_of_the_secret_a_refusal_says_a_code_alone(what: str) -> None:
    server = Driven("A", SAFE)
    server.greet(1, UNPROVED[what])
    assert server.refusal(1) == Refuse("version" if "version" in what else "proof")
    assert (server.hung_up(), server.stopped) == ([1], False)


def test_with_the_secret_both_sides_are_let_in() -> None:
    server, node = Driven("A", SAFE), Driven("A/0", SAFE)
    server(Opened(1, "", NONCES[0]))
    node(Opened(5, "A", NONCES[1]))
    node.say(5, server.written(1)[0], number=0)
    server.say(1, node.written(5)[0], number=0)
    node.say(5, server.written(1)[1], number=0)
    assert (server.noted("joined"), node.noted("joined")) == ([{"peer": "A/0"}], [{"peer": "A"}])


@pytest.mark.parametrize("proved", [welcome("A"), welcome("A", secret=b"another secret of a run")])
def test_whoever_answers_without_the_secret_is_not_believed(proved: Welcome) -> None:
    node = Driven("A/0", SAFE)
    node.knock(1, "A")
    node.say(1, proved, number=0)
    assert (node.noted("joined"), node.hung_up(), node.stopped) == ([], [1], False)
    assert any(isinstance(effect, Timer) and effect.key == "dial A" for effect in node.effects)


@pytest.mark.parametrize(
    ("uris", "is_let_in"),
    [
        (("geomx:test/A/0",), True),
        (("geomx:test/A",), True),
        (("geomx:*/A",), True),
        (("https://example.org", "geomx:test/A"), True),
        (("geomx:test/A/1",), False),
        (("geomx:test/B",), False),
        (("geomx:other/A",), False),
        (("geomx:test/",), False),
        (("A/0",), False),
        ((), False),
    ],
)
def test_a_certificate_proves_the_name_that_it_bears(uris: tuple[str, ...], is_let_in: bool) -> None:
    server = Driven("A")
    server(Opened(1, "", NONCES[0], uris))
    server.say(1, hello("A/0"), number=0)
    assert (server.written(1)[1] == Refuse("certificate")) is not is_let_in
    node = Driven("A/0")
    node(Opened(1, "A", NONCES[1], tuple(uri.replace("A/0", "A") for uri in uris)))
    assert (node.hung_up() == []) is is_let_in
    assert (server.stopped, node.stopped) == (False, False)


@pytest.mark.parametrize(("received", "code"), [(0, "fenced"), (1, None), (2, "ended")])
def test_a_session_is_resumed_with_no_less_than_was_acknowledged_and_no_more_than_was_sent(
    received: int, code: str | None
) -> None:
    """Who has received nothing is another process that came to the same number: it is told to take a greater one."""
    server = local_server()
    server.say(1, Beat(1, 1, 0.0), number=0)  # A/0 has its Attached
    server(Closed(1, "", "connection reset"))
    server.greet(3, hello("A/0", received=received))
    answer = server.written(3)[1]
    assert (answer.code if isinstance(answer, Refuse) else None) == code


def test_a_local_server_that_was_restarted_ends_the_run_under_its_own_name() -> None:
    server = global_server()
    server(Closed(2, "", "connection reset"))
    server.greet(3, hello("B", incarnation=2))
    assert server.refusal(3).code == "returned"
    assert isinstance(server.error, NodeLost)
    assert "B is lost: it was restarted" in str(server.error)
    (failure,) = [message for message in server.written(1) if isinstance(message, Failure)]
    assert failure.node == "B"


def test_a_shard_that_was_replaced_is_left_for_the_one_with_the_newer_term() -> None:
    worker = Driven("A")
    for conn, incarnation, term in ((1, 5, 2), (2, 5, 2), (3, 4, 1)):
        worker.knock(conn, "global/0")
        worker.say(conn, welcome("global/0", incarnation, term=term), number=0)
        worker(Closed(conn, "global/0", "connection reset"))
    assert worker.hung_up() == [3]
    assert not worker.stopped


def test_where_the_weights_live_on_the_workers_nobody_rejoins() -> None:
    settings = {"optimizer": "workers", "clip_norm": None}
    server = Driven("A")
    server.reach(9, "global/0")
    for conn, name in ((1, "A/0"), (2, "A/1")):
        attach(name, server, conn, settings)
    server.say(9, Attached())
    server.say(9, Update(0, 0, "assign", 1.0, None, Reading(), size=LAYOUT.slices[0].size_bytes))
    server(Closed(2, "", "connection reset"))
    server.greet(3, hello("A/1", incarnation=2))
    bring_model(server, 3, settings)
    assert isinstance(server.error, Unsupported)
    assert "A/1 cannot rejoin: only the workers have the weights" in str(server.error)
    (failure,) = [message for message in server.written(1) if isinstance(message, Failure)]
    assert "A/1 cannot rejoin" in failure.reason


def test_who_was_sent_away_and_is_there_now_is_not_told_of_later() -> None:
    server = Driven("A")
    server.greet(1, hello("A/0", received=5))
    server.greet(2, hello("A/0", received=5))
    server.greet(3, hello("A/0"))
    server.tick(2 * TELL_EVERY_S)
    assert [fields["peer"] for fields in server.noted("refused")] == ["A/0"]


def test_a_flood_of_refusals_is_told_a_few_times() -> None:
    server = Driven("A", SAFE)
    for conn in range(1, 1001):
        server.greet(conn, hello("A/0"))
    assert len(server.noted("refused")) == 1
    server.tick(TELL_EVERY_S)
    assert [fields["peer"] for fields in server.noted("refused")] == ["A/0", "A/0 (999 times)"]


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


@pytest.mark.parametrize(("workers", "expected"), [(8, "A/7, not C/7"), (9000, "A/7 and 8992 more, not C/7")])
def test_a_refusal_names_eight_of_those_who_belong(workers: int, expected: str) -> None:
    server = Driven("A", topology_of([workers]))
    server.greet(1, hello("C/7"))
    assert server.refusal(1).reason.endswith(expected)


def test_where_messages_can_be_lost_a_greeting_is_said_again_and_answered_again() -> None:
    lossy = topology_of([1], patience=Patience(heartbeat_s=0.5, timeout_s=30.0, resend_s=0.25))
    node = Driven("A/0", lossy)
    node.knock(1, "A")
    node.tick(1.0, 0.25)
    assert len(node.written(1)) == 5
    server = Driven("A", lossy)
    server.greet(1, hello("A/0"))
    server.say(1, hello("A/0"), number=0)
    assert [type(message) for message in server.written(1)] == [Challenge, Welcome, Welcome]
    node.say(1, welcome("A"), number=0)
    node.say(1, welcome("A"), number=0)
    assert not node.stopped
    attach("A/0", server, 2)
