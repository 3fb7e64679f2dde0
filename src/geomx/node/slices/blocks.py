"""Both ends of an edge whose channel may lose blocks: what is sent in blocks, what came, and what goes back.

The sender cuts a payload into blocks and keeps them. The server adds those that have come, and says which in the
`Update` that answers the push (`receipt`). What was not added goes back into the sender's codec (`settle`), in the
order of the slice's jobs. So nothing is lost for good, and nothing counts twice.

A policy may close a round before everybody is in it (`Wait.until`). Whoever is late learns that from the `Update`, and
takes the whole contribution back: after it was pushed, or, if the update comes before the payload is encoded, in place
of pushing it. The server drops what comes for a round that it has closed or answered.

Only gradients of weights go in blocks, where the codec takes back what is lost, and where there are several: all else
must arrive. What goes whole for want of several blocks is taken back as well where its sender was late.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

import msgspec
import torch

from geomx.channels.contract import BlockClasses
from geomx.codecs.contract import Block, Codec
from geomx.codecs.returning import goes_whole, takes_back
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

Key = tuple[int, str, int]  # slice, cohort, turn


class Encoded(NamedTuple):
    """A payload as it leaves a codec.

    Attributes:
        payload: All of it.
        blocks: The same in blocks, where the codec can take them back; else none.
        levels: The class of each block; none: the payload goes whole.
    """

    payload: torch.Tensor
    blocks: tuple[Block, ...] = ()
    levels: tuple[int, ...] = ()

    @property
    def levelled(self) -> tuple[tuple[Block, int], ...]:
        """The blocks that are sent, each with its class."""
        return tuple(zip(self.blocks, self.levels, strict=True)) if self.levels else ()


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
        self._sent: dict[Key, Encoded] = {}
        # By slice and cohort: the last turn that was answered, and the last of which something was added.
        self._closed: dict[tuple[int, str], int] = {}
        self._added: dict[tuple[int, str], int] = {}

    def cut(self, slice_: Slice, push: Push, codec: Codec, payload: torch.Tensor) -> Encoded:
        """Cut a payload into blocks, if it may go in blocks; called within a job."""
        classes = self._classes
        if classes is None or codec is not self._codec or not takes_back(codec, slice_):
            return Encoded(payload)
        if goes_whole(codec, slice_):
            return Encoded(payload, (Block(0, slice_.elements, payload),))
        blocks = tuple(codec.cut(slice_, payload, BLOCK_BYTES))
        if not 1 < len(blocks) <= MOST_BLOCKS:
            return Encoded(payload, blocks)
        levels = classes.levels(
            slice_, push.turn, blocks, lambda: codec.decode(slice_, payload), push.relative_loss
        )
        return Encoded(payload, blocks, tuple(levels))

    def late(self, push: Push, encoded: Encoded) -> list[Block] | None:
        """What the codec takes back in place of pushing it; None: push it, since its round may be open.

        Nothing goes back of a turn in which this node was counted before it was started again.
        """
        key = push.slice, push.cohort
        if not encoded.blocks or push.turn > self._closed.get(key, -1):
            return None
        return list(encoded.blocks) if push.turn > self._added.get(key, -1) else []

    def sent(self, push: Push, encoded: Encoded) -> None:
        """Remember what goes up and could come back."""
        if encoded.blocks:
            self._sent[push.slice, push.cohort, push.turn] = encoded
            self._counts.give(encoded.levels)

    def begin_anew(self) -> None:
        """Nobody will tell any more what became of what was sent: what is sent again goes whole."""
        self._sent.clear()

    def answered(self, update: Update) -> Answered:
        """What an update says of this node's push, if that has left. Raises `ProtocolError`."""
        if self._classes is not None:
            key = update.slice, update.cohort
            self._closed[key] = max(update.turn, self._closed.get(key, -1))
            if update.receipt != NOTHING:
                self._added[key] = max(update.turn, self._added.get(key, -1))
        sent = self._sent.pop((update.slice, update.cohort, update.turn), None)
        if sent is None:
            return Answered(0, [])
        count = len(sent.blocks)
        if update.receipt is None:
            came = [True] * count
        elif update.receipt == NOTHING:
            came = [False] * count
        else:
            came = unpack(update.receipt, count)
        lost = [place for place, has_come in enumerate(came) if not has_come]
        if sent.levels:
            self._counts.answer(sent.levels, (sent.levels[place] for place in lost))
        return Answered(len(sent.levels), [sent.blocks[place] for place in lost])


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
