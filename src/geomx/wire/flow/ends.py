"""What the two ends of a connection do beside it: the flow, the path, and the way back onto the connection.

A `SendingEnd` belongs to whoever dials, a `ReceivingEnd` to whoever listens: payloads may only be lost on their way up,
since all receivers of an update must have the same bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from math import inf
from typing import Any, NamedTuple

import msgspec

from geomx.errors import ProtocolError
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.counts import FlowCounts
from geomx.wire.flow.packets import (
    MOST_BLOCKS,
    PIECE_HEAD_BYTES,
    Ack,
    Head,
    Parity,
    Piece,
    Probe,
    Probed,
    Tail,
    unpack,
)
from geomx.wire.flow.parity import EXTRA_BYTES, Coding
from geomx.wire.flow.path import Path, State
from geomx.wire.flow.receiver import Delivery, FlowReceiver
from geomx.wire.flow.sender import RELIABLE, BlockOut, FlowSender, FlowTerms
from geomx.wire.messages import Beside, Message, Push, decode_head, encode_head
from geomx.wire.presence import pack as pack_bitmap

SILENT_S = 2.0  # without a word of what was sent, the connection carries everything
LOOK_EVERY_S = 0.25  # then, whether the connection is silent as well
STUCK_S = 10.0  # without anything new of what was announced
WHY = {True: "what is sent by UDP is answered", False: "nothing of what is sent by UDP is answered"}


class Whole(NamedTuple):
    """A message as it goes over the connection: number, header, payload and priority, as in `Write`."""

    number: int
    message: Push
    payload: Any
    priority: int


class SendingEnd:
    """Of whoever dials."""

    def __init__(self, congestion: Congestion, terms: FlowTerms, now: float) -> None:
        self.sender = FlowSender(congestion, terms)
        self._spare_bytes = PIECE_HEAD_BYTES + (EXTRA_BYTES if terms.coding else 0)
        self.path = Path(now)
        self._told: State = "trying"
        self._looked_at = -inf
        self._last_probe = -1  # its number: what is sent behind it needs an open path
        self._is_of_use = False  # the path: something of that has come
        self._wholes: dict[int, Whole] = {}  # by load

    def write(self, whole: Whole, blocks: Sequence[BlockOut], now: float) -> Push | None:
        """Take a payload in; returns the header for the connection. None: the connection has to carry all of it."""
        if not (self.path.is_open and self.sender.has_room and 0 < len(blocks) <= MOST_BLOCKS):
            return None
        piece_bytes = self.path.datagram_bytes - self._spare_bytes
        self._wholes[self.sender.next_load] = whole
        reliable = pack_bitmap([block.level == RELIABLE for block in blocks])
        size = sum(len(block.data) for block in blocks)
        beside = Beside(self.sender.next_load, len(blocks), reliable, size)
        header = msgspec.structs.replace(whole.message, beside=beside)
        self.sender.add(whole.number, encode_head(header), blocks, whole.priority, piece_bytes, now)
        return header

    def datagrams(self, now: float, envelope_bytes: int, most: int) -> Iterator[tuple[int, bytes]]:
        """What leaves now, at most so many: numbers and bodies."""
        self.sender.time_out(now)
        for probe in self.path.probes(now):
            self._last_probe = self.sender.number()
            yield self._last_probe, probe.pack()
        if self.path.is_open:
            for _ in range(most):
                datagram = self.sender.next(now, envelope_bytes)
                if datagram is None:
                    return
                yield datagram

    def next_at(self) -> float:
        """When to call `datagrams` and `fallen_back`, if nothing is heard before; inf: not at all."""
        at = self.path.next_at()
        if not self.path.is_open:
            return at
        looks_at = max(self.sender.silent_since + SILENT_S, self._looked_at + LOOK_EVERY_S)
        return min(at, self.sender.next_at(), looks_at)

    def received(self, body: bytes | memoryview, now: float) -> None:
        """A datagram has come. Raises `ProtocolError`."""
        packet = unpack(body)
        if isinstance(packet, Ack):
            self.sender.acknowledged(packet, now)
            self._is_of_use |= bool(packet.runs) and packet.runs[0][1] > self._last_probe
            for load in self._wholes.keys() - self.sender.open_loads:
                del self._wholes[load]
        elif isinstance(packet, Probed):
            self.path.probed(packet.size, now)
            self.sender.first_round_trip_s = self.path.round_trip_s
        else:
            raise ProtocolError(f"a {type(packet).__name__} was sent down")

    def fallen_back(self, now: float, heard_at: float) -> list[Whole]:
        """What has to go over the connection now, since datagrams no longer pass.

        `heard_at`: when something came on the connection last. Where nothing comes there either, the link is cut, and
        nothing is to be gained.
        """
        is_silent = now >= self.sender.silent_since + SILENT_S
        if is_silent and now - heard_at >= SILENT_S:
            is_silent, self._looked_at = False, now
        if not (self.path.is_open and (is_silent or self.sender.is_stuck)):
            return []
        self.path.lost(now, self._is_of_use)
        self._is_of_use = False
        return [self._wholes.pop(load) for load in self.sender.drop() if load in self._wholes]

    def news(self) -> bool | None:
        """Whether datagrams pass, each time that this has become known, or is otherwise; else None. `WHY` says why."""
        state = self.path.state
        if state in (self._told, "trying"):
            return None
        self._told = state
        return state == "open"

    @property
    def counts(self) -> FlowCounts:
        """What was sent."""
        return FlowCounts(self.sender.sent, self.sender.again, parity=self.sender.parities)


class ReceivingEnd:
    """Of whoever listens. `admit`: raises `ProtocolError` for a header that may not come, as `Node.admit` does.

    `coding`: how parity pieces are made that may come; None: none may.
    """

    def __init__(self, admit: Callable[[Message], None], coding: Coding | None = None) -> None:
        self._admit = admit
        self._has_parity = coding is not None
        self.receiver = FlowReceiver(None if coding is None else coding.code)
        self._answers: list[Probed] = []

    def announced(self, number: int, message: Push, now: float) -> None:
        """A header has come on the connection whose payload is beside it. Raises `ProtocolError`."""
        assert message.beside is not None  # as whoever calls has seen
        self.receiver.announced(number, message, message.beside, now)

    def received(self, number: int, body: bytes | memoryview, now: float) -> None:
        """A datagram has come. Raises `ProtocolError`."""
        packet = unpack(body)
        if isinstance(packet, Piece | Tail) or (isinstance(packet, Parity) and self._has_parity):
            self.receiver.received(number, packet, now)
        elif isinstance(packet, Head):
            if self.receiver.received(number, packet, now):
                self._announced(packet, now)
        elif isinstance(packet, Probe):
            self._answers.append(Probed(packet.size))
        else:
            raise ProtocolError(f"a {type(packet).__name__} was sent up")

    def _announced(self, packet: Head, now: float) -> None:
        try:
            message = decode_head(packet.head)
        except (msgspec.MsgspecError, ValueError, RecursionError) as error:
            raise ProtocolError(f"a datagram with a header that is none: {error}") from error
        if not isinstance(message, Push) or message.beside is None or message.beside.load != packet.load:
            raise ProtocolError(f"a {type(message).__name__} announces load {packet.load}")
        self._admit(message)
        self.announced(packet.number, message, now)

    def closed(self, now: float, heard_at: float) -> Iterable[Delivery]:
        """The loads that close now. Raises `ProtocolError` where nothing comes any more of what was announced.

        `heard_at`: when something came on the connection last. Where nothing comes there either, nobody is to blame.
        """
        if now >= self.receiver.still_since + STUCK_S:
            if now - heard_at < SILENT_S:
                raise ProtocolError(f"it has announced blocks, and sent none of them for {STUCK_S:.0f} s")
            self.receiver.excuse(now)
        return self.receiver.closed(now)

    def bodies(self, now: float) -> Iterator[bytes]:
        """What is to be sent back now."""
        answers, self._answers = self._answers, []
        for answer in answers:
            yield answer.pack()
        ack = self.receiver.ack(now)
        if ack is not None:
            yield ack.pack()

    def next_at(self) -> float:
        """When to call `closed` and `bodies`, if nothing comes before; inf: not at all."""
        return min(self.receiver.next_at(), self.receiver.still_since + STUCK_S)

    @property
    def counts(self) -> FlowCounts:
        """What has come."""
        receiver = self.receiver
        return FlowCounts(
            came=receiver.came, late=receiver.late, early=receiver.dropped, rebuilt=receiver.rebuilt
        )
