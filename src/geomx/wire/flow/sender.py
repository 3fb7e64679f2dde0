"""The sending end of a flow: which piece leaves next, what was lost, and when it is sent again.

Rules
1. The most urgent load first (P3), within a load its header, then the lowest class; what is sent again goes before what
   was never sent.
2. Behind the first sending of a load's last piece goes its tail. While nothing else is to be sent, the tails of all
   loads that the receiver has not closed are repeated: so what a round waits for last is missed soon.
3. A datagram is lost if one that was sent later has come, and `LATER` numbers or an eighth of a round trip lie between,
   and the reordering that was seen; or if nothing is heard at all for a time-out (both after RFC 8985 and RFC 9002).
   Every sending has a number of its own, so an acknowledgement says which of them has come.
4. Behind each group of reliable pieces go parity pieces (`parity.py`), as many as the loss that is measured makes
   likely, or a fixed share. When nothing is left to be sent, more follow for what is still under way, and headers leave
   once more: to lose the last ones costs a round trip. What is lost of a group is sent again only where what is under
   way of it cannot be enough to rebuild it.
5. Reliable pieces are sent until they have come. Those of class c have a number of tries; behind the last one they are
   given up. What the receiver has closed is sent no more.

Loss never slows a flow down: when something may leave is the business of `congestion.py`.
"""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from math import inf
from typing import NamedTuple

from geomx.errors import ProtocolError
from geomx.wire.flow.congestion import Congestion, Mark
from geomx.wire.flow.lanes import LaneQueues
from geomx.wire.flow.outbox import BlockOut, FlowTerms, Item, Outbox
from geomx.wire.flow.packets import MOST_OPEN, MOST_TAILS, Piece, Receipt, Tail
from geomx.wire.flow.parity import ParityOut
from geomx.wire.flow.path import SIZES
from geomx.wire.flow.receiver import ACK_DELAY_S

LATER = 3  # numbers: so many datagrams seldom overtake one
LEAST_TIMEOUT_S = 0.02
MOST_BACKOFFS = 6
LARGE_BYTES = SIZES[-1]  # smaller ones pass wherever a path is open
MOST_LARGE_LOST, LARGE_LOST_S = 16, 1.0  # in a row, for so long: they no longer pass
LOST_KEPT = 64
LEAST_JUDGED, MOST_JUDGED = 64, 512  # datagrams, of which the loss is a mean
LEAST_REPEAT_S = 0.005


class _Sent(NamedTuple):
    """A datagram of which nothing has been heard. `item` None: it has told tails."""

    item: Item | None
    at: float
    mark: Mark
    is_large: bool


