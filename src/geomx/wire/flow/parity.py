"""Forward error correction: parity pieces, from which a receiver rebuilds lost pieces before they are sent again.

Consecutive blocks of a load form a *group* of k pieces, with m = ⌈share · k⌉ parity pieces behind them. Any k of these
k + m pieces rebuild all k (`erasure.py`). A *symbol* is what the code works on: the elements of a block, a piece's
bytes, and zeros behind a mark up to the length of the group's longest symbol:

    start u32, stop u32, the bytes, 1, and zeros

A symbol's place in its group says which piece of which block it is, so all blocks of a group have equally many pieces.
How many parity pieces there are changes none of them, so a receiver does not have to know.

A piece that was rebuilt has no datagram that could be acknowledged. The sender counts instead: as soon as k of a
group's datagrams have been acknowledged, the receiver has all of it (`GroupOut`). Until then a lost piece is sent again
only if so many are lost that those still under way cannot be enough. So nothing is added to acknowledgements.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import pairwise
from typing import Generic, TypeVar

from geomx.errors import ProtocolError
from geomx.wire.flow import erasure
from geomx.wire.flow.packets import (
    MOST_IN_GROUP,
    PARITY_HEAD_BYTES,
    PIECE_COST_BYTES,
    PIECE_HEAD_BYTES,
    Parity,
    Piece,
)

_RANGE = struct.Struct("<II")
_MARK = b"\1"
SYMBOL_BYTES = _RANGE.size + len(_MARK)  # what a symbol has beyond the bytes of its piece
EXTRA_BYTES = (
    PARITY_HEAD_BYTES + SYMBOL_BYTES - PIECE_HEAD_BYTES
)  # what a parity piece has beyond other pieces


def groups(pieces: Sequence[Piece], share: float) -> Iterator[tuple[list[Piece], int]]:
    """The groups of a load, in order, each with its number of parity pieces; 0: it has no parity.

    `share`: parity pieces for each piece, from 0 to 1.
    """
    if not share:
        yield list(pieces), 0
        return
    for run in _runs(pieces):
        count = run[0].pieces
        if count > MOST_IN_GROUP:
            yield run, 0
            continue
        blocks = len(run) // count
        parts = math.ceil(blocks / (MOST_IN_GROUP // count))
        for begin, end in pairwise(blocks * part // parts * count for part in range(parts + 1)):
            yield run[begin:end], max(math.ceil(share * (end - begin) - 1e-9), 1)


def _runs(pieces: Sequence[Piece]) -> Iterator[list[Piece]]:
    """Pieces of consecutive blocks of one class with equally many pieces."""
    run: list[Piece] = []
    for piece in pieces:
        last = run[-1] if run else piece
        if piece.block - last.block > 1 or (piece.pieces, piece.level) != (last.pieces, last.level):
            yield run
            run = []
        run.append(piece)
    if run:
        yield run


# -- the sending end ----------------------------------------------------------------------------------------------

T = TypeVar("T")


class ParityOut:
    """A parity piece to be sent; its group is encoded when the first one leaves."""

    def __init__(self, made: Callable[[], Sequence[Parity]], number: int) -> None:
        self._made = made
        self._number = number

    def pack(self) -> bytes:
        return self._made()[self._number].pack()


class GroupOut(Generic[T]):
    """A group on its way: its parity pieces, and what has come of all, and what is lost.

    `items`: what the sender keeps for each piece, those of parity pieces last; it gets them back.
    """

    def __init__(self, pieces: Sequence[Piece], parities: int) -> None:
        self._pieces, self._count = pieces, len(pieces)
        self._encoded: list[Parity] = []
        self.parities = [ParityOut(partial(self._parities, parities), number) for number in range(parities)]
        self.items: list[T] = []
        self._came: set[int] = set()
        self._lost: dict[int, None] = {}  # places of those that are lost and not sent again, the oldest first

    def _parities(self, count: int) -> Sequence[Parity]:
        if not self._encoded:
            first, last = self._pieces[0], self._pieces[-1]
            size = SYMBOL_BYTES + max(len(piece.data) for piece in self._pieces)
            symbols = [_symbol(piece.start, piece.stop, piece.data, size) for piece in self._pieces]
            shape = (first.load, first.block, last.block - first.block + 1, first.pieces, count)
            made = erasure.encode(symbols, count)
            self._encoded = [Parity(*shape, number, data) for number, data in enumerate(made)]
        return self._encoded

    def came(self, place: int) -> bool:
        """One has come. Returns whether the receiver has all of the group with it."""
        if place in self._came:
            return False
        self._came.add(place)
        self._lost.pop(place, None)
        return len(self._came) == self._count

    def lost(self, place: int) -> list[T]:
        """One is lost. Returns what stands for pieces that have to be sent again now."""
        needed = self._count - len(self._came)
        if place in self._came or needed <= 0:
            return []
        self._lost[place] = None
        under_way = len(self.items) - len(self._came) - len(self._lost)
        pieces = [lost for lost in self._lost if lost < self._count]
        again = pieces[: max(needed - under_way, 0)]
        for lost in again:
            del self._lost[lost]
        return [self.items[lost] for lost in again]


# -- the receiving end --------------------------------------------------------------------------------------------


Place = tuple[int, int, bytes | memoryview] | None  # start, stop and bytes of a piece; None: it has not come


class GroupIn:
    """The parity pieces of a group that have come: of `blocks` blocks from `first` on, of `pieces` pieces each."""

    def __init__(self, parity: Parity) -> None:
        self.first, self.blocks, self.pieces = parity.block, parity.blocks, parity.pieces
        self._size = len(parity.data)
        self._came: dict[int, bytes] = {}

    def add(self, parity: Parity) -> bool:
        """Keep one; False: it is here already. Raises `ProtocolError`."""
        known = (self.first, self.blocks, self.pieces, self._size)
        if known != (parity.block, parity.blocks, parity.pieces, len(parity.data)):
            raise ProtocolError(f"the parity pieces of block {parity.block} belong to two groups")
        if parity.parity in self._came:
            return False
        self._came[parity.parity] = bytes(parity.data)
        return True

    def rebuilt(self, load: int, there: Sequence[Place], levels: Sequence[int]) -> list[Piece]:
        """The pieces that are missing, if they can be rebuilt now; what was kept for that is let go.

        `there`: what has come, by place. `levels`: the class of each block. Raises `ProtocolError`.
        """
        missing = [place for place, symbol in enumerate(there) if symbol is None]
        if len(missing) > len(self._came):
            return []
        parities = list(self._came.items())[: len(missing)]
        self._came.clear()
        if not missing:
            return []
        known = {place: _symbol(*symbol, self._size) for place, symbol in enumerate(there) if symbol}
        known |= {len(there) + number: data for number, data in parities}
        symbols = erasure.decode(known, len(there))
        pieces = []
        for place in missing:
            block, piece = divmod(place, self.pieces)
            start, stop, data = _unpacked(symbols[place])
            pieces.append(
                Piece(load, self.first + block, piece, self.pieces, levels[block], start, stop, data)
            )
        return pieces

    @property
    def nbytes(self) -> int:
        """What is kept takes so many bytes."""
        return (self._size + PIECE_COST_BYTES) * len(self._came)


def _symbol(start: int, stop: int, data: bytes | memoryview, size: int) -> bytes:
    if len(data) + SYMBOL_BYTES > size:
        raise ProtocolError(f"a piece of {len(data)} bytes in a group whose parity pieces have {size}")
    return b"".join((_RANGE.pack(start, stop), data, _MARK)).ljust(size, b"\0")


def _unpacked(symbol: bytes) -> tuple[int, int, memoryview]:
    end = len(symbol.rstrip(b"\0")) - 1
    start, stop = _RANGE.unpack_from(symbol) if end >= _RANGE.size else (0, 0)
    if start >= stop or symbol[end : end + 1] != _MARK:
        raise ProtocolError("parity pieces that fit none of what has come")
    return start, stop, memoryview(symbol)[_RANGE.size : end]
