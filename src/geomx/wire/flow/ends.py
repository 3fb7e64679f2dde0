"""One end of the flow beside a connection: both directions, the path, and the way back onto the connection.

Both ends are alike, but for who begins: whoever dials sends first, so that a NAT lets the answers in; whoever listens
sends as soon as something has come.

What a load carries is either in blocks of which some may be lost, as the sender has cut it, or the payload as it
stands, cut into bytes that must all arrive (`Beside.is_whole`); what is delivered is `Blocks`, or the bytes.

Loads may overtake each other and what the connection carries; what belongs to one slice may not:

1. A message that follows another one of the same slice waits until that one's load has closed, whichever way it goes
   itself.
2. A load's header leaves in a datagram, too, if the message before it of its slice has come in a load, and no path was
   broken since. Else it goes on the connection alone, behind all that this has carried: that message, `FlowBroken`, or
   what a joiner is told before it gets the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec

from geomx.errors import ProtocolError
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.counts import FlowCounts
from geomx.wire.flow.inbox import Blocks, Delivered
from geomx.wire.flow.outbox import RELIABLE, BlockOut, FlowTerms
from geomx.wire.flow.packets import (
    MOST_BLOCKS,
    PIECE_HEAD_BYTES,
    Head,
    Parity,
    Piece,
    Probe,
    Probed,
    Receipt,
    Tail,
    unpack,
)
from geomx.wire.flow.parity import EXTRA_BYTES
from geomx.wire.flow.path import Path, State
from geomx.wire.flow.receiver import FlowReceiver
from geomx.wire.flow.sender import FlowSender
from geomx.wire.flow_messages import Beside, FlowBroken
from geomx.wire.messages import Carried, Push, decode_head, encode_head
from geomx.wire.presence import pack as pack_bitmap
from geomx.wire.roster_messages import Message

SILENT_S = 2.0  # without a word of what was sent, the connection carries everything
LOOK_EVERY_S = 0.25  # then, whether the connection is silent as well
STUCK_S = 10.0  # without anything new of what was announced
WHY = {
    True: "what is sent by UDP is answered",
    False: "nothing of what is sent by UDP is answered; let UDP through both ways at the same port as TCP",
}


class OnConnection(NamedTuple):
    """A message as it goes over the connection: number, header, payload and priority, as in `Write`."""

    number: int
    message: Message
    payload: Any
    priority: int


class Outgoing(NamedTuple):
    """A message whose payload is to be sent in datagrams. `whole`: it, as the connection would carry it.

    `data`: blocks with their classes; or all the bytes, which must arrive. Empty: the connection has to carry it.
    """

    whole: OnConnection
    data: Sequence[BlockOut] | memoryview

    @property
    def message(self) -> Carried:
        message = self.whole.message
        assert isinstance(message, Carried)
        return message

    @property
    def fits(self) -> bool:
        """Whether it can go in datagrams at all."""
        return bool(self.data) and (isinstance(self.data, memoryview) or len(self.data) <= MOST_BLOCKS)


class FlowEnd:
    """See the module's text. It reads no clock; times are seconds.

    `admit`: raises `ProtocolError` for a header that may not come, as `Node.admit` does. `dials`: whether this end has
    made the connection.
    """

    def __init__(
        self,
        congestion: Congestion,
        terms: FlowTerms,
        admit: Callable[[Message], None],
        now: float,
        *,
        dials: bool,
    ) -> None:
        self._admit = admit
        self._dials = dials
        self.path = Path()
        if dials:
            self.path.begin(now)
        self.sender = FlowSender(congestion, terms)
        self._spare_bytes = PIECE_HEAD_BYTES + EXTRA_BYTES
        self.receiver = FlowReceiver()
        self._answers: list[Probed] = []
        self._under_way: dict[int, Outgoing] = {}  # by load
        self._slices: set[int] = set()  # of those
        self._came_beside: set[int] = set()  # slices whose last message has come in a load: rule 2
        self._waiting: list[Outgoing] = []  # for another load of their slice, or for room
        self._to_write: list[OnConnection] = []
        self._told: State = "waiting"
        self._looked_at = self._came_at = -inf
        self._is_of_use = False  # the path: something has come but probes

    # -- what is sent -----------------------------------------------------------------------------------------

    def write(self, outgoing: Outgoing, now: float) -> bool:
        """Take a message in, if datagrams pass; `to_write` then says what the connection has to carry of it."""
        if not self.path.is_open:
            return False
        self._begin_or_wait(outgoing, now)
        return True

    def _begin(self, now: float) -> None:
        """Send what waits for nothing any more."""
        waiting, self._waiting = self._waiting, []
        for place, outgoing in enumerate(waiting):
            if not self.sender.has_room:
                self._waiting += waiting[place:]
                return
            self._begin_or_wait(outgoing, now)

    def _begin_or_wait(self, outgoing: Outgoing, now: float) -> None:
        """While there is room, all that waits does so for its slice; so nothing begins before what waits of its own."""
        slice_ = outgoing.message.slice
        if slice_ in self._slices or not self.sender.has_room:
            self._waiting.append(outgoing)
        elif outgoing.fits:
            self._begin_load(outgoing, now)
        else:
            self._came_beside.discard(slice_)
            self._to_write.append(outgoing.whole)

    def _begin_load(self, outgoing: Outgoing, now: float) -> None:
        (number, _, _, priority), data = outgoing
        message = outgoing.message
        piece_bytes = self.path.datagram_bytes - self._spare_bytes
        is_whole = isinstance(data, memoryview)
        blocks = data if not isinstance(data, memoryview) else _cut(data, piece_bytes)
        reliable = pack_bitmap([block.level == RELIABLE for block in blocks])
        size = sum(len(block.data) for block in blocks)
        beside = Beside(self.sender.next_load, len(blocks), reliable, size, is_whole)
        header = msgspec.structs.replace(message, beside=beside)
        head = encode_head(header) if message.slice in self._came_beside else b""
        self._under_way[self.sender.next_load] = outgoing
        self._slices.add(message.slice)
        self.sender.add(number, head, blocks, priority, piece_bytes, now)
        self._to_write.append(OnConnection(number, header, None, priority))

    def datagrams(self, now: float, envelope_bytes: int, most: int) -> Iterator[tuple[int, bytes]]:
        """What leaves now, of payloads at most so many: numbers and bodies."""
        self.sender.time_out(now)
        for probe in self.path.probes(now):
            yield self.sender.number(), probe.pack()
        answers, self._answers = self._answers, []
        for answer in answers:
            yield self.sender.number(), answer.pack()
        ack = self.receiver.ack(now)
        if ack is not None:
            yield self.sender.number(), ack.pack()
        if self.path.is_open:
            for _ in range(most):
                datagram = self.sender.next(now, envelope_bytes)
                if datagram is None:
                    return
                yield datagram

    def to_write(self, now: float, heard_at: float) -> list[OnConnection]:
        """What has to go over the connection now: headers, and everything where datagrams no longer pass.

        `heard_at`: when something came on the connection last. Where nothing comes there either, the link is cut, and
        nothing is to be gained.
        """
        is_silent = now >= self.sender.silent_since + SILENT_S
        if is_silent and now - heard_at >= SILENT_S:
            is_silent, self._looked_at = False, now
        if self.path.is_open and (is_silent or self.sender.is_stuck):
            self._fall_back(now)
        to_write, self._to_write = self._to_write, []
        return to_write

    def _fall_back(self, now: float) -> None:
        self.path.lost(now, self._is_of_use)
        self._is_of_use = False
        self._to_write.append(OnConnection(0, FlowBroken(self.sender.next_load), None, 0))
        open_loads = self.sender.drop()
        back = [self._under_way[load] for load in open_loads if load in self._under_way] + self._waiting
        self._to_write += [outgoing.whole for outgoing in back]
        self._under_way, self._waiting = {}, []
        self._slices.clear()
        self._came_beside.clear()

    # -- what comes -------------------------------------------------------------------------------------------

    def announced(self, number: int, message: Carried, now: float) -> None:
        """A header has come on the connection whose payload is beside it. Raises `ProtocolError`."""
        beside = message.beside
        assert beside is not None  # as whoever calls has seen
        fits = (
            beside.size == message.size
            and beside.reliable is None
            and 0 < beside.blocks <= min(beside.size, MOST_BLOCKS)
            if beside.is_whole
            else isinstance(message, Push)
        )
        if not fits:
            raise ProtocolError(
                f"{beside.blocks} blocks of {beside.size} bytes are announced beside {type(message).__name__} of "
                f"{message.size} bytes"
            )
        self.receiver.announced(number, message, beside, now)

    def broken(self, message: FlowBroken) -> None:
        """What was announced comes on the connection. Raises `ProtocolError`."""
        self.receiver.forget(message.below)

    def received(self, number: int, body: bytes | memoryview, now: float) -> None:
        """A datagram has come. Raises `ProtocolError`."""
        if self.receiver.is_known(number):
            return
        packet = unpack(body)
        self._came_at = now
        self.path.begin(now)
        if isinstance(packet, Piece | Parity | Tail):
            self.receiver.received(number, packet, now)
        elif isinstance(packet, Head):
            if self.receiver.received(number, packet, now):
                self._announced(packet, now)
        else:
            self.receiver.noted(number)
            self._heard(packet, now)

    def _heard(self, packet: Receipt | Probe | Probed, now: float) -> None:
        if isinstance(packet, Receipt):
            self._is_of_use |= self.sender.acknowledged(packet, now)
            over = self.sender.take_over()
            for load in over:
                slice_ = self._under_way.pop(load).message.slice
                self._slices.discard(slice_)
                self._came_beside.add(slice_)
            if over:
                self._begin(now)
        elif isinstance(packet, Probed):
            self.path.probed(packet.size, now)
            self.sender.first_round_trip_s = self.path.round_trip_s
        else:
            self._answers.append(Probed(packet.size))

    def _announced(self, packet: Head, now: float) -> None:
        try:
            message = decode_head(packet.head)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"a datagram with a header that is none: {error}") from error
        if not isinstance(message, Carried) or message.beside is None or message.beside.load != packet.load:
            raise ProtocolError(f"a {type(message).__name__} announces load {packet.load}")
        self._admit(message)
        self.announced(packet.number, message, now)

    def closed(self, now: float) -> list[Delivered]:
        """The loads that close now. Raises `ProtocolError` where one is not what was announced."""
        return [_joined(delivery) for delivery in self.receiver.closed(now)]

    def why_stuck(self, now: float, heard_at: float) -> str:
        """Why the peer is to be connected to again: nothing new comes of what it has announced; empty: it need not be.

        `heard_at`: when something came on the connection last. Where nothing comes there either, nobody is to blame.
        """
        if now < self.receiver.still_since + STUCK_S:
            return ""
        if now - heard_at < SILENT_S:
            return f"it has announced blocks, and sent none of them for {STUCK_S:.0f} s"
        self.receiver.excuse(now)
        return ""

    # -- when, and what of it -----------------------------------------------------------------------------------

    def next_at(self) -> float:
        """When to call `datagrams`, `to_write`, `closed` and `why_stuck`, if nothing comes before; inf: not at all."""
        at = min(self.path.next_at(), self.receiver.next_at(), self.receiver.still_since + STUCK_S)
        if not self.path.is_open:
            return at
        looks_at = max(self.sender.silent_since + SILENT_S, self._looked_at + LOOK_EVERY_S)
        return min(at, self.sender.next_at(), looks_at)

    def news(self, now: float) -> bool | None:
        """Whether datagrams pass, each time that this has become known, or is otherwise; else None. `WHY` says why.

        Whoever has listened says only what the other end cannot know: that nothing passes, while something comes.
        """
        state = self.path.state
        if state in (self._told, "waiting", "trying"):
            return None
        if not self._dials and now - self._came_at >= SILENT_S:
            return None
        self._told = state
        return state == "open"

    @property
    def counts(self) -> FlowCounts:
        """What was sent, and what has come."""
        sender, receiver = self.sender, self.receiver
        return FlowCounts(
            sender.sent,
            sender.again,
            receiver.came,
            receiver.late,
            receiver.dropped,
            sender.parities,
            receiver.rebuilt,
        )


def _cut(data: memoryview, piece_bytes: int) -> list[BlockOut]:
    """A payload as it stands, in blocks that fit a datagram; of the largest, in fewer that do not."""
    step = piece_bytes * max(1, -(-len(data) // (piece_bytes * MOST_BLOCKS)))
    return [
        BlockOut(start, min(start + step, len(data)), data[start : start + step], RELIABLE)
        for start in range(0, len(data), step)
    ]


def _joined(delivery: Delivered) -> Delivered:
    """What was cut into bytes is put together. Raises `ProtocolError`."""
    message, blocks = delivery.message, delivery.payload
    assert isinstance(message, Carried)
    assert isinstance(blocks, Blocks)
    if message.beside is None or not message.beside.is_whole:
        return delivery
    end = 0
    for block in blocks.blocks:
        if block.start != end or block.stop - block.start != len(block.data):
            raise ProtocolError(f"bytes {block.start} to {block.stop} of a payload follow byte {end}")
        end = block.stop
    if end != message.size or not all(blocks.came):
        raise ProtocolError(f"a payload of {end} bytes, where {message.size} were announced")
    plain = msgspec.structs.replace(message, beside=None)
    return Delivered(delivery.number, plain, bytearray().join(block.data for block in blocks.blocks))
