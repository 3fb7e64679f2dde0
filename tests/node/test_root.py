"""The rules of the root: what it refuses, what it waits for, and what it answers."""

from __future__ import annotations

from typing import Any

import torch
from driven import LAYOUT, Driven, attach, global_server, local_server, push, refused_by

from geomx.errors import Unsupported
from geomx.wire.messages import Fetch, Hyper, Leave, Update

LEDGER = next(slice_.index for slice_ in LAYOUT.slices if slice_.role == "ledger")


def step(server: Driven, turn: int = 1, index: int = 0, **more: Any) -> None:
    server.say(1, push("A/0", turn=turn, index=index, origins={"A/0": 1, "A/1": 1}, **more))
    if not server.stopped:
        server.say(2, push("B/0", turn=turn, index=index, **more))


def answers(server: Driven, turn: int = 1) -> list[Update]:
    return [m for m in server.written(2) if isinstance(m, Update) and m.turn == turn]


def test_a_gradient_without_hyper_parameters_is_refused():
    server = global_server()
    step(server, hyper=b"")
    assert "slice 0 was pushed without hyper-parameters" in str(server.error)


def test_a_gradient_waits_for_its_hyper_parameters():
    """Lanes and lossy channels may bring them later; nothing is lost, and nothing counted twice."""
    server = global_server()
    step(server, hyper=b"new")
    assert answers(server) == []
    server.say(2, Hyper(b"new", {"lr": 0.5}))
    assert [update.slice for update in answers(server)] == [0]
    server.say(1, Hyper(b"new", {"lr": 0.5}))
    assert len(answers(server)) == 1


def test_hyper_parameters_in_use_outlast_thousands_of_others(monkeypatch):
    """A group whose learning rate stays, beside one whose changes with every step."""
    monkeypatch.setattr("geomx.node.root.HYPERS_KEPT", 10)
    server = global_server()
    for number in range(50):
        if number % 5 == 0:
            server.say(1, Hyper(b"sgd", {"lr": 0.5}))
        server.say(1, Hyper(number.to_bytes(2, "big"), {"lr": 1 / (number + 1)}))
        assert len(server.node.sink._hypers) <= 10
    step(server)
    assert len(answers(server)) == 1


def test_hyper_parameters_that_the_rule_does_not_have_end_the_run():
    server = global_server()
    server.say(1, Hyper(b"odd", {"lr": 0.5, "warp": 9}))
    step(server, hyper=b"odd")
    assert "SGD has no hyper-parameter 'warp'" in str(server.error)


def test_a_gradient_for_weights_that_nobody_gave_is_refused():
    server = Driven("global/0")
    for conn, node in enumerate(("A", "B"), 1):
        attach(node, server, conn)
        server.say(conn, Hyper(b"sgd", {"lr": 0.5}))
    step(server)
    assert "slice 0 has no weights yet" in str(server.error)


def test_the_optimizer_state_of_a_slice_without_any_is_refused():
    server = Driven("global/0")
    attach("A", server, 1)
    assert "A broke the protocol: slice 0 has no optimizer state" in str(refused_by(server, 1, Fetch(0, 0)))


def test_where_the_workers_own_the_optimizer_its_state_is_refused():
    server = global_server({"optimizer": "workers", "clip_norm": None})
    error = refused_by(server, 1, Fetch(0, 0))
    assert isinstance(error, Unsupported)
    assert "the workers own the optimizer" in str(error)


def test_integers_have_no_mean():
    server = global_server()
    step(server, index=LEDGER, kind="mean", operation="save()")
    assert f"slice {LEDGER} is int64: it has no mean" in str(server.error)


def test_nobody_contributing_changes_nothing_and_is_answered():
    server = global_server()
    step(server, present=b"\x00", size=0)
    (update,) = answers(server)
    assert (update.weight, update.size) == (2.0, 0)
    step(server, turn=2, weight=0.0)
    (update,) = answers(server, 2)
    assert (update.weight, update.size) == (0.0, 0)


def test_an_assign_to_which_nobody_gives_a_value_changes_nothing_and_is_answered():
    server = global_server()
    before = server.node.sink._weights[0].clone()
    step(server, kind="assign", operation="load()", hyper=b"", present=b"\x00", size=0)
    (update,) = answers(server)
    assert (update.kind, update.size) == ("assign", 0)
    assert torch.equal(server.node.sink._weights[0], before)


def test_who_leaves_without_a_turn_is_noted():
    server = local_server()
    server.say(1, Leave({}, ("A/0",)))
    assert server.noted("left") == [{"peer": "A/0", "turn": -1}]


def test_hyper_parameters_go_up_once_and_again_when_they_were_long_ago(monkeypatch):
    monkeypatch.setattr("geomx.node.uplink.HYPERS_KEPT", 3)
    server = local_server()
    for digest in (b"a", b"b", b"a", b"c", b"d", b"a", b"d"):
        server.say(1, Hyper(digest, {"lr": 0.5}))
    assert [m.digest for m in server.written(9) if isinstance(m, Hyper)] == [b"a", b"b", b"c", b"d", b"a"]
