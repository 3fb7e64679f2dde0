"""Forward error correction: parity pieces, from which a receiver rebuilds lost pieces before they are sent again.

Pieces of a load form *groups* of at most `MOST_IN_GROUP`: of consecutive reliable blocks, or of consecutive blocks of
another class. Any k of a group's k pieces and its parity pieces rebuild all k (`erasure.py`). A *symbol* is what the
code works on: the elements of a block, a piece's bytes, and zeros behind a mark up to the length of the group's longest
symbol:

    start u32, stop u32, the bytes, 1, and zeros

A symbol's place in its group says which piece of which block it is, so all blocks of a group have equally many pieces.
How many parity pieces there are changes none of them: more can be made at any time.

A piece that was rebuilt has no datagram that could be acknowledged. The sender counts instead: as soon as k of a
group's datagrams have been acknowledged, the receiver has all of it (`GroupOut`). Until then a lost piece is sent again
only if so many are lost that those still under way cannot be enough. So nothing is added to acknowledgements.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from typing import Any, Generic, NamedTuple, TypeVar

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


def groups(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """The groups of a load's pieces, which are in order; and as lists of their own, pieces that can be in none."""
    for run in _runs(pieces):
        count = run[0].pieces
        if count > MOST_IN_GROUP:
            yield run
            continue
        blocks = len(run) // count
        parts = math.ceil(blocks / (MOST_IN_GROUP // count))
        for begin, end in pairwise(blocks * part // parts * count for part in range(parts + 1)):
            yield run[begin:end]


def _runs(pieces: Iterable[Piece]) -> Iterator[list[Piece]]:
    """Pieces of blocks with equally many pieces: all that are reliable, and of each other class those in a row."""
    open_runs: dict[bool, list[Piece]] = {True: [], False: []}
    for piece in pieces:
        is_reliable = piece.level == 0
        run = open_runs[is_reliable]
        if run and not (piece.pieces == run[-1].pieces and (is_reliable or _follows(piece, run[-1]))):
            yield run
            run = open_runs[is_reliable] = []
        run.append(piece)
    yield from filter(None, open_runs.values())


def _follows(piece: Piece, last: Piece) -> bool:
    return piece.level == last.level and piece.block - last.block <= 1


# -- the sending end ----------------------------------------------------------------------------------------------

T = TypeVar("T")


class ParityOut(NamedTuple):
    """A parity piece to be sent; it is made when it leaves."""

    group: GroupOut[Any]
    number: int

    def pack(self) -> bytes:
        return self.group.parity(self.number).pack()


class GroupOut(Generic[T]):
    """A group on its way: what has come of its pieces and parity pieces, and what is lost.

    `items`: what the sender keeps for each, those of parity pieces last, as they are made; it gets them back.
    """

    def __init__(self, pieces: Sequence[Piece]) -> None:
        self._pieces, self._count = pieces, len(pieces)
        self._symbols: list[bytes] = []
        self.items: list[T] = []
        self._came: set[int] = set()
        self._lost: dict[int, None] = {}  # places of those that are lost and not sent again, the oldest first

    def parity(self, number: int) -> Parity:
        """Make a parity piece."""
        first, last = self._pieces[0], self._pieces[-1]
        if not self._symbols:
            size = SYMBOL_BYTES + max(len(piece.data) for piece in self._pieces)
            self._symbols = [_symbol(piece.start, piece.stop, piece.data, size) for piece in self._pieces]
        (data,) = erasure.encode(self._symbols, 1, number)
        blocks = last.block - first.block + 1
        return Parity(first.load, first.block, blocks, first.pieces, int(first.level > 0), number, data)

    def more(self, count: int) -> list[ParityOut]:
        """So many more parity pieces, of `MOST_IN_GROUP` at most; whoever asks adds an item for each."""
        made = len(self.items) - self._count
        return [ParityOut(self, number) for number in range(made, min(made + count, MOST_IN_GROUP))]

    def wanted(self, loss: float, deviations: float) -> int:
        """How many more make it likely that what is under way is enough, if a share `loss` of it is lost.

        `deviations`: of what is lost from its mean, that are provided for.
        """
        missing = self._count - len(self._came)
        under_way = len(self.items) - len(self._came) - len(self._lost)
        if missing <= 0 or not loss:
            return 0
        more = 0
        for _ in range(2):  # parity pieces are lost, too
            mean = loss * (under_way + more)
            more = max(missing - under_way + round(mean + deviations * math.sqrt(mean)), 0)
        return more

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
    """The parity pieces of a group that have come.

    `members`: its blocks, of `pieces` pieces each. `missing`: how many of its pieces have not come; kept by whoever
    takes them in.
    """

    def __init__(self, parity: Parity, members: Sequence[int], missing: int) -> None:
        self.members, self.pieces, self.missing = members, parity.pieces, missing
        self._span, self._size = (parity.block, parity.blocks), len(parity.data)
        self._came: dict[int, bytes] = {}

    def add(self, parity: Parity) -> bool:
        """Keep one; False: it is here already. Raises `ProtocolError`."""
        known = (self._span, self.pieces, self._size)
        if known != ((parity.block, parity.blocks), parity.pieces, len(parity.data)):
            raise ProtocolError(f"the parity pieces of block {parity.block} belong to two groups")
        if parity.parity in self._came:
            return False
        self._came[parity.parity] = bytes(parity.data)
        return True

    @property
    def is_enough(self) -> bool:
        """Whether what is missing can be rebuilt, or nothing is, and something is kept all the same."""
        return bool(self._came) and self.missing <= len(self._came)

    def rebuilt(self, load: int, there: Sequence[Place], level: int) -> list[Piece]:
        """The pieces that are missing, where parity pieces are enough; what was kept for that is let go.

        `there`: what has come, by place. `level`: of its blocks. Raises `ProtocolError`.
        """
        missing = [place for place, symbol in enumerate(there) if symbol is None]
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
            pieces.append(Piece(load, self.members[block], piece, self.pieces, level, start, stop, data))
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
