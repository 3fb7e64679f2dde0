"""The receiving end of a flow: puts loads together, says what has come, and closes each load in time.

Rules
1. A load is known by its header, which comes in a datagram and on the connection (`announced`). Pieces that come before
   are kept, up to `EARLY_BYTES` of them; others are dropped, and not acknowledged.
2. A load closes when all its blocks are in; or when its reliable blocks are in, its tail is, and behind that a window
   has passed: for datagrams that were overtaken (as long as that was seen to take, at most a quarter of the sender's
   round trip), and for as long as the sender asks.
3. What comes for a load that has closed is dropped, and counted.
4. What is missing of a group of pieces is rebuilt as soon as enough parity pieces have come (`parity.py`). Those that
   come too early are kept, up to `PARITY_BYTES` of them; others are dropped, and not acknowledged.
5. Whatever the sender could not have meant raises `ProtocolError`: it is a member of the run, so it is told who it was.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import accumulate, pairwise
from math import inf
from typing import NamedTuple

from geomx.errors import ProtocolError
from geomx.wire.flow.numbers import Numbers
from geomx.wire.flow.packets import CLOSED_SHOWN, MOST_OPEN, PIECE_COST_BYTES, Ack, Head, Parity, Piece, Tail
from geomx.wire.flow.parity import GroupIn, Place
from geomx.wire.messages import Beside, Message
from geomx.wire.presence import unpack as unpack_bitmap

EARLY_BYTES = PARITY_BYTES = 8 << 20
ACK_EVERY = 8
ACK_DELAY_S = 0.005
LEAST_WINDOW_S = 0.001


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


class Delivery(NamedTuple):
    """A load has closed: the message that it belongs to, and its payload: `Blocks`, or the bytes as they stand."""

    number: int
    message: Message
    payload: Blocks | bytearray


class _Inbox:
    """A load that is open."""

    __slots__ = (
        "blocks",
        "bytes_left",
        "closes_at",
        "groups",
        "load",
        "message",
        "missing",
        "number",
        "parts",
        "reliable",
        "sizes",
    )

    def __init__(self, number: int, message: Message, beside: Beside) -> None:
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
        if self.bytes_left < 0:
            raise ProtocolError("a load has more bytes than were announced")
        if block is True:
            return True
        self.blocks[piece.block] = block
        self.missing[0] -= 1
        self.missing[1] -= self.reliable[piece.block]
        return True

    def _joined(self, piece: Piece) -> BlockIn | bool:
        """The block that is complete with this piece; else whether the piece is new."""
        if piece.pieces == 1 and piece.block not in self.parts:
            return BlockIn(piece.start, piece.stop, piece.data)
        parts = self.parts.setdefault(piece.block, [None] * piece.pieces)
        known = next((part for part in parts if part is not None), piece)
        if (known.pieces, known.start, known.stop) != (piece.pieces, piece.start, piece.stop):
            raise ProtocolError(f"the pieces of block {piece.block} belong to two blocks")
        if parts[piece.piece] is not None:
            return False
        parts[piece.piece] = piece
        if any(part is None for part in parts):
            return True
        del self.parts[piece.block]
        self.sizes[piece.block] = [len(part.data) for part in parts if part is not None]
        return BlockIn(piece.start, piece.stop, b"".join(part.data for part in parts if part is not None))

    def parity(self, parity: Parity) -> bool:
        """Keep a parity piece; False: it is here already, or not needed. Raises `ProtocolError`."""
        covered = range(parity.block, parity.block + parity.blocks)
        if covered.stop > len(self.blocks):
            raise ProtocolError(f"parity of blocks {covered} of a load of {len(self.blocks)}")
        group = self.groups.get(parity.block)
        if group is None:
            if any(block in self.groups for block in covered):
                raise ProtocolError(f"parity of blocks {covered}, of which some are in another group")
            group = GroupIn(parity)
            self.groups |= dict.fromkeys(covered, group)
        return group.add(parity)

    def rebuild(self, block: int) -> int:
        """Rebuild what is missing in a block's group, if that can be done now; returns how many pieces.

        Raises `ProtocolError`.
        """
        group = self.groups.get(block)
        if group is None or not group.nbytes:
            return 0
        covered = range(group.first, group.first + group.blocks)
        there = [place for block in covered for place in self._places(block, group.pieces)]
        levels = [int(not self.reliable[block]) for block in covered]
        pieces = group.rebuilt(self.load, there, levels)
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

    def delivery(self) -> Delivery:
        came = tuple(block is not None for block in self.blocks)
        return Delivery(
            self.number,
            self.message,
            Blocks(came, tuple(block for block in self.blocks if block is not None)),
        )


class FlowReceiver:
    """See the module's rules. Times are seconds on any one clock."""

    def __init__(self) -> None:
        self._numbers = Numbers()
        self._inboxes: dict[int, _Inbox] = {}
        self._early: dict[int, list[Piece | Parity]] = {}
        self._early_tails: dict[
            int, float
        ] = {}  # of loads that are not announced: how long to wait behind them
        self._early_bytes = 0
        self._closed_below = 0
        self._closed: set[int] = set()  # at or above it
        self._closing_at = inf  # the first of the loads that are open, if nothing more comes
        self._unacknowledged = 0
        self._ack_at = inf
        self._moved_at = -inf
        self.came: dict[int, int] = {}  # pieces by class
        self.late: dict[int, int] = {}  # of loads that had closed
        self._parity_bytes = 0  # kept of all loads
        self.dropped = 0  # too early, and no room
        self.rebuilt = 0  # pieces

    # -- what comes -------------------------------------------------------------------------------------------

    def announced(self, number: int, message: Message, beside: Beside, now: float) -> None:
        """The header of a load has come, for the first time or once more. Raises `ProtocolError`."""
        load = beside.load
        if self._is_closed(load) or load in self._inboxes:
            return
        if not self._may_be(load):
            raise ProtocolError(f"load {load} was announced, and {self._closed_below} is open")
        self._inboxes[load] = inbox = _Inbox(number, message, beside)
        self._moved_at = now
        for piece in self._forgotten(load):
            self._put(inbox, piece)
        wait_s = self._early_tails.pop(load, None)
        if wait_s is not None:
            inbox.closes_at = now + wait_s
        self._closing_at = min(self._closing_at, inbox.due_at)

    def received(self, number: int, packet: Piece | Parity | Tail | Head, now: float) -> bool:
        """A datagram has come, and is from whom it says. Returns whether it is new. Raises `ProtocolError`."""
        if number in self._numbers:
            return False
        if isinstance(packet, Tail):
            self._ends(packet, now)
        elif not isinstance(packet, Head) and not self._take(packet, now):
            return False
        self._numbers.add(number, now)
        self._unacknowledged += 1
        if isinstance(packet, Tail) or self._unacknowledged >= ACK_EVERY:
            self._ack_at = now
        else:
            self._ack_at = min(self._ack_at, now + ACK_DELAY_S)
        return True

    def is_known(self, number: int) -> bool:
        """Whether a datagram has come before, or is so old that nobody can say."""
        return number in self._numbers

    def noted(self, number: int) -> None:
        """A datagram has come that nothing is to be said of."""
        self._numbers.note(number)

    def _take(self, piece: Piece | Parity, now: float) -> bool:
        """Whether a piece could be kept, or is not needed."""
        inbox = self._inboxes.get(piece.load)
        if inbox is not None:
            if not self._has_room(piece):
                return False
            if self._put(inbox, piece):
                self._moved_at = now
                self._count(self.came, piece)
        elif self._is_closed(piece.load):
            self._count(self.late, piece)
        elif not self._keep_early(piece):
            self.dropped += 1
            return False
        else:
            self._count(self.came, piece)
        return True

    def _may_be(self, load: int) -> bool:
        """Whether a sender may be so far: it waits for the oldest load that is open."""
        return load < self._closed_below + MOST_OPEN

    def _put(self, inbox: _Inbox, piece: Piece | Parity) -> bool:
        """Give a load what is of it, and rebuild what can be rebuilt with it; False: it is not new."""
        if isinstance(piece, Piece) and not inbox.groups:
            is_new = inbox.put(piece)
            self._closing_at = min(self._closing_at, inbox.due_at)
            return is_new
        before = inbox.parity_bytes(piece.block)
        try:
            is_new = inbox.put(piece) if isinstance(piece, Piece) else inbox.parity(piece)
            self.rebuilt += inbox.rebuild(piece.block)
        finally:
            self._parity_bytes += inbox.parity_bytes(piece.block) - before
        self._closing_at = min(self._closing_at, inbox.due_at)
        return is_new

    def _is_closed(self, load: int) -> bool:
        return load < self._closed_below or load in self._closed

    @staticmethod
    def _count(counts: dict[int, int], piece: Piece | Parity) -> None:
        if isinstance(piece, Piece):
            counts[piece.level] = counts.get(piece.level, 0) + 1

    def _keep_early(self, piece: Piece | Parity) -> bool:
        """Keep what has overtaken its header, if there is room for it."""
        size = len(piece.data) + PIECE_COST_BYTES
        if (
            self._early_bytes + size > EARLY_BYTES
            or not self._may_be(piece.load)
            or not self._has_room(piece)
        ):
            return False
        self._early_bytes += size
        if isinstance(piece, Parity):
            self._parity_bytes += size
        self._early.setdefault(piece.load, []).append(piece)
        return True

    def _forgotten(self, load: int) -> list[Piece | Parity]:
        """Take a load's early pieces out."""
        pieces = self._early.pop(load, [])
        self._early_bytes -= sum(len(piece.data) + PIECE_COST_BYTES for piece in pieces)
        self._parity_bytes -= sum(
            len(piece.data) + PIECE_COST_BYTES for piece in pieces if isinstance(piece, Parity)
        )
        return pieces

    def _has_room(self, piece: Piece | Parity) -> bool:
        """Whether it can be kept as parity, if it is; so what is acknowledged before its header stays, too."""
        size = len(piece.data) + PIECE_COST_BYTES
        return isinstance(piece, Piece) or self._parity_bytes + size <= PARITY_BYTES

    def _ends(self, tail: Tail, now: float) -> None:
        window_s = min(max(2 * self._numbers.overtaken_s, LEAST_WINDOW_S), tail.round_trip_s / 4)
        for load in tail.loads:
            inbox = self._inboxes.get(load)
            if inbox is not None:
                inbox.closes_at = min(inbox.closes_at, now + window_s + tail.grace_s)
                self._closing_at = min(self._closing_at, inbox.due_at)
            elif not self._is_closed(load) and self._may_be(load):
                self._early_tails.setdefault(load, window_s + tail.grace_s)

    # -- what is told -----------------------------------------------------------------------------------------

    def closed(self, now: float) -> Iterable[Delivery]:
        """The loads that close now."""
        if now < self._closing_at:
            return
        over = [(load, inbox) for load, inbox in self._inboxes.items() if now >= inbox.due_at]
        for load, inbox in over:
            self._close(load)
            yield inbox.delivery()
        self._closing_at = min((inbox.due_at for inbox in self._inboxes.values()), default=inf)

    def forget(self, below: int) -> None:
        """Loads below this number come on the connection, whole. Raises `ProtocolError`."""
        if not 0 <= below <= self._closed_below + MOST_OPEN:
            raise ProtocolError(f"loads below {below} are broken, and {self._closed_below} is open")
        for load in [load for load in self._inboxes if load < below]:
            self._close(load)
        for load in [load for load in self._early if load < below]:
            self._forgotten(load)
        for load in [load for load in self._early_tails if load < below]:
            del self._early_tails[load]
        self._closed = {load for load in self._closed if load >= below}
        self._closed_up_to(max(self._closed_below, below))

    def _close(self, load: int) -> None:
        inbox = self._inboxes.pop(load)
        self._parity_bytes -= sum(group.nbytes for group in set(inbox.groups.values()))
        self._ack_at = -inf  # so that nothing of it is sent again
        self._closed.add(load)
        self._closed_up_to(self._closed_below)

    def _closed_up_to(self, below: int) -> None:
        while below in self._closed:
            self._closed.remove(below)
            below += 1
        self._closed_below = below

    def next_at(self) -> float:
        """When to call `closed` and `ack`, if nothing comes before; inf: not at all."""
        return min(self._closing_at, self._ack_at)

    def ack(self, now: float) -> Ack | None:
        """What is to be told now; None: nothing yet."""
        if self._ack_at > now:
            return None
        self._ack_at, self._unacknowledged = inf, 0
        places = [load - self._closed_below for load in self._closed]
        shown = sum(1 << place for place in places if place < CLOSED_SHOWN)
        held_s = max(now - self._numbers.newest_at, 0.0)
        return Ack(held_s, self._closed_below, shown, self._numbers.runs)

    @property
    def still_since(self) -> float:
        """Since when nothing new has come of the loads that are open; inf: none is."""
        return self._moved_at if self._inboxes else inf

    def excuse(self, now: float) -> None:
        """That nothing new has come until now is nobody's fault."""
        self._moved_at = now
