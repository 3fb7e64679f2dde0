"""Before the first step: what a node tells of how far the first weights are, and when its first step begins."""

from __future__ import annotations

import pytest
import torch
from driven import LAYOUT, Driven, local_server, push, worker

from geomx.node.contract import Called, FirstStep, Note, Write
from geomx.node.port import Contribution
from geomx.observe.sentences import sentence
from geomx.wire.messages import Push, Reading, Update

NODES = {"A/0": (worker, 1), "A": (local_server, 9)}
SIZES = [slice_.size_bytes for slice_ in LAYOUT.slices]


def made(name: str) -> tuple[Driven, int]:
    """A worker or a local server with the model, and its connection to who is above it."""
    make, above = NODES[name]
    return make(), above


def come(node: Driven, above: int, index: int, now: float) -> None:
    node.now = now
    slice_ = LAYOUT.slices[index]
    node.say(above, Update(0, index, "assign", 1.0, None, Reading(), size=slice_.size_bytes))


def levels(node: Driven) -> list[str]:
    return [each.level for each in node.effects if isinstance(each, Note) and each.name == "first_weights"]


@pytest.mark.parametrize("name", NODES)
def test_progress_is_told_by_whole_slices(name: str) -> None:
    """And the log does not count the wait for nodes that start late."""
    node, above = made(name)
    arrived = 0
    for index, size in enumerate(SIZES):
        come(node, above, index, now=60.0 + index)
        arrived += size
        told = node.noted("first_weights")[-1]
        assert told["arrived_mb"] == pytest.approx(arrived * 1e-6)
        assert told["share"] == pytest.approx(arrived / sum(SIZES))
    come(node, above, 0, now=69.0)
    assert len(node.noted("first_weights")) == 1 + len(SIZES)
    assert set(levels(node)) == {"debug"}


@pytest.mark.parametrize("name", NODES)
def test_the_log_tells_of_first_weights_that_take_long(name: str) -> None:
    node, above = made(name)
    for index, now in enumerate((0.1, 5.5, 5.6, 5.7)):
        come(node, above, index, now)
    assert levels(node) == ["debug", "warning", "warning"]  # one came too soon behind another
    assert sentence("first_weights", {"share": 0.4, "arrived_mb": 2.08, "of_mb": 1234.5}) == (
        "first weights: 40%, 2.1 of 1,234.5 MB"
    )
    assert node.noted("first_weights")[-1]["share"] == 1.0


def steps_in(node: Driven) -> list[int]:
    """The steps of the pushes that have gone up, and -2 where the first step is said to begin."""
    gone = [
        e
        for e in node.effects
        if isinstance(e, FirstStep) or (isinstance(e, Write) and isinstance(e.message, Push))
    ]
    return [e.message.step if isinstance(e, Write) else -2 for e in gone]


def test_a_worker_s_first_step_begins_with_what_it_pushes_for_it() -> None:
    node = worker()
    values = torch.zeros(LAYOUT.slices[0].elements)
    for turn, step in enumerate((-1, 0, 1)):
        kind = "gradient" if step >= 0 else "assign"
        node(Called("contribute", (Contribution.of(turn, 0, kind, "", 1.0, values, None, None, step=step),)))
    assert steps_in(node) == [-1, -2, 0, 1]


def test_a_local_server_s_first_step_begins_when_it_has_gathered_one() -> None:
    node = local_server()
    for turn, (kind, step) in enumerate((("assign", -1), ("gradient", 0))):
        for conn, worker_ in enumerate(("A/0", "A/1"), 1):
            assert steps_in(node) == [-1] * turn
            node.say(conn, push(worker_, turn, kind=kind, operation=kind, step=step))
    assert steps_in(node) == [-1, -2, 0]