class FlowSender:
    """See the module's rules. Times are seconds on any one clock."""

    def __init__(self, congestion: Congestion, terms: FlowTerms) -> None:
        self._congestion = congestion
        self._terms = terms
        self._loads: dict[int, Outbox] = {}
        self._over_now: list[int] = []
        self.next_load = self._next_number = 0
        self._lanes: LaneQueues[Item] = LaneQueues()
        self._tails: dict[int, None] = {}  # loads of which everything was sent once, the oldest first
        self._tails_at = inf  # when they are to be told
        self._repeats = 0
        self._under_way: dict[int, _Sent] = {}  # by number, the oldest first
        self._lost: dict[int, Item | None] = {}  # held for lost, the oldest first; None: its load is over
        self._closed = (0, 0)  # loads, as the newest acknowledgement said
        self._loss, self._judged = (
            0.0,
            LEAST_JUDGED,
        )  # the share of the last datagrams that were lost, and of how many
        self._reorder_s = 0.0
        self._heard_at = -inf
        self._began_at = -inf  # since when something was always to be sent, or to be heard of
        self._backoff = 0
        self.first_round_trip_s = 0.5  # before one was measured
        self._unprotected: dict[Outbox, None] = {}  # of which something has left since parity was last made
        self._large_lost, self._large_lost_from = (
            0,
            inf,
        )  # large datagrams in a row, and when the first one left
        self.sent: dict[int, int] = {}  # pieces by class: for the first time
        self.again: dict[int, int] = {}  # and once more
        self.parities = 0  # parity pieces sent

    # -- what is to be sent -----------------------------------------------------------------------------------

    def add(
        self,
        number: int,
        head: bytes,
        blocks: Iterable[BlockOut],
        priority: int,
        piece_bytes: int,
        now: float,
    ) -> None:
        """Take in the load `next_load`.

        `number`, `head`: of its message; an empty head goes on the connection alone. `piece_bytes`: the most bytes of a
        block in one datagram.
        """
        if not self._loads:
            self._began_at = now
        outbox = Outbox(self.next_load, number, head, blocks, priority, piece_bytes, self._terms, self._loss)
        self._loads[self.next_load] = outbox
        self.next_load += 1
        for item in outbox.items:
            self._lanes.put(item)
        if not outbox.unsent:
            self._ends(outbox, now)

    def take_over(self) -> list[int]:
        """The loads that the receiver has closed since the last call."""
        over, self._over_now = self._over_now, []
        return over

    def drop(self) -> list[int]:
        """Forget everything that is not over; returns the loads that are to be sent in another way."""
        loads = list(self._loads)
        for load in list(self._loads.values()):
            self._over(load)
        self._over_now.clear()
        self._lanes.clear()
        for sent in self._under_way.values():
            self._congestion.lost(sent.mark)
        self._under_way.clear()
        self._backoff = 0
        self._large_lost, self._large_lost_from = 0, inf
        return loads

    @property
    def open_loads(self) -> KeysView[int]:
        """The loads of which something may have to be sent, or sent again."""
        return self._loads.keys()

    @property
    def has_room(self) -> bool:
        """Whether the receiver takes another load before it has closed those that are open."""
        return self.next_load - next(iter(self._loads), self.next_load) < MOST_OPEN

    # -- sending ----------------------------------------------------------------------------------------------

    def next(self, now: float, envelope_bytes: int = 0) -> tuple[int, bytes] | None:
        """Take the next datagram: its number and its body; None: nothing may leave now, see `next_at`.

        `envelope_bytes`: what its seal and headers add.
        """
        if self._congestion.next_at() > now:
            return None
        item, tails = None, self._due_tails(now)
        if not tails:
            item = self._pop()
            if item is None and self._unprotected:
                self._protect()
                item = self._pop()
            if item is None:
                self._congestion.limited()
                return None
        body = self._tail(tails) if item is None else item.piece.pack()
        number = self.number()
        mark = self._congestion.sent(len(body) + envelope_bytes, now, not self._under_way)
        self._under_way[number] = _Sent(item, now, mark, len(body) > LARGE_BYTES)
        if item is not None:
            self._count(item, now)
        return number, body

    def number(self) -> int:
        """The number of the next datagram; also of those that `next` does not know of."""
        self._next_number += 1
        return self._next_number - 1

    def _pop(self) -> Item | None:
        while self._lanes:
            item = self._lanes.pop()
            if not item.load.is_over and item.tries:
                return item
        return None

    def _protect(self) -> None:
        """Rule 4: nothing is left to be sent."""
        unprotected, self._unprotected = self._unprotected, {}
        for load in unprotected:
            for item in load.protection(self._loss):
                self._lanes.put(item)

    def _due_tails(self, now: float) -> tuple[int, ...]:
        """The tails that leave now, the newest first."""
        if now < self._tails_at or not self._tails:
            return ()
        self._repeats += 1
        wait_s = (
            self.round_trip_s
            / (8 if self._repeats == 1 else 4)
            * (1 << min(self._repeats // 8, MOST_BACKOFFS))
        )
        self._tails_at = now + max(wait_s, LEAST_REPEAT_S)
        return tuple(reversed(self._tails))[:MOST_TAILS]

    def _tail(self, loads: tuple[int, ...]) -> bytes:
        return Tail(loads, self.round_trip_s, self._terms.grace * self.round_trip_s).pack()

    @property
    def round_trip_s(self) -> float:
        """Smoothed, in seconds; before there is one, what the path's first probe took."""
        return self._congestion.round_trip_s or self.first_round_trip_s

    def _count(self, item: Item, now: float) -> None:
        item.tries -= 1
        item.sendings += 1
        if isinstance(item.piece, ParityOut):
            self.parities += 1
        if not isinstance(item.piece, Piece):
            return
        self._unprotected[item.load] = None
        counts = self.again if item.sendings > 1 else self.sent
        counts[item.piece.level] = counts.get(item.piece.level, 0) + 1
        if item.sendings == 1:
            item.load.unsent -= 1
            if not item.load.unsent:
                self._ends(item.load, now)

    def _ends(self, load: Outbox, now: float) -> None:
        """All of a load was sent once: its tail is to be told."""
        self._tails[load.number] = None
        self._tails_at, self._repeats = now, 0

    def next_at(self) -> float:
        """When to call `next`, or `time_out`, if nothing is heard before; inf: not at all."""
        wanted_at = -inf if self._lanes else self._tails_at if self._tails else inf
        return min(max(wanted_at, self._congestion.next_at()), self._times_out_at())

    # -- what is heard ----------------------------------------------------------------------------------------

    def acknowledged(self, ack: Receipt, now: float) -> bool:
        """The receiver has told what has come. Returns whether any of it is news. Raises `ProtocolError`."""
        if ack.runs and ack.runs[0][1] >= self._next_number:
            raise ProtocolError(f"datagram {ack.runs[0][1]} has come, and {self._next_number} were sent")
        if ack.closed_below + ack.closed.bit_length() > self.next_load:
            raise ProtocolError(
                f"loads from {ack.closed_below} on are closed, and {self.next_load} were sent"
            )
        self._heard_at, self._backoff = now, 0
        oldest, sent = next(iter(self._under_way), self._next_number), None
        for first, last in reversed(ack.runs):  # in the order of sending
            for number in range(max(first, oldest), last + 1):
                if number in self._under_way:
                    sent = self._come(number, now, ack.held_s)
        for number in [number for number in self._lost if ack.has(number)]:
            self._came_late(number)
        if sent is not None:
            self._look_for_losses(ack.runs[0][1], sent.at)
        if self._closed != (ack.closed_below, ack.closed):
            self._closed = (ack.closed_below, ack.closed)
            for load in [load for load in self._loads.values() if ack.has_closed(load.number)]:
                self._over(load)
        return sent is not None

    def _come(self, number: int, now: float, held_s: float) -> _Sent:
        """A datagram has come."""
        sent = self._under_way.pop(number)
        self._congestion.acked(sent.mark, now, held_s)
        self._judge(0.0)
        if sent.is_large:
            self._large_lost, self._large_lost_from = 0, inf
        if sent.item is not None:
            self._is_there(sent.item)
        return sent

    @staticmethod
    def _is_there(item: Item) -> None:
        """The receiver has it; with it, it may have rebuilt all of its group."""
        item.tries = 0
        if item.group is not None and item.group.came(item.place):
            for other in item.group.items:
                other.tries = 0 if other.sendings or isinstance(other.piece, ParityOut) else other.tries

    def _judge(self, is_lost: float) -> None:
        self._judged = min(self._judged + 1, MOST_JUDGED)
        self._loss += (is_lost - self._loss) / self._judged

    def _over(self, load: Outbox) -> None:
        load.is_over = True
        if self._loads.pop(load.number, None) is not None:
            self._over_now.append(load.number)
        self._tails.pop(load.number, None)
        self._unprotected.pop(load, None)
        for number, item in self._lost.items():
            if item is not None and item.load is load:
                self._lost[number] = None

    def _came_late(self, number: int) -> None:
        """What was held for lost was only overtaken: wait longer next time."""
        item = self._lost.pop(number)
        if item is not None:
            self._is_there(item)
        most_s = self._congestion.round_trip_s / 4
        self._reorder_s = min(max(2 * self._reorder_s, self._congestion.wander_s, 1e-3), most_s)

    def _look_for_losses(self, newest: int, newest_at: float) -> None:
        lost = []
        later_s = self.round_trip_s / 8
        for number, sent in self._under_way.items():
            if number > newest:
                break
            if newest_at - sent.at >= self._reorder_s and (
                newest - number >= LATER or newest_at - sent.at >= later_s
            ):
                lost.append(number)
        for number in lost:
            self._overtaken(self._under_way[number])
            self._lose(number)

    def _overtaken(self, sent: _Sent) -> None:
        """It is lost although others come."""
        if sent.is_large:
            self._large_lost += 1
            self._large_lost_from = min(self._large_lost_from, sent.at)

    def _lose(self, number: int) -> None:
        """Hold a datagram for lost, and see to it that what has to be is sent again."""
        sent = self._under_way.pop(number)
        self._congestion.lost(sent.mark)
        self._judge(1.0)
        item = sent.item
        if item is None or item.load.is_over:
            return
        if item.group is not None:
            again = [other for other in item.group.lost(item.place) if other.tries]
        elif item.tries:
            again = [item]
        else:  # given up
            return
        self._lost[number] = item
        if len(self._lost) > LOST_KEPT:
            del self._lost[next(iter(self._lost))]
        for other in again:
            self._lanes.put(other, first=True)

    # -- silence ----------------------------------------------------------------------------------------------

    def _times_out_at(self) -> float:
        if not self._under_way:
            return inf
        oldest = next(iter(self._under_way.values()))
        return max(oldest.at, self._heard_at) + self._timeout_s() * (1 << self._backoff)

    def _timeout_s(self) -> float:
        wander_s = max(4 * self._congestion.wander_s, LEAST_TIMEOUT_S)
        return self.round_trip_s + wander_s + ACK_DELAY_S

    def time_out(self, now: float) -> None:
        """Hold for lost what should have been heard of by now."""
        if self._times_out_at() > now:
            return
        wait_s = self._timeout_s() * (1 << self._backoff)
        self._backoff = min(self._backoff + 1, MOST_BACKOFFS)
        for number in [number for number, sent in self._under_way.items() if sent.at + wait_s <= now]:
            self._lose(number)

    @property
    def is_stuck(self) -> bool:
        """Whether large datagrams no longer come, and others do."""
        return self._large_lost >= MOST_LARGE_LOST and self._heard_at - self._large_lost_from >= LARGE_LOST_S

    @property
    def silent_since(self) -> float:
        """Since when nothing has been heard although something was to be sent, or to be heard of; inf: never."""
        return max(self._heard_at, self._began_at) if self._loads else inf
