"""How a node ends: it tells those who are still to come why, and knows who has gone in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driven import TOPOLOGY, Driven, global_server, hello, local_server, push, welcome
from trees import topology_of

from geomx.errors import NodeLost, RunFailed
from geomx.node.contract import Called, Closed, Dial, Fired, Job, JobDone
from geomx.node.peers.handshake import RESTARTED
from geomx.rounds.losses import Losses
from geomx.wire.messages import Ack, Attached, Beat, Failure, Gone, Hello, Leave, Refuse, Welcome
from geomx.wire.session import Patience

CULPRIT = Failure("B/0", "ValueError", "no such batch")


def waiting_for_all() -> Driven:
    """A local server that has reached the global one, while its own two workers have not come."""
    server = Driven("A")
    server.reach(9, "global/0")
    return server


def test_who_comes_when_the_run_has_failed_is_told_who_did_it() -> None:
    server = waiting_for_all()
    server.say(9, CULPRIT, number=0)
    assert not server.stopped
    for conn, worker in ((1, "A/0"), (2, "A/1")):
        assert not server.stopped
        server.greet(conn, hello(worker))
        _, welcome, failure = server.written(conn)
        assert isinstance(welcome, Welcome)
        assert failure == CULPRIT
        assert conn in server.hung_up()
    assert isinstance(server.error, RunFailed)
    assert server.error.node == "B/0"


ENDS = Called("fail", ("it was asked to end (SIGTERM)",))


@pytest.mark.parametrize(("has_failed", "call"), [(True, ENDS), (True, Called("retire")), (False, ENDS)])
def test_who_is_asked_to_end_ends_at_once(has_failed: bool, call: Called) -> None:
    """Also where it waits for those who are to be told of a failure; else its own name is due."""
    server = waiting_for_all()
    if has_failed:
        server.say(9, CULPRIT, number=0)
    server(call)
    assert server.stopped
    assert server.error.node == ("B/0" if has_failed else "A")


def test_a_server_that_was_restarted_is_told_so_by_those_that_it_has_lost() -> None:
    server = local_server()
    server(Closed(9, "global/0", "connection reset"))
    server.knock(10, "global/0")
    server.say(10, welcome("global/0", incarnation=77), number=0)
    assert isinstance(server.error, NodeLost)
    assert server.written(10)[-1] == Failure("global/0", "NodeLost", RESTARTED)


@pytest.mark.parametrize("says_so", [True, False])
def test_a_worker_whose_connection_breaks_as_it_leaves_finds_its_server_when_it_comes_back(
    says_so: bool,
) -> None:
    server = local_server()
    for conn, worker in ((1, "A/0"), (2, "A/1")):
        server.say(conn, Leave({"": 0}, (worker,)))
    server.say(9, Ack(3), number=0)  # the model, and both of these
    server.say(2, Gone(), number=0)
    server(Closed(2, "", "closed by the peer"))
    if says_so:
        server.say(1, Gone(), number=0)
    server(Closed(1, "", "connection reset"))
    assert server.stopped is says_so
    if not says_so:
        server.greet(3, hello("A/0", received=1))
        assert server.written(3)[1].received == 2  # its Leave is among them
        server.say(3, Gone(), number=0)
        server(Closed(3, "", "closed by the peer"))
        assert server.stopped


def test_nodes_of_an_earlier_run_do_not_end_a_new_one() -> None:
    """They may be yesterday's; and whoever starts servers again starts the others again as well."""
    server = Driven("global/0")
    for conn, name in ((1, "A"), (2, "B")):
        server.greet(conn, hello(name, received=7))
        assert server.refusal(conn).code == "ended"
    for conn, name in ((3, "A"), (4, "B")):
        server.greet(conn, hello(name, incarnation=2))
    assert not server.stopped
    assert server.node.waits_for() == []


