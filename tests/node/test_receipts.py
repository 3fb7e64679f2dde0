"""What a server tells its children of the blocks that it has added."""

from __future__ import annotations

from typing import Any

import msgspec

from geomx.node.slices.blocks import NOTHING, Receipts, receipted
from geomx.wire.flow.inbox import Blocks
from geomx.wire.messages import Push, Update
from geomx.wire.presence import unpack

PUSH = Push(4, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", False)
UPDATE = Update(4, 0, "gradient", 1.0, None, False)


def told(receipts: Receipts, child: str) -> bytes | None:
    return receipted(UPDATE, receipts.answered(UPDATE), child).receipt


def blocks(*came: bool) -> Any:
    return Blocks(came, ())


def test_each_child_is_told_which_of_its_blocks_were_added() -> None:
    receipts = Receipts(loses=True)
    receipts.counted("A", PUSH, blocks(True, False, True))
    receipts.counted("B", PUSH, blocks(True, True))
    receipts.counted("C", PUSH, b"whole")
    answers = receipts.answered(UPDATE)
    assert unpack(receipted(UPDATE, answers, "A").receipt, 3) == [True, False, True]
    assert receipted(UPDATE, answers, "B").receipt is None
    assert receipted(UPDATE, answers, "C").receipt is None
    assert receipted(UPDATE, answers, "D").receipt == NOTHING
    assert told(receipts, "A") == NOTHING, "it is told once"


def test_rounds_are_told_apart() -> None:
    receipts = Receipts(loses=True)
    receipts.counted("A", PUSH, blocks(True, False))
    receipts.counted("A", msgspec.structs.replace(PUSH, turn=5), blocks(False, True))
    answer = told(receipts, "A")
    assert unpack(answer, 2) == [True, False]


def test_whoever_was_counted_already_takes_nothing_back() -> None:
    """A worker that was started again pushes once more in the same turn, and that is dropped (`Rounds.add`)."""
    receipts = Receipts(loses=True)
    receipts.counted("A", PUSH, blocks(True, True))
    receipts.counted("A", msgspec.structs.replace(PUSH, origins={"A/0": 2}), blocks(False, True, False))
    assert told(receipts, "A") is None


def test_where_nothing_can_be_lost_nothing_is_told() -> None:
    receipts = Receipts(loses=False)
    receipts.counted("A", PUSH, b"whole")
    assert receipts.answered(UPDATE) is None
    assert receipted(UPDATE, None, "A") is UPDATE
