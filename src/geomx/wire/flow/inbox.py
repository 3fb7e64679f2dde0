"""A load that is open: the blocks that have come of it, and what is kept until others are complete, or rebuilt."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from geomx.errors import ProtocolError
from geomx.wire.flow.packets import MOST_IN_GROUP, PIECE_HEAD_BYTES, Parity, Piece
from geomx.wire.flow.parity import EXTRA_BYTES, GroupIn, Place
from geomx.wire.flow.path import SIZES
from geomx.wire.flow_messages import Beside
from geomx.wire.messages import Carried
from geomx.wire.presence import unpack as unpack_bitmap

LEAST_PIECE_BYTES = SIZES[-1] - PIECE_HEAD_BYTES - EXTRA_BYTES  # so much of a block fits any datagram


class BlockIn(NamedTuple):
    """A block that has come: elements [start, stop) of a slice."""

    start: int
    stop: int
    data: bytes | memoryview


class Blocks(NamedTuple):
    """What has come of a load: the payload of a message that has closed.

    `came`: one truth value for each block that was sent, `blocks`: those that have come, in order.
    """

    came: tuple[bool, ...]
    blocks: tuple[BlockIn, ...]

    @property
    def nbytes(self) -> int:
        """Bytes that have come."""
        return sum(len(block.data) for block in self.blocks)


class Delivered(NamedTuple):
    """A load has closed: the message that it belongs to, and its payload: `Blocks`, or the bytes as they stand."""

    number: int
    message: Carried
    payload: Blocks | bytearray


class Inbox:
    """See the module's text. `number`, `message`: of the message whose payload it is; `beside`: what that announces."""

    __slots__ = (
        "blocks",
        "bytes_left",
        "closes_at",
        "groups",
        "load",
        "message",
        "missing",
        "more_pieces",
        "number",
        "parts",
        "reliable",
        "sizes",
    )

    def __init__(self, number: int, message: Carried, beside: Beside) -> None:
        self.number = number
        self.message = message
        self.load = beside.load
        self.groups: dict[int, GroupIn] = {}  # of which parity pieces have come; by block
        self.reliable = unpack_bitmap(beside.reliable, beside.blocks)
        self.blocks: list[BlockIn | None] = [None] * beside.blocks
        self.parts: dict[int, list[Piece | None]] = {}  # of blocks in several pieces that are not whole
        self.sizes: dict[int, list[int]] = {}  # of those pieces, once their block is whole
        self.missing = [beside.blocks, sum(self.reliable)]  # of all, and of those that are reliable
        self.bytes_left = beside.size
        self.more_pieces = beside.size // LEAST_PIECE_BYTES  # than blocks, that there may yet be
        self.closes_at = inf  # behind its tail

    def put(self, piece: Piece) -> bool:
        """Take a piece in; False: it is here already. Raises `ProtocolError`."""
        if piece.block >= len(self.blocks):
            raise ProtocolError(f"block {piece.block} of a load of {len(self.blocks)}")
        if self.reliable[piece.block] != (piece.level == 0):
            announced = "reliable" if self.reliable[piece.block] else "one that may be lost"
            raise ProtocolError(
                f"block {piece.block} was announced as {announced}, and came in class {piece.level}"
            )
        if self.blocks[piece.block] is not None:
            return False
        block = self._joined(piece)
        if block is False:
            return False
        self.bytes_left -= len(piece.data)
        group = self.groups.get(piece.block)
        if group is not None:
            group.missing -= 1
        if block is True:
            return True
        self.blocks[piece.block] = block
        self.missing[0] -= 1
        self.missing[1] -= self.reliable[piece.block]
        return True

    def _joined(self, piece: Piece) -> BlockIn | bool:
        """The block that is complete with this piece; else whether the piece is new."""
        parts = self.parts.get(piece.block)
        if parts is None:
            self._check_size(piece)
            if piece.pieces == 1:
                return BlockIn(piece.start, piece.stop, piece.data)
            parts = self._new_parts(piece)
        known = next((part for part in parts if part is not None), piece)
        if (known.pieces, known.start, known.stop) != (piece.pieces, piece.start, piece.stop):
            raise ProtocolError(f"the pieces of block {piece.block} belong to two blocks")
        if parts[piece.piece] is not None:
            return False
        self._check_size(piece)
        parts[piece.piece] = piece
        if any(part is None for part in parts):
            return True
        del self.parts[piece.block]
        self.sizes[piece.block] = [len(part.data) for part in parts if part is not None]
        return BlockIn(piece.start, piece.stop, b"".join(part.data for part in parts if part is not None))

    def _new_parts(self, piece: Piece) -> list[Piece | None]:
        """Room for the pieces of its block; so that what is kept of all blocks follows from what was announced."""
        if piece.pieces - 1 > self.more_pieces:
            raise ProtocolError("a load comes in more pieces than its bytes need")
        self.more_pieces -= piece.pieces - 1
        parts = self.parts[piece.block] = [None] * piece.pieces
        return parts

    def _check_size(self, piece: Piece) -> None:
        """Before anything is changed, so that what is counted stays right."""
        if len(piece.data) > self.bytes_left:
            raise ProtocolError("a load has more bytes than were announced")

    def parity(self, parity: Parity) -> bool:
        """Keep a parity piece; False: it is here already, or not needed. Raises `ProtocolError`."""
        group = self.groups.get(parity.block) or self._new_group(parity)
        return group.add(parity)

    def _new_group(self, parity: Parity) -> GroupIn:
        span = range(parity.block, parity.block + parity.blocks)
        if span.stop > len(self.blocks):
            raise ProtocolError(f"parity of blocks {span} of a load of {len(self.blocks)}")
        members = [block for block in span if self.reliable[block] != (parity.level > 0)]
        if not members or members[0] != parity.block or len(members) * parity.pieces > MOST_IN_GROUP:
            raise ProtocolError(f"parity of {len(members)} blocks in {parity.pieces} pieces among {span}")
        if any(block in self.groups for block in members):
            raise ProtocolError(f"parity of blocks {span}, of which some are in another group")
        places = [place for block in members for place in self._places(block, parity.pieces)]
        group = GroupIn(parity, members, sum(place is None for place in places))
        self.groups |= dict.fromkeys(members, group)
        return group

    def rebuild(self, block: int) -> int:
        """Rebuild what is missing in a block's group, if that can be done now; returns how many pieces.

        Raises `ProtocolError`.
        """
        group = self.groups.get(block)
        if group is None or not group.is_enough:
            return 0
        there = [place for block in group.members for place in self._places(block, group.pieces)]
        pieces = group.rebuilt(self.load, there, int(not self.reliable[block]))
        for piece in pieces:
            self.put(piece)
        return len(pieces)

    def parity_bytes(self, block: int) -> int:
        """What is kept of parity for a block's group."""
        group = self.groups.get(block)
        return 0 if group is None else group.nbytes

    def _places(self, block: int, pieces: int) -> Sequence[Place]:
        """What has come of a block, by piece."""
        whole, parts = self.blocks[block], self.parts.get(block)
        sizes = self.sizes.get(block, [1])
        if (parts is not None and len(parts) != pieces) or (whole is not None and len(sizes) != pieces):
            raise ProtocolError(f"block {block} did not come in {pieces} pieces, as its parity says")
        if parts is not None:
            return [part and (part.start, part.stop, part.data) for part in parts]
        if whole is None or pieces == 1:
            return [whole] * pieces
        ends, data = [0, *accumulate(sizes)], memoryview(whole.data)
        return [(whole.start, whole.stop, data[begin:end]) for begin, end in pairwise(ends)]

    @property
    def due_at(self) -> float:
        """When it closes if nothing more comes, which is never later with more; inf: not at all."""
        every, reliable = self.missing
        return inf if reliable else self.closes_at if every else -inf

    def delivery(self) -> Delivered:
        came = tuple(block is not None for block in self.blocks)
        return Delivered(
            self.number,
            self.message,
            Blocks(came, tuple(block for block in self.blocks if block is not None)),
        )