@pytest.mark.parametrize("came", ["A", ""])
def test_a_server_that_was_restarted_blames_itself_for_those_that_do_not_come(came: str) -> None:
    server = Driven("global/0")
    server.greet(1, hello("B", received=7))
    if came:
        server.greet(2, hello(came))
    server.node.limits = replace(server.node.limits, stall_s=5.0, start_s=12.0)
    server.tick(6.0)
    told = {fields["whom"] for fields in server.noted("waiting")}
    missing = "" if came else "A, "
    assert told == {f"{missing}B (it belonged to the run of an earlier global/0, and has ended with it)"}
    server.tick(7.0)
    assert server.error.node == "global/0"


def test_who_comes_anew_is_no_longer_of_an_earlier_run() -> None:
    server = Driven("global/0")
    for received in (7, 0):
        server.greet(1 + received, hello("A", received=received))
    server.greet(3, hello("B", received=7))
    server.greet(4, hello("B"))
    assert not server.stopped
    assert server.node.waits_for() == []


def test_it_ends_when_its_time_is_over_though_time_alone_brought_its_failure_about() -> None:
    """A worker that has fallen silent is noticed by the clock, which has to go on behind that."""
    server = Driven("A")
    server.reach(9, "global/0")
    server.greet(1, hello("A/0"))
    while not server.noted("failed"):  # A/0 says nothing; A/1 has never come
        server.say(9, Beat(0, 0, 0.0), number=0)
        server.tick(1.0)
    assert server.noted("failed")[0]["node"] == "A/0"
    assert not server.stopped
    server.tick(TOPOLOGY.limits.stop_s)
    assert server.error.node == "A/0"


def test_who_is_away_is_told_when_it_comes_back() -> None:
    server = local_server()
    server(Closed(1, "", "connection reset"))
    server(Closed(9, "global/0", "connection reset"))
    server.say(2, Ack(99), number=0)  # A/1 breaks the protocol
    assert not server.stopped
    server.greet(3, hello("A/0"))
    server(Fired("dial global/0"))
    assert isinstance(server.effects[-1], Dial)
    server.knock(10, "global/0")
    server.say(10, welcome("global/0"), number=0)
    told = [server.written(conn)[-1] for conn in (2, 3, 10)]
    assert told[0] == told[1] == told[2]
    assert told[0].node == "A"
    assert "A/1 broke the protocol" in told[0].reason
    assert server.stopped


@pytest.mark.parametrize("restarted", [hello("A", incarnation=2), hello("A", received=99)])
def test_a_greeting_that_fails_meanwhile_ends_its_connection_alone(restarted: Hello) -> None:
    server = global_server()
    server(Closed(2, "", "connection reset"))
    server(Closed(1, "", "connection reset"))
    server.greet(3, hello("B", incarnation=2))  # which was restarted: the run cannot go on
    assert not server.stopped  # A does not know yet
    server.greet(4, restarted)
    assert isinstance(server.written(4)[-1], Refuse)
    assert not server.stopped
    server.greet(5, hello("A", received=server.node.peer("A").session.known_received))
    assert server.written(5)[-1].node == "B"
    assert server.stopped


def test_nothing_but_greetings_happens_meanwhile() -> None:
    server = waiting_for_all()
    server.say(9, CULPRIT, number=0)
    before = len(server.effects)
    server(JobDone(Job(lambda result: server.node.note("done"), lambda: None, 0), None))
    server.tick(6.0)
    assert server.noted("done") == []
    assert not [note for note in server.noted("waiting") if note]
    assert len(server.noted("failed")) == 1
    assert len(server.effects) > before  # its own clock


def test_a_parent_waits_for_a_child_that_may_not_know_as_long_as_for_any_other() -> None:
    server = local_server()
    for conn, worker in ((1, "A/0"), (2, "A/1")):
        server.say(conn, Leave({"": 0}, (worker,)))
        server.say(conn, Beat(0, 1, 0.0), number=0)
    server.say(9, Ack(3), number=0)
    for conn in (1, 2):
        server(Closed(conn, "", "connection reset"))
    timeout_s = server.node.peer("A/0").session.patience.timeout_s
    for second in range(round(timeout_s)):
        assert not server.stopped, second
        server.say(9, Beat(3, 0, 0.0), number=0)
        server.tick(1.0)
    server.tick(1.0)
    assert server.stopped
    assert server.error is None


