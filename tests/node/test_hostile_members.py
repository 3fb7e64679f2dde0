"""What a broken, old, hostile or slow child can do: end the run with an error that names it."""

from __future__ import annotations

import math
from typing import Any

import msgspec
import pytest
import torch
from driven import (
    IN_DATAGRAMS,
    LAYOUT,
    SETTINGS,
    Driven,
    attach,
    bring_model,
    global_server,
    hello,
    local_server,
    push,
    refused_by,
)

from geomx.errors import Disagreement, NodeLost, ProtocolError
from geomx.layout import Layout, Tensor
from geomx.node.contract import Closed, Fired, Write
from geomx.rounds.turn import OPEN_ROUNDS
from geomx.wire.flow_messages import Beside
from geomx.wire.messages import (
    HEAD_LIMIT_BYTES,
    Ack,
    Attach,
    Attached,
    Beat,
    Failure,
    Fetch,
    Leave,
    Norms,
    Place,
    Reached,
    Reading,
    Sampled,
    Update,
    encode_head,
)
from geomx.wire.session import WINDOW

SIZE = LAYOUT.slices[0].size_bytes


PUSHES: dict[str, tuple[dict[str, Any], str]] = {
    "a slice that is not there": ({"slice": 99}, "slice 99 is not held by A"),
    "a slice before the first": ({"slice": -1}, "slice -1 is not held by A"),
    "no slice, no bytes": ({"slice": 99, "size": 0}, "slice 99 is not held by A"),
    "too few bytes": ({"size": SIZE - 4}, "do not fit"),
    "too many bytes": ({"size": SIZE + 4}, "do not fit"),
    "bytes beyond all memory": ({"size": 1 << 62}, "do not fit"),
    "values, and no bytes": ({"size": 0}, "0 bytes are announced"),
    "no values, and bytes": ({"present": b"\x00"}, "do not fit"),
    "planes without end": ({"kind": "assign", "planes": ("p",) * 17, "size": 18 * SIZE}, "do not fit"),
    "another slice's bitmap": ({"present": b"\x01\x01"}, "a bitmap of 2 bytes"),
    "a weight of NaN": ({"weight": math.nan}, "weighs nan"),
    "a negative weight": ({"weight": -1.0}, "weighs -1.0"),
    "a weight of which no sum is finite": ({"weight": 1.7e308}, "weighs 1.7e+308"),
    "an infinite weight": ({"weight": math.inf}, "weighs inf"),
    "nobody's": ({"origins": {}}, "a push for nobody"),
    "another's": ({"origins": {"A/1": 1}}, "a push for A/1; its members: A/0"),
    "a stranger's": ({"origins": {"C/7": 1}}, "a push for C/7"),
    "a worker's cohort": ({"cohort": "A/0"}, "for the cohort"),
    "first values for a worker": ({"cohort": "A/0", "kind": "assign"}, "for the cohort"),
    "first values for a party": ({"cohort": "A", "kind": "assign"}, "for the cohort"),
    "a turn beyond all": ({"turn": 1 << 63}, "for the cohort"),
}


@pytest.mark.parametrize("what", PUSHES)
def test_a_push_that_cannot_be_ends_the_run_and_names_who_sent_it(what):
    fields, reason = PUSHES[what]
    server = local_server()
    message = msgspec.structs.replace(push("A/0"), **fields)
    error = refused_by(server, 1, message, torch.zeros(SIZE, dtype=torch.uint8))
    assert isinstance(error, ProtocolError)
    assert "A/0 broke the protocol" in str(error)
    assert reason in str(error)
    assert any(isinstance(message, Failure) and "A/0" in message.reason for message in server.written(9))


BESIDE = Beside(0, 1, None, SIZE, True)
UPDATE_BESIDE = Update(1, 0, "gradient", 1.0, None, Reading(), "", SIZE, None, BESIDE)


def test_a_child_s_update_in_datagrams_is_refused_before_memory_is_taken():
    server = local_server(IN_DATAGRAMS)
    server.node.admit(1, push("A/0", beside=BESIDE))
    with pytest.raises(
        ProtocolError, match="A/0 broke the protocol: Update announces a payload in datagrams"
    ):
        server.node.admit(1, UPDATE_BESIDE)


def test_a_push_before_the_model_is_refused():
    server = Driven("A")
    server.greet(1, hello("A/0"))
    assert "slice 0 is not held by A" in str(refused_by(server, 1, push("A/0")))


def test_a_round_far_ahead_is_told_as_a_disagreement_and_not_waited_for():
    server = local_server()
    server.say(2, push("A/1", turn=1))
    server.say(1, push("A/0", turn=1 << 60))
    assert isinstance(server.error, Disagreement)
    assert f"turn 1 (A/1) and turn {1 << 60} (A/0)" in str(server.error)


