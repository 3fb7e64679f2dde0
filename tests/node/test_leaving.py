"""Nodes that are asked to leave while others go on: what they give up, what becomes of it, and who hears of it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from driven import LAYOUT, Driven, attach, bring_model, hello, local_server, push, refused_by, worker
from standings import stand
from trees import topology_of

from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.errors import NodeLost, ProtocolError
from geomx.node.contract import Called, Closed, Write
from geomx.node.port import Asked, Away, Contribution, Departs, Left
from geomx.node.slices.joined import grouped
from geomx.node.topology import AS_ABOVE, Edge
from geomx.rounds.losses import Losses
from geomx.wire.messages import UNREAD, Ack, Attached, Beat, Gone, Leave, Push, Reading, Update
from geomx.wire.roster_messages import Departed, Message, Over, Retire, Roster

LARGE = LAYOUT.slices[2]
GO_ON = Losses("continue", 60.0)
TOPOLOGY = topology_of([2, 1], losses=GO_ON, lan=Edge("int4", AS_ABOVE), wan=Edge("int4"))
TREE = TOPOLOGY.tree
ONE_EACH = topology_of([1, 1], losses=GO_ON, wan=Edge("int4"))


def departed(*names: str) -> Departed:
    return Departed(grouped({name: {"": 0} for name in names}, TREE))


def sent(node: Driven, kind: type[Message]) -> list[tuple[Any, Any]]:
    return [
        (e.message, e.payload) for e in node.effects if isinstance(e, Write) and isinstance(e.message, kind)
    ]


def values(seed: int) -> torch.Tensor:
    return torch.randn(LARGE.elements, generator=torch.Generator().manual_seed(seed))


def contribution(
    turn: int, given: torch.Tensor | None, weight: float = 1.0, drains: bool = False
) -> Contribution:
    present = None if given is not None else b"\0"
    return Contribution.of(turn, LARGE.index, "gradient", "step()", weight, given, present, drains=drains)


def worker_with_a_residual() -> tuple[Driven, torch.Tensor]:
    """A/0 has pushed a step through int4: what that did not carry."""
    node, given = worker(TOPOLOGY), values(1)
    node(Called("contribute", (contribution(1, given.clone()),)))
    ((_, payload),) = sent(node, Push)
    node.say(1, Update(1, LARGE.index, "gradient", 1.0, None, UNREAD))
    return node, given - make_codec("int4", RngKey()).decode(LARGE, payload)


@pytest.mark.parametrize("unshared", [False, True])
def test_a_worker_that_leaves_gives_up_what_its_codec_has_held_back(unshared: bool) -> None:
    node, residual = worker_with_a_residual()
    steps = values(2) if unshared else None
    weight = 3.0 if unshared else 0.0
    node(Called("contribute", (contribution(1, steps, weight, drains=True),)))
    node(Called("leave", ({"": 1}, True)))
    _, (drains, payload) = sent(node, Push)
    assert (drains.drains, drains.weight, drains.present) == (True, weight, None)
    given = payload.view(torch.float32)
    assert torch.equal(given, residual if steps is None else residual + steps)
    assert [message for message, _ in sent(node, Leave)] == [Leave({"": 1}, ("A/0",), True)]
    node.say(1, Ack(3), number=0)  # Attach, and both pushes
    assert not node.stopped
    node.say(1, Ack(4), number=0)  # and Leave
    assert node.stopped
    assert any(isinstance(item, Left) for item in node.notified())
    assert node.error is None


def test_a_worker_leaves_though_nobody_says_that_all_has_come() -> None:
    node, _ = worker_with_a_residual()
    node(Called("contribute", (contribution(1, None, 0.0, drains=True),)))
    node(Called("leave", ({"": 1}, True)))
    for _ in range(int(node.node.limits.stop_s)):
        assert not node.stopped
        node.say(1, Update(1, LARGE.index, "gradient", 1.0, None, UNREAD))  # the server is there
        node.tick(1.0)
    assert node.stopped
    assert node.error is None


def test_a_worker_hears_that_it_is_to_leave_and_who_has_left() -> None:
    node, _ = worker_with_a_residual()
    node.say(1, Retire())
    node.say(1, departed("B/0"))
    roster = Roster(1, TREE.bitmap_of(["A/1"]))
    node.say(1, roster)
    heard = [item for item in node.notified() if isinstance(item, Asked | Away | Departs)]
    assert heard == [Asked(), Departs(TREE.bitmap_of(["B/0"]), 0), Away(roster)]


def drained(child: str, weight: float = 0.0, index: int = LARGE.index, **more: Any) -> Push:
    size = LAYOUT.slices[index].size_bytes
    return push(child, 1, index, weight=weight, drains=True, **{"size": size, "hyper": b""} | more)


def step(server: Driven, turn: int) -> torch.Tensor:
    """A/1 pushes one; returns what its server makes of it."""
    codec = make_codec("int4", RngKey())
    given = codec.encode(LARGE, turn, values(4))
    server.say(2, push("A/1", turn, LARGE.index, size=given.nbytes), given)
    return codec.decode(LARGE, given)


@pytest.mark.parametrize("weight", [0.0, 2.0])
def test_what_a_worker_gave_up_counts_in_the_next_round_without_it(weight: float) -> None:
    server, residual = local_server(TOPOLOGY), values(3)
    server.say(1, drained("A/0", weight), residual.view(torch.uint8))
    server.say(1, Leave({"": 0}, ("A/0",), True))
    assert sent(server, Push) == []
    given = step(server, 1)
    ((merged, payload),) = sent(server, Push)
    assert (merged.origins, merged.weight, merged.drains) == ({"A/1": 1}, 1.0 + weight, False)
    above = make_codec("int4", RngKey(0, "A"))
    assert torch.equal(payload, above.encode(LARGE, 1, given + residual, merged.weight))


def test_a_round_without_a_weight_leaves_it_to_the_next() -> None:
    server, residual = local_server(TOPOLOGY), values(3)
    server.say(1, drained("A/0"), residual.view(torch.uint8))
    server.say(1, Leave({"": 0}, ("A/0",), True))
    nothing = {"weight": 0.0, "present": b"\0", "size": 0}
    server.say(2, push("A/1", 1, LARGE.index, **nothing))
    ((merged, payload),) = sent(server, Push)
    assert (merged.weight, payload) == (0.0, None)
    server.say(9, Update(1, LARGE.index, "gradient", 0.0, None, UNREAD))
    step(server, 2)
    assert sent(server, Push)[-1][1] is not None


@pytest.mark.parametrize(
    "more",
    [
        {"kind": "mean"},
        {"index": 3},  # the ledger
        {"origins": {"A/1": 1}},
        {"size": 12},
        {"present": b"\0", "size": 0},
        {"step": 1 << 60},
        {"reading": Reading(1)},
        {"hyper": b"x"},
        {"together": b"\4"},
    ],
)
def test_what_nobody_gives_up_is_refused(more: dict[str, Any]) -> None:
    server = local_server(TOPOLOGY)
    assert isinstance(refused_by(server, 1, drained("A/0", **more)), ProtocolError)


def test_nothing_is_given_up_twice() -> None:
    server, payload = local_server(TOPOLOGY), values(3).view(torch.uint8)
    server.say(1, drained("A/0"), payload)
    assert isinstance(refused_by(server, 1, drained("A/0"), payload), ProtocolError)


def test_a_worker_that_was_lost_as_it_left_may_leave_once_more_in_another_process() -> None:
    server, payload = local_server(TOPOLOGY), values(3).view(torch.uint8)
    server.say(1, drained("A/0"), payload)
    server(Closed(1, "", "connection reset"))
    attach_anew(server, 3, "A/0")
    server.say(3, drained("A/0"), payload)
    server.say(3, Leave({"": 0}, ("A/0",), True))
    step(server, 1)
    ((merged, _),) = sent(server, Push)
    assert merged.origins == {"A/1": 1}


@pytest.mark.parametrize(
    "turns", [{"B": 1}, {"nobody": 1}, {"A/1": 1}, {"": 1 << 62}, {"": -2}, {f"c{i}": 1 for i in range(9000)}]
)
def test_leave_is_taken_of_ones_own_cohorts_alone(turns: dict[str, int]) -> None:
    assert isinstance(refused_by(local_server(TOPOLOGY), 1, Leave(turns, ("A/0",), True)), ProtocolError)


def test_all_others_hear_who_has_left_and_whoever_comes_later() -> None:
    server = local_server(TOPOLOGY)
    server.say(9, departed("B/0"))
    for _ in range(3):  # said again, it is not passed on
        server.say(1, Leave({"": 0}, ("A/0",), True))
    assert len([each for each in server.written(9) if isinstance(each, Leave)]) == 1
    told = [m for m in server.written(2) if isinstance(m, Departed)]
    assert told == [departed("B/0"), departed("A/0")]
    server.say(9, departed("A/0", "B/0"))  # of which it knows
    server(Closed(2, "", "connection reset"))
    attach_anew(server, 3, "A/1")
    assert [m for m in server.written(3) if isinstance(m, Departed)] == [departed("B/0", "A/0")]
    assert [m for m in server.written(1) if isinstance(m, Departed)] == [departed("B/0")]


def attach_anew(server: Driven, conn: int, node: str) -> None:
    server.greet(conn, hello(node, incarnation=2))
    bring_model(server, conn)


def one_worker_leaves(early: bool) -> Driven:
    """A, whose only worker has left: what that gave up lies there."""
    server = local_server(ONE_EACH)
    server.say(1, drained("A/0", 2.0), values(3).view(torch.uint8))
    server.say(1, Leave({"": 0}, ("A/0",), early))
    server.say(1, Gone(), number=0)
    server(Closed(1, "", "closed by the peer"))
    return server


def test_a_server_that_nobody_needs_any_more_hands_on_what_lies_there_before_it_ends() -> None:
    server = one_worker_leaves(early=True)
    ((drains, payload),) = sent(server, Push)
    assert (drains.drains, drains.weight, drains.origins) == (True, 2.0, {"A/0": 0})
    assert torch.equal(payload.view(torch.float32), values(3))
    assert not server.stopped
    server.say(9, Ack(3), number=0)  # Attach, Leave, and this
    assert server.stopped
    assert server.error is None
    assert isinstance(server.written(9)[-1], Gone)


def test_at_the_end_of_the_run_nobody_needs_it() -> None:
    server = one_worker_leaves(early=False)
    assert sent(server, Push) == []
    server.say(9, Ack(2), number=0)
    assert server.stopped


def test_a_server_stays_for_workers_that_may_come_back_to_a_run_that_goes_on() -> None:
    server = local_server(TOPOLOGY)
    server.say(9, Roster(1, TREE.bitmap_of(["A/1"]), b"", stand({"": 0})))
    server.say(1, Leave({"": 0}, ("A/0",), True))
    server.say(1, Gone(), number=0)
    server(Closed(1, "", "closed by the peer"))
    server.say(9, Ack(2), number=0)  # Attach, and Leave
    before = len(server.written(9))
    for _ in range(60):
        server.say(9, departed("A/0"))
        server.tick(1.0)
    assert not server.stopped
    beats = [m for m in server.written(9)[before:] if isinstance(m, Beat)]
    assert len(beats) > 20  # else those above would lose it


def test_a_server_that_waits_in_the_end_for_whoever_is_away_is_not_silent() -> None:
    """Those above would take it for lost, and have it begin anew."""
    server = local_server(TOPOLOGY)
    server.say(9, Roster(1, TREE.bitmap_of(["A/1"]), b"", stand({"": 0})))
    server(Closed(2, "", "connection reset"))
    server.say(1, Leave({"": 0}, ("A/0",)))
    server(Closed(1, "", "closed by the peer"))
    server.say(9, Ack(2), number=0)
    server.say(9, Over())
    before = len(server.written(9))
    server.tick(6.0)
    assert not server.stopped
    assert len([m for m in server.written(9)[before:] if isinstance(m, Beat)]) > 2


@pytest.mark.parametrize("asked", ["here", "from above"])
def test_a_server_that_is_to_leave_asks_all_below_it_and_whoever_comes(asked: str) -> None:
    server = Driven("A", TOPOLOGY)
    server.reach(9, "global/0")
    attach("A/0", server, 1)
    for _ in range(2):
        server(Called("retire")) if asked == "here" else server.say(9, Retire())
    attach("A/1", server, 2)
    for conn in (1, 2):
        assert [m for m in server.written(conn) if isinstance(m, Retire)] == [Retire()]


def test_whoever_does_not_leave_in_time_is_lost_with_its_server() -> None:
    server = local_server(TOPOLOGY)
    server(Called("retire"))
    server.say(1, Leave({"": 0}, ("A/0",), True))
    for second in range(int(server.node.limits.stop_s)):
        assert not server.stopped
        server.say(9, departed("A/0"))
        server.say(2, push("A/1", second + 1, size=0, weight=0.0, present=b"\0"))
        server.tick(1.0)
    assert server.stopped
    assert isinstance(server.error, NodeLost)
    assert server.error.node == "A/1"
    assert not any(isinstance(message, Gone) for message in server.written(9))


def test_the_first_shard_tells_every_party() -> None:
    shard = Driven("global/0", TOPOLOGY)
    for conn, node in ((1, "A"), (2, "B")):
        attach(node, shard, conn)
    shard.say(1, Leave({"": 0}, ("A/0",), True))
    for conn in (1, 2):
        assert [m for m in shard.written(conn) if isinstance(m, Departed)] == [departed("A/0")]
    assert [(f["peer"], f["early"]) for f in shard.noted("left")] == [("A/0", True)]


def test_whoever_has_left_is_not_let_in_again() -> None:
    server = local_server(TOPOLOGY)
    server.say(1, Leave({"": 0}, ("A/0",), True))
    server(Closed(1, "", "closed by the peer"))
    server.greet(3, hello("A/0", incarnation=2))
    assert server.refusal(3).code == "identity"
    assert "has left" in server.refusal(3).reason


def test_a_server_that_was_started_again_sends_whoever_has_left_away() -> None:
    server = Driven("A", TOPOLOGY)
    server.reach(9, "global/0")
    attach("A/0", server, 1)
    server.say(9, Attached(left=grouped({"A/0": {"": 0}}, TREE)))
    assert [each for each in server.written(1) if isinstance(each, Attached | Over)] == [Over(has_left=True)]
    node, _ = worker_with_a_residual()
    node.say(1, Over(has_left=True))
    assert "A/0 has left this run, which continues without it" in str(node.error)


def test_a_worker_that_was_about_to_leave_has_then_left() -> None:
    node, _ = worker_with_a_residual()
    node(Called("leave", ({"": 1}, True)))
    node.say(1, Over(has_left=True))
    assert node.stopped
    assert node.error is None
    assert Left() in node.notified()


def test_a_worker_does_not_outlast_a_server_that_leaves() -> None:
    node, _ = worker_with_a_residual()
    node.say(1, Retire())
    node.tick(9.0)
    assert not node.stopped
    node.tick(2.0)
    assert "has not within 10 s (limits.stop_s)" in str(node.error)
