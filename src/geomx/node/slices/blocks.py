"""Both ends of an edge whose channel may lose blocks: what is sent in blocks, what came, and what goes back.

The sender cuts a payload into blocks and keeps them. The server adds those that have come, and says which in the
`Update` that answers the push (`receipt`). What was not added goes back into the sender's codec (`settle`), in the
order of the slice's jobs: before its next encoding. So nothing is lost for good, and nothing counts twice.

Only gradients of weights go in blocks, where the codec takes back what is lost, and where there are several: all else
must arrive.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import torch

from geomx.channels.contract import BlockClasses
from geomx.codecs.contract import Block, Codec
from geomx.codecs.returning import takes_back
from geomx.errors import ProtocolError
from geomx.layout import Slice
from geomx.node.counts import BlockCounts
from geomx.wire.flow.inbox import Blocks
from geomx.wire.flow.outbox import FlowTerms
from geomx.wire.flow.packets import MOST_BLOCKS, PIECE_HEAD_BYTES
from geomx.wire.flow.parity import EXTRA_BYTES
from geomx.wire.flow.path import SIZES
from geomx.wire.messages import Push, Update
from geomx.wire.presence import pack, unpack

BLOCK_BYTES = SIZES[1] - PIECE_HEAD_BYTES - EXTRA_BYTES  # fits one datagram over IPv6, and through PPPoE
HEAD_BYTES = 64  # more than any codec's blocks have each, beyond their share of the whole
NOTHING = b""  # a receipt: the push was not added at all

# A block and its class.
Levelled = tuple[Block, int]
Key = tuple[int, str, int]  # slice, cohort, turn


class Encoded(NamedTuple):
    """A payload, whole and, where the channel may lose some, in blocks of which each has a class."""

    payload: torch.Tensor
    blocks: tuple[Levelled, ...] = ()


class Answered(NamedTuple):
    """How many blocks a push was sent in (0: it was sent whole), and those that were not added."""

    blocks: int
    lost: list[Block]


def flows_to(peers: Iterable[str], classes: BlockClasses | None) -> dict[str, FlowTerms]:
    """The flows beside a node's connections to those at the other end of its edges."""
    return {} if classes is None else dict.fromkeys(peers, terms_of(classes))


def terms_of(classes: BlockClasses) -> FlowTerms:
    """What both ends of an edge keep to."""
    return FlowTerms(classes.tries, classes.grace, classes.parity_share)


class BlockSender:
    """The sending end, of all slices of one node's uplink. `counts`: the node's."""

    def __init__(self, codec: Codec, classes: BlockClasses | None, counts: BlockCounts) -> None:
        self._codec = codec
        self._classes = classes if classes is not None and classes.loses else None  # None: nothing is lost
        self._counts = counts
        self._sent: dict[Key, tuple[Levelled, ...]] = {}

    def cut(self, slice_: Slice, push: Push, codec: Codec, payload: torch.Tensor) -> Encoded:
        """Cut a payload into blocks, if it may go in blocks; called within a job."""
        classes = self._classes
        if classes is None or codec is not self._codec or not takes_back(codec, slice_):
            return Encoded(payload)
        blocks = codec.cut(slice_, payload, BLOCK_BYTES)
        if not 1 < len(blocks) <= MOST_BLOCKS:
            return Encoded(payload)
        levels = classes.levels(slice_, push.turn, blocks, lambda: codec.decode(slice_, payload), push.loss)
        return Encoded(payload, tuple(zip(blocks, levels, strict=True)))

    def sent(self, push: Push, blocks: tuple[Levelled, ...]) -> None:
        """Remember what goes up in blocks."""
        if blocks:
            self._sent[push.slice, push.cohort, push.turn] = blocks
            self._counts.give(level for _, level in blocks)

    def answered(self, update: Update) -> Answered:
        """What an update says of the blocks of this node's push. Raises `ProtocolError`."""
        blocks = self._sent.pop((update.slice, update.cohort, update.turn), ())
        if not blocks:
            return Answered(0, [])
        if update.receipt is None:
            lost: list[Levelled] = []
        elif update.receipt == NOTHING:
            lost = list(blocks)
        else:
            came = unpack(update.receipt, len(blocks))
            lost = [block for block, has_come in zip(blocks, came, strict=True) if not has_come]
        self._counts.answer((level for _, level in blocks), (level for _, level in lost))
        return Answered(len(blocks), [block for block, _ in lost])


class Receipts:
    """The receiving end, of all slices of one server. `loses`: whether the channel of its children's edges may."""

    def __init__(self, loses: bool) -> None:
        self._loses = loses
        self._counted: dict[Key, dict[str, bytes | None]] = {}  # by child

    def check(self, push: Push, slice_: Slice) -> None:
        """Whether a push may announce blocks; raises `ProtocolError`."""
        beside = push.beside
        if beside is None or beside.is_whole:
            return
        fits = 0 < beside.blocks <= min(slice_.elements, MOST_BLOCKS)
        fits = fits and 0 <= beside.size <= push.size + HEAD_BYTES * beside.blocks
        if not self._loses or push.kind != "gradient" or slice_.role != "weight" or not fits:
            raise ProtocolError(
                f"{beside.blocks} blocks of {beside.size} bytes are announced beside a push of {push.kind} for slice "
                f"{slice_.index}"
            )

    def counted(self, child: str, push: Push, payload: Any) -> None:
        """A child's push takes part in its round."""
        if self._loses and push.kind == "gradient":
            came = pack(payload.came) if isinstance(payload, Blocks) else None
            counted = self._counted.setdefault((push.slice, push.cohort, push.turn), {})
            # Whoever was started again pushes in a turn in which it has counted already: nothing goes back of that.
            counted[child] = None if child in counted else came

    def answered(self, update: Update) -> dict[str, bytes | None] | None:
        """What each child is told that took part; those who did not are told `NOTHING`. None: nobody is told."""
        if not self._loses or update.kind != "gradient":
            return None
        return self._counted.pop((update.slice, update.cohort, update.turn), {})


def receipted(update: Update, receipts: dict[str, bytes | None] | None, child: str) -> Update:
    """An update as a child gets it."""
    receipt = None if receipts is None else receipts.get(child, NOTHING)
    return update if receipt is None else msgspec.structs.replace(update, receipt=receipt)


def decode_payload(codec: Codec, slice_: Slice, payload: Any) -> torch.Tensor:
    """The values of a payload, whole or in blocks: zero where none came. Raises `ProtocolError`."""
    if not isinstance(payload, Blocks):
        return codec.decode(slice_, payload)
    return codec.decode_blocks(
        slice_, [Block(start, stop, _tensor(data)) for start, stop, data in payload.blocks]
    )


def _tensor(data: bytes | memoryview) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
