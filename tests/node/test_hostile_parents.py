"""What a broken parent, or a shard beside us, can do: end the run with an error that names it."""

from __future__ import annotations

import pytest
from driven import (
    IN_DATAGRAMS,
    LAYOUT,
    SETTINGS,
    Driven,
    global_server,
    hello,
    local_server,
    push,
    refused_by,
    worker,
)
from trees import topology_of

from geomx.errors import ProtocolError, RunFailed
from geomx.node.contract import Called, Opened
from geomx.node.slices.payloads import pack_turns
from geomx.rounds.round import Round
from geomx.wire.flow_messages import Beside
from geomx.wire.messages import (
    HEAD_LIMIT_BYTES,
    Ack,
    Attach,
    Attached,
    Failure,
    Fetch,
    Norms,
    Place,
    Reached,
    Reading,
    Scale,
    State,
    Update,
    encode_head,
)

SIZE = LAYOUT.slices[0].size_bytes
WHOLE = Beside(0, 1, None, SIZE, True)


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (Update(0, 99, "gradient", 1.0, None, Reading()), "slice 99 is not in the layout"),
        (Update(0, 0, "gradient", 1.0, None, Reading(), "", SIZE + 1), "Update announces"),
        (State(0, 99, (), (), 0), "slice 99 is not in the layout"),
        (State(0, 0, ("exp_avg",), (), 7), "State announces 7 bytes"),
        (Attached({}, size=8), "Attached announces 8 bytes"),
        (Attach("f", {}, 8), "Attach announces 8 bytes"),
        (Attached({}, (Reached("A/0", "", 1, 0, Place(), Place(0, (-1,))),)), "said to be at Place"),
        (Fetch(0, 0), "Fetch was sent down to A/0"),
        (
            Update(1, 0, "gradient", 1.0, None, Reading(), "", SIZE, None, WHOLE),
            "announces a payload in datagrams",
        ),
    ],
)
def test_what_a_parent_may_not_say_names_it(message, reason):
    node = worker()
    error = refused_by(node, 1, message)
    assert isinstance(error, ProtocolError)
    assert "A broke the protocol" in str(error)
    assert reason in str(error)


def test_a_parent_s_push_in_datagrams_is_refused_before_memory_is_taken():
    node, blocks = worker(IN_DATAGRAMS), Beside(0, 10**9, None, SIZE)
    node.node.admit(1, Update(1, 0, "gradient", 1.0, None, Reading(), "", SIZE, None, WHOLE))
    with pytest.raises(ProtocolError, match="A broke the protocol: Push announces a payload in datagrams"):
        node.node.admit(1, push("A/0", beside=blocks))


def test_a_parent_cannot_answer_before_it_was_asked():
    node = Driven("A/0")
    node.reach(1, "A")
    assert "before there was a model" in str(refused_by(node, 1, Attached()))


def test_a_state_that_nobody_asked_for_is_refused():
    server = local_server()
    assert "a Fetch 5 that nobody made" in str(refused_by(server, 9, State(5, 0, (), (), 0)))


def test_a_shard_may_tell_another_of_norms_and_nothing_else():
    topology = topology_of([1], shards=2)
    for message, reason in [
        (Fetch(0, 0), "Fetch was sent to a shard beside it"),
        (State(0, 0, (), (), 8), "State announces a payload to a shard beside it"),
    ]:
        lead = Driven("global/0", topology)
        lead.greet(1, hello("global/1"))
        error = refused_by(lead, 1, message)
        assert "global/1 broke the protocol" in str(error)
        assert reason in str(error)


def test_the_turns_of_a_run_that_has_begun_come_for_every_slice():
    turns = {index: (index, 7) for index in range(len(LAYOUT.slices))}
    body = pack_turns([turn for pair in turns.values() for turn in pair])
    node = Driven("A/0")
    node.reach(1, "A")
    node(Called("attach", (LAYOUT, SETTINGS)))
    node.say(1, Attached({}, size=body.numel()), body)
    assert [item.by_slice for item in node.notified()] == [turns]


def test_what_a_script_raises_may_be_long_and_is_told_all_the_same():
    node = worker()
    node(Called("fail", ("\U0001f600" * 200_000,)))
    (failure,) = [message for message in node.written(1) if isinstance(message, Failure)]
    assert failure.node == "A/0"
    assert len(encode_head(failure)) <= HEAD_LIMIT_BYTES
    server = local_server()
    server.say(1, failure, None, 0)
    assert [message for message in server.written(9) if isinstance(message, Failure)] == [failure]


def test_a_job_that_fails_names_its_node():
    server = global_server()
    server(Called("run_job", (lambda: 1 / 0, lambda result: None, 0)))
    assert isinstance(server.error, RunFailed)
    assert server.error.node == "global/0"
    assert "ZeroDivisionError" in str(server.error)


def test_a_node_that_has_stopped_does_nothing_more():
    server = local_server()
    server.say(1, Ack(99), None, 0)
    before = len(server.effects)
    server(Opened(50))
    server.tick(100.0)
    assert server.effects[before:] == []


def test_norms_of_another_shard_add_up_to_the_scale_that_both_use():
    topology = topology_of([1], shards=2)
    lead = Driven("global/0", topology)
    lead.greet(1, hello("global/1"))
    lead.node.sink._clipping.start(1.0, frozenset({0}), frozenset({0, 1}))
    lead.say(1, Norms("", 4, {1: 9.0}))
    scales: list[float] = []
    lead.node.sink._clipping.square(0, Round(4, "", "gradient", 0.0), 16.0, scales.append)
    assert scales == [pytest.approx(1 / 5, rel=1e-5)]
    lead.tick(1.0)
    assert [m for m in lead.written(1) if isinstance(m, Scale)] == [Scale("", 4, 25.0)]
