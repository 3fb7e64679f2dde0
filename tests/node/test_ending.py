"""How a node ends: it tells those who are still to come why, and knows who has gone in order."""

from __future__ import annotations

from dataclasses import replace

import pytest
from driven import TOPOLOGY, Driven, hello, local_server, welcome

from geomx.errors import NodeLost, RunFailed
from geomx.node.contract import Called, Closed
from geomx.node.peers.handshake import RESTARTED
from geomx.wire.messages import Ack, Failure, Gone, Leave, Welcome

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


def test_nobody_is_told_for_longer_than_an_orderly_end_may_take() -> None:
    server = waiting_for_all()
    server.say(9, CULPRIT, number=0)
    server.greet(1, hello("A/0"))
    server.tick(TOPOLOGY.limits.stop_s - 1.0)
    assert not server.stopped
    server.tick(1.0)
    assert server.error.node == "B/0"


def test_who_is_asked_to_end_meanwhile_ends_at_once() -> None:
    server = waiting_for_all()
    server.say(9, CULPRIT, number=0)
    server(Called("fail", ("it was asked to end (SIGTERM)",)))
    assert server.error.node == "B/0"


def test_who_fails_by_itself_ends_at_once_since_its_own_name_is_due() -> None:
    server = waiting_for_all()
    server(Called("fail", ("it was asked to end (SIGTERM)",)))
    assert server.error.node == "A"


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


def test_a_server_to_which_all_come_from_an_earlier_run_was_restarted_and_says_so() -> None:
    server = Driven("global/0")
    server.greet(1, hello("A", received=7))
    assert not server.stopped  # it may be a node of yesterday's run
    server.greet(2, hello("B", received=7))
    assert server.error.node == "global/0"
    assert RESTARTED in str(server.error)


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
    assert told == {f"{missing}B (it was in the run of an earlier global/0, and has ended with it)"}
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
