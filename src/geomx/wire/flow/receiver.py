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

from collections.abc import Iterable
from math import inf

from geomx.errors import ProtocolError
from geomx.wire.flow.inbox import Delivered, Inbox
from geomx.wire.flow.numbers import Numbers
from geomx.wire.flow.packets import (
    CLOSED_SHOWN,
    MOST_OPEN,
    MOST_TOLD,
    PIECE_COST_BYTES,
    Head,
    Parity,
    Piece,
    Receipt,
    Tail,
)
from geomx.wire.flow_messages import Beside
from geomx.wire.messages import Carried

EARLY_BYTES = PARITY_BYTES = 8 << 20
ACK_EVERY = 8
ACK_DELAY_S = 0.005
LEAST_WINDOW_S = 0.001


class FlowReceiver:
    """See the module's rules. Times are seconds on any one clock."""

    def __init__(self) -> None:
        self._numbers = Numbers()
        self._inboxes: dict[int, Inbox] = {}
        self._early: dict[int, list[Piece | Parity]] = {}
        self._early_tails: dict[
            int, float
        ] = {}  # of loads that are not announced: how long to wait behind them
        self._early_bytes = 0
        self._slices: set[int] = set()  # of loads that are open
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

    def announced(self, number: int, message: Carried, beside: Beside, now: float) -> None:
        """The header of a load has come, for the first time or once more. Raises `ProtocolError`."""
        load = beside.load
        if self._is_closed(load) or load in self._inboxes:
            return
        if not self._may_be(load):
            raise ProtocolError(f"load {load} was announced, and {self._closed_below} is open")
        if message.slice in self._slices:  # so what is open is never larger than the model
            raise ProtocolError(
                f"load {load} was announced, and another one of slice {message.slice} is open"
            )
        self._slices.add(message.slice)
        self._inboxes[load] = inbox = Inbox(number, message, beside)
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

    def _put(self, inbox: Inbox, piece: Piece | Parity) -> bool:
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

    def closed(self, now: float) -> Iterable[Delivered]:
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
        self._slices.discard(inbox.message.slice)
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

    def ack(self, now: float) -> Receipt | None:
        """What is to be told now; None: nothing yet."""
        if self._ack_at > now:
            return None
        self._ack_at, self._unacknowledged = inf, 0
        places = [load - self._closed_below for load in self._closed]
        shown = sum(1 << place for place in places if place < CLOSED_SHOWN)
        held_s = max(now - self._numbers.newest_at, 0.0)
        return Receipt(held_s, self._closed_below, shown, self._numbers.runs[:MOST_TOLD])

    @property
    def still_since(self) -> float:
        """Since when nothing new has come of the loads that are open; inf: none is."""
        return self._moved_at if self._inboxes else inf

    def excuse(self, now: float) -> None:
        """That nothing new has come until now is nobody's fault."""
        self._moved_at = now