def test_where_members_may_be_ahead_the_open_rounds_are_bounded():
    server = local_server()
    server.node._policy.lockstep = False
    for turn in range(1, OPEN_ROUNDS + 2):
        server.say(1, push("A/0", turn=turn))
    assert isinstance(server.error, ProtocolError)
    assert "A/0" in str(server.error)


def test_a_round_of_the_past_changes_nothing():
    server = local_server()
    before = len(server.effects)
    server.say(1, push("A/0", turn=-(1 << 60)))
    assert server.effects[before:] == []
    assert not list(server.node._gathering.turns)


def test_duplicates_of_two_incarnations_count_once():
    server = local_server()
    ones = torch.ones(LAYOUT.slices[0].elements).view(torch.uint8)
    server.say(1, push("A/0"), ones)
    attach("A/0", server, 3)  # the same incarnation: it resumes
    server(Closed(3, "", "connection reset"))
    server.greet(4, hello("A/0", incarnation=2))
    server.say(4, push("A/0", incarnation=2), ones)
    server.say(2, push("A/1"), ones)
    (sent,) = [e for e in server.effects if isinstance(e, Write) and getattr(e.message, "turn", 0) == 1]
    assert sent.message.origins == {"A/0": 1, "A/1": 1}
    assert sent.message.weight == 2.0
    assert set(sent.payload.view(torch.float32).tolist()) == {2.0}


def test_a_step_that_nobody_can_have_come_to_sends_nobody_there():
    server = global_server()
    server.say(1, push("A/0", origins={"A/0": 1, "A/1": 1}, step=10**6))
    server.say(2, push("B/0", step=0))
    known = server.node.reception.state.standing("")
    assert (known.step, known.step_turn) == (1, 1)


def test_who_has_not_begun_anew_does_not_add_up_others_than_before():
    server = global_server()
    server.say(1, push("A/0"))
    error = refused_by(server, 1, push("A/0", origins={"A/0": 1, "A/1": 1}))
    assert "A broke the protocol: slice 0, turn 1: A/0 is counted already, in other company" in str(error)


@pytest.mark.parametrize(
    ("message", "what"),
    [
        *((message, "message 99 is acknowledged") for message in (Ack(99), Beat(99, 0, 0.0))),
        *(
            (Beat(0, *more), "a heartbeat that says")
            for more in ((-5, 0.0), (0, -1e9), (0, math.nan), (0, math.inf))
        ),
    ],
)
def test_a_heartbeat_or_an_acknowledgement_that_cannot_be_names_who_made_it(message, what):
    server = local_server()
    server.say(1, message, None, 0)
    assert isinstance(server.error, ProtocolError)
    assert f"A/0 broke the protocol: {what}" in str(server.error)
    assert "see that A/0 is healthy and runs the same geomx" in str(server.error)


def test_a_flood_of_heartbeats_costs_nothing_that_stays():
    server = local_server()
    before = len(server.effects)
    for _ in range(10_000):
        server.say(1, Beat(0, 0, 0.0), None, 0)
    assert server.effects[before:] == []
    assert not server.stopped


PLACES = (
    *(Place(-1), Place(0, (3, -3)), Place(0, (1,) * 17), Place(0, (), 1, math.inf)),
    *(Place(0, (), 1, 1.0, -2.0), Place(first_loss=math.nan)),
)


@pytest.mark.parametrize(
    ("message", "number", "reason"),
    [
        (Leave({"": 1}, ("A/1",)), None, "A/1"),
        (Fetch(1, 77), None, "slice 77 is not held"),
        (Attached(), None, "Attached was sent up to A"),
        (Norms("", 1, {}), None, "Norms was sent up to A"),
        (push("A/0"), 0, "Push was sent without a number"),
        (Reached("A/1", "", 1, 0, Place(), Place()), None, "A/0 told how far A/1 is"),
        (Reached("A/0", "A/1", 1, 0, Place(), Place()), None, "in the cohort 'A/1'"),
        (Reached("A/0", "C", 1, 0, Place(), Place()), None, "nobody here belongs to the cohort 'C'"),
        *(
            (Reached("A/0", "", 1, 0, place, Place()), None, "the script of A/0 is said to be at Place")
            for place in PLACES
        ),
        *(
            (Reached("A/0", "", 1, 0, Place(), place), None, "the script of A/0 is said to be at Place")
            for place in PLACES
        ),
        (Sampled("A/1", {}), None, "Sampled of A/1"),
        (Sampled("A/0", dict.fromkeys(range(9), b"8 bytes!")), None, "A/0 told of 9 samples"),
        (Sampled("A/0", {3: b"short"}), None, "A/0 told a digest of 5 bytes of sample 3"),
        (Sampled("A/0", {-1: b"8 bytes!"}), None, "bytes of sample -1"),
        (Leave({"": 1}, ("A/0",)), WINDOW + 9, f"message {WINDOW + 9} came when 1 was the last"),
        (Update(1, 0, "gradient", 1.0, None, Reading(), "", SIZE), None, "Update announces a payload"),
        # Where the connection has no datagrams; else it would count with its weight, and no values.
        (push("A/0", beside=BESIDE), None, "A/0 broke the protocol: Push announces a payload in datagrams"),
        (UPDATE_BESIDE, None, "A/0 broke the protocol: Update announces a payload in datagrams"),
    ],
)
def test_what_a_child_may_not_say_names_it(message, number, reason):
    server = local_server()
    error = refused_by(server, 1, message, None, number)
    assert isinstance(error, ProtocolError)
    assert "A/0" in str(error)
    assert reason in str(error)
    assert not [each for each in server.written(9) if getattr(each, "turn", 0) == 1]