def test_a_server_whose_parent_does_not_answer_ends_without_saying_that_it_knows() -> None:
    server = local_server()
    for conn, worker in ((1, "A/0"), (2, "A/1")):
        server.say(conn, Leave({"": 0}, (worker,)))
        server.say(conn, Gone(), number=0)
        server(Closed(conn, "", "closed by the peer"))
    for _ in range(round(TOPOLOGY.limits.stop_s) + 2):
        server.say(9, Beat(0, 0, 0.0), number=0)  # it lives, and acknowledges nothing
        server.tick(1.0)
    assert server.stopped
    assert not [message for message in server.written(9) if isinstance(message, Gone)]


def test_a_worker_that_stood_still_and_was_awaited_is_said_to_be_back() -> None:
    patience = Patience(heartbeat_s=1.0, timeout_s=5.0)
    server = local_server(topology_of([2, 1], patience=patience, losses=Losses("wait", 60.0)))
    for _ in range(8):
        for conn in (2, 9):
            server.say(conn, Beat(0, 1, 0.0), number=0)
        server.tick(1.0)
    assert [fields["peer"] for fields in server.noted("awaited")] == ["A/0"]
    assert server.noted("resumed") == []
    server.say(1, Beat(0, 1, 0.0), number=0)
    server.tick(1.0)
    assert [fields["peer"] for fields in server.noted("resumed")] == ["A/0"]


@pytest.mark.parametrize("is_through", [False, True])
def test_a_link_that_always_breaks_before_a_message_is_through_is_lost(is_through: bool) -> None:
    """Though each greeting arrives, and so nobody is ever silent."""
    server = local_server()
    for conn in range(10, 40):
        server(Closed(conn - 1 if conn > 10 else 1, "", "connection reset"))
        received = is_through and conn > 10 and server.node.peer("A/0").session.sent - 1
        server.greet(conn, hello("A/0", received=int(received)))
        if is_through:
            server.node.send(server.node.peer("A/0"), Attached())
        for other in (2, 9):
            server.say(other, Beat(0, 1, 0.0), number=0)
        server.tick(1.0)
        if server.stopped:
            break
    assert server.stopped is not is_through
    if not is_through:
        assert isinstance(server.error, NodeLost)
        assert server.error.node == "A/0"
        assert "connections in a row with A broke before one message arrived" in str(server.error)


@pytest.mark.parametrize(
    ("answer", "told"),
    [
        (welcome("A", received=-1), "A broke the protocol"),
        (welcome("A", received=99), "A broke the protocol"),
        (Refuse("identity", "A expects A/1"), "A expects A/1"),  # who need not be told that it ends
        (Refuse("identity", "no\x1b[2J\ngeomx: B/0 is lost"), "A refused A/0: 'no"),  # it has proved nothing
        (Refuse("fenced", "", (), 1 << 63), ""),  # an incarnation that cannot be
        (Refuse("fenced", "", (), (1 << 64) - 1), ""),
        (Refuse("ended", "it ate the run"), f"A is lost: {RESTARTED}"),  # in our own words
    ],
)
def test_a_worker_ends_with_an_answer_that_lies_or_refuses_it(answer: Welcome | Refuse, told: str) -> None:
    node = Driven("A/0")
    node.knock(1, "A")
    node.say(1, answer, number=0)
    assert node.stopped or isinstance(answer, Welcome)  # else its server is told of it
    assert told in str(node.error)
    assert str(node.error).isprintable()


def test_what_others_tell_of_a_failure_moves_no_cursor() -> None:
    server = local_server()
    server.say(9, Failure("B/0", "ValueError", "two\nlines \x1b[2J"), number=0)
    assert str(server.error) == "the run failed at B/0: two\nlines ?[2J"


def test_who_has_left_is_told_of_what_its_leave_has_overtaken() -> None:
    """It gets no beats any more, and ends only when it knows that everything has arrived."""
    server = local_server()
    server.say(1, Leave({"": 1}, ("A/0",)), number=3)
    assert [m for m in server.written(1) if isinstance(m, Ack)] == [Ack(1)]
    server.say(1, push("A/0", turn=1), number=2)
    assert server.written(1)[-1] == Ack(3)
