"""What a server tells its children of the blocks that it has added, and what comes back to them."""

from __future__ import annotations

from typing import Any

import msgspec
import torch

from geomx.channels.block_classes import Alike
from geomx.codecs.contract import Codec
from geomx.codecs.dense import Dense
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.returning import Returning, for_lossy_channel
from geomx.codecs.spec import make_codec
from geomx.layout import Layout, Tensor
from geomx.node.counts import BlockCounts
from geomx.node.slices.blocks import NOTHING, BlockSender, Encoded, Receipts, receipted
from geomx.wire.flow.inbox import Blocks
from geomx.wire.messages import Push, Reading, Update
from geomx.wire.presence import unpack

PUSH = Push(4, 0, "gradient", "step()", 1.0, {"A/0": 1}, None, b"", Reading())
UPDATE = Update(4, 0, "gradient", 1.0, None, Reading())


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


# -- the sender's end -----------------------------------------------------------------------------------------

SLICE = Layout((Tensor("w", (1000,), "float32"),)).slices[0]
WHOLE = torch.arange(1000.0)


def sender(codec: Codec | None = None) -> tuple[BlockSender, Codec, BlockCounts]:
    codec, counts = codec or Returning(Dense()), BlockCounts()
    return BlockSender(codec, Alike(deadline=1.0), counts), codec, counts


def encoded(blocks: BlockSender, codec: Codec, push: Push = PUSH) -> Encoded:
    return blocks.cut(SLICE, push, codec, codec.encode(SLICE, push.turn, WHOLE))


def test_what_was_not_added_comes_back_however_late_it_was() -> None:
    blocks, codec, counts = sender()
    came = msgspec.structs.replace(UPDATE, receipt=NOTHING)
    made = encoded(blocks, codec)
    assert len(made.blocks) == len(made.levelled) == 3
    assert blocks.late(PUSH, made) is None
    blocks.sent(PUSH, made)  # the update comes behind the push ...
    assert blocks.answered(came) == (3, list(made.blocks))
    assert blocks.answered(came) == (0, []), "it comes back once"
    assert blocks.late(PUSH, made) == list(made.blocks)  # ... or before it is encoded
    assert blocks.late(msgspec.structs.replace(PUSH, turn=3), made) == list(made.blocks)  # or a later one
    assert blocks.late(msgspec.structs.replace(PUSH, turn=5), made) is None
    assert blocks.late(msgspec.structs.replace(PUSH, cohort="A"), made) is None
    assert counts.given == counts.answered == counts.returned == {1: 3}


def test_nothing_comes_back_of_a_turn_in_which_this_node_was_counted_before_it_was_started_again() -> None:
    blocks, codec, _ = sender()
    blocks.answered(UPDATE)
    assert blocks.late(PUSH, encoded(blocks, codec)) == []


def test_what_goes_in_one_piece_comes_back_as_well() -> None:
    codec = for_lossy_channel(make_codec("int8 size_lower_bound=2000", RngKey()))
    blocks, _, counts = sender(codec)
    made = encoded(blocks, codec)
    assert (len(made.blocks), made.levelled) == (1, ())
    blocks.sent(PUSH, made)
    told, lost = blocks.answered(msgspec.structs.replace(UPDATE, receipt=NOTHING))
    codec.settle(SLICE, lost)
    assert told == 0
    assert not counts.given
    again = codec.decode(SLICE, codec.encode(SLICE, 5, torch.zeros(1000)))
    assert torch.equal(again, WHOLE)
    blocks.sent(PUSH, made)
    assert blocks.answered(UPDATE) == (0, [])