def test_a_slow_reader_holds_up_a_bounded_number_of_messages(monkeypatch):
    monkeypatch.setattr("geomx.wire.session.WINDOW", 50)
    server = global_server()
    for token in range(100):
        if not server.stopped:
            server.say(1, Fetch(token, 0))
    assert isinstance(server.error, ProtocolError)
    assert "A has not acknowledged 50 messages" in str(server.error)


def encoded(**fields: Any) -> bytes:
    return msgspec.msgpack.encode(fields)


LAYOUTS = {
    "nothing": b"",
    "garbage": bytes(range(200)),
    "a tensor of 2^120 elements": encoded(tensors=[["w", [1 << 60, 1 << 60], "float32"]]),
    "slices of one element": encoded(tensors=[["w", [1 << 40], "float32"]], slice_elements=1),
    "a thousand dimensions": encoded(tensors=[["w", [1 << 62] * 1000, "float32"]]),
    "as many tensors as slices can be": encoded(tensors=[[str(n), [1000], "int8"] for n in range(40_000)]),
    "a negative extent": encoded(tensors=[["w", [-4], "float32"]]),
    "twice the same": encoded(tensors=[["w", [4], "float32"]] * 2),
    "an unknown dtype": encoded(tensors=[["w", [4], "complex64"]]),
    "an unknown role": encoded(tensors=[["w", [4], "float32", 0, "root"]]),
    "two billion tensors": b"\x81\xa7tensors\xdd\x7f\xff\xff\xff",
    "a name that is no text": msgspec.msgpack.encode(LAYOUT).replace(b"conv", b"\xff\xff\xff\xff"),
    "another fingerprint": msgspec.msgpack.encode(Layout((Tensor("w", (4,), "float32"),))),
}


@pytest.mark.parametrize("what", LAYOUTS)
def test_a_layout_that_cannot_be_names_who_brought_it(what):
    server = Driven("A")
    server.greet(1, hello("A/0"))
    body = torch.tensor(list(LAYOUTS[what]), dtype=torch.uint8)
    server.say(1, Attach("f", SETTINGS, body.numel()), body if body.numel() else None)
    assert isinstance(server.error, ProtocolError)
    assert "A/0 broke the protocol" in str(server.error)


def test_a_layout_of_gigabytes_is_refused_before_memory_is_taken():
    server = Driven("A")
    server.greet(1, hello("A/0"))
    with pytest.raises(ProtocolError, match="a layout of 1073741824 bytes"):
        server.node.admit(1, Attach("f", {}, 1 << 30))


def test_who_attaches_again_and_again_is_welcomed_once():
    server = Driven("A")
    server.reach(9, "global/0")
    attach("A/0", server, 1)
    for _ in range(3):
        bring_model(server, 1)
    server.say(9, Attached())
    assert sum(isinstance(message, Attached) for message in server.written(1)) == 1


def test_absurd_settings_are_told_in_a_header_that_fits():
    server = local_server()
    server(Closed(2, "", "connection reset"))
    server.greet(3, hello("A/1", incarnation=2))
    settings = {f"{n:x}": "x" * 3 for n in range(8000)}
    server.say(3, Attach(LAYOUT.fingerprint, settings, 8))
    assert len(encode_head(server.refusal(3))) <= HEAD_LIMIT_BYTES
    assert "A/1 has another model or optimizer than the others" in str(server.error)


def test_who_stood_still_itself_is_not_misled_by_what_lay_in_its_sockets():
    server = local_server()
    server.tick(2.0)
    server.now += 40.0
    server(Fired("tick"))
    server.say(1, Beat(0, 0, 0.0), None, 0)  # sent before the others gave it up
    server.say(2, Beat(0, 0, 0.0), None, 0)
    server.tick(20.0)
    assert isinstance(server.error, NodeLost)
    assert server.error.node == "A"
    assert "it did not run for" in str(server.error)
