"""A shard's log in the memory of the next shard, where a run has no store: chain replication, of one link.

What a shard decides goes to its *successor*, and what follows from it is told once that has it; so the death of one
shard costs nothing that was told. Whoever is started in its place asks the successor first, and lets in nobody before
it has the answer. A successor that was started again has nothing: it is sent a cut, and until that has come a second
death ends the run. As in the parameter server (Li et al., OSDI 2014, section 4.3), what is kept is of closed rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Literal, Protocol

import torch

from geomx.errors import GeomxError, NodeLost, ProtocolError
from geomx.node.contract import Cut, Mark, Persist
from geomx.node.durable.records import NOTHING
from geomx.node.peers.peer import Handler, Peer
from geomx.wire.copy_messages import Keep, Kept, Recall, Recalled
from geomx.wire.messages import payload_size
from geomx.wire.roster_messages import Message

PRIORITY = 1  # behind what shards say to each other; equal, so that pieces stay in order
MOST_PIECE_BYTES = 1 << 31
LOST = "it and {}, which had its log (run.replicas), have both died within seconds"
Pieces = Sequence[torch.Tensor]  # a record's header and payload, as bytes
Batch = Sequence[Pieces]


class Host(Protocol):
    """The shard around it."""

    name: str

    @property
    def now(self) -> float: ...
    def peer(self, name: str) -> Peer | None: ...
    def send(self, peer: Peer, message: Message, payload: Any = None, priority: int = 0) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: Any) -> None: ...


class Writer(Protocol):
    """Who writes the log, and reads it."""

    def persisted(self, number: int) -> None: ...
    def cut_stored(self, error: GeomxError | None) -> None: ...
    def cut_at_once(self) -> None: ...
    def restored(self, records: Iterable[tuple[bytes, Any]]) -> None: ...
    def is_known(self) -> None: ...


class Copy:
    """Another shard's log: what stands for its beginning, and the batches behind that."""

    def __init__(self) -> None:
        self._cut: Batch = ()
        self._batches: deque[tuple[int, Batch]] = deque()
        self._pieces: list[torch.Tensor] = []  # of a record that is coming
        self._records: list[Pieces] = []  # of a batch that is
        self.last = 0
        self.is_whole = False

    def begin(self) -> None:
        """Another process of the same shard writes from now on."""
        self._pieces, self._records = [], []

    def take(self, message: Keep, piece: torch.Tensor) -> Kept | None:
        """Keep a piece; returns what is to be told, if anything."""
        self._pieces.append(piece)
        if message.more_pieces:
            return None
        self._records.append(self._pieces)
        self._pieces = []
        if message.more_records:
            return None
        batch, self._records = self._records, []
        if message.of == "cut":
            self._cut, self.is_whole = batch, True
            while self._batches and self._batches[0][0] <= message.number:
                self._batches.popleft()
        elif message.number > self.last:
            self.is_whole = self.is_whole or message.number == len(batch)
            self._batches.append((message.number, batch))
        self.last = max(self.last, message.number)
        return Kept(message.number, cut=message.of == "cut")

    def __iter__(self) -> Iterator[Pieces]:
        yield from self._cut
        for _, batch in self._batches:
            yield from batch


class Replicas:
    """Of one shard. `successor` has its log, and it that of `predecessor`; `above` handles all other messages."""

    def __init__(self, host: Host, log: Writer, successor: str, predecessor: str, above: Handler) -> None:
        self._host, self._log, self._above = host, log, above
        self._successor, self._predecessor = successor, predecessor
        self._copy = Copy()
        self._batch: list[Pieces] = []  # that one event has brought about
        self._unkept: deque[tuple[int, Batch]] = deque()
        self._base = self._last = 0  # records of former processes; with this one's
        self._marked: int | None = None  # the record behind which the cut is that is being made
        self.is_restoring = True
        self._began = 0.0
        self._recalled: list[list[torch.Tensor]] = [[]]  # records, of which the last is still to come
        self._early: list[tuple[Peer, Message, Any]] = []

    # -- its own log --------------------------------------------------------------------------------------------

    def keep(self, effect: Persist | Mark | Cut) -> None:
        """Have the successor do what a driver does with a store."""
        if isinstance(effect, Persist):
            self._last = self._base + effect.number
            self._batch.append(_pieces(effect.header, effect.payload))
        elif isinstance(effect, Mark):
            self._marked = self._last
        elif self._marked is not None:
            self._send(self._marked, "cut", [_pieces(header, payload) for header, payload in effect.records])

    def flush(self) -> None:
        """An event is over: what it has brought about is kept as a whole."""
        if self._batch:
            batch, self._batch = self._batch, []
            self._unkept.append((self._last, batch))
            self._send(self._last, "log", batch)
            self.look()

    def look(self) -> None:
        """A successor that has left in order needs to keep nothing: the run is over."""
        peer = self._host.peer(self._successor)
        if peer is not None and peer.has_gone and not self.is_restoring:
            self._kept(Kept(self._last))

    def opened(self, peer: Peer, first: bool) -> None:
        """A shard's session is open, `first` with this incarnation."""
        if first and peer.name == self._predecessor:
            self._copy.begin()
        if not first or peer.name != self._successor:
            return
        if self.is_restoring:
            self._began, self._recalled = self._host.now, [[]]
            self._host.send(peer, Recall())
            return
        self._marked = None  # what comes behind a cut that is being made is not there any more
        for number, batch in self._unkept:
            self._send(number, "log", batch)
        if self._last:
            self._log.cut_at_once()

    def _send(self, number: int, of: Literal["log", "cut", "recalled"], batch: Batch) -> None:
        peer = self._host.peer(self._predecessor if of == "recalled" else self._successor)
        if peer is None:
            return
        for place, record in enumerate(batch, 1):
            for at, piece in enumerate(record, 1):
                told = Keep(number, of, at < len(record), place < len(batch), piece.numel())
                self._host.send(peer, told, piece, PRIORITY)

    def _kept(self, message: Kept) -> None:
        if message.cut:
            self._log.cut_stored(None)
            return
        while self._unkept and self._unkept[0][0] <= message.number:
            self._unkept.popleft()
        if message.number > self._base:
            self._log.persisted(message.number - self._base)

    def _restore(self, message: Recalled) -> None:
        if message.is_lost:
            raise NodeLost(self._host.name, LOST.format(self._successor))
        records, self._recalled = self._recalled[:-1], [[]]
        self._base = self._last = message.number
        self.is_restoring = False
        if records:
            self._log.restored((_bytes(head), _joined(payload)) for head, *payload in records)
            self._host.note("restored", "info", seconds=self._host.now - self._began)
        self._log.is_known()
        early, self._early = self._early, []
        for peer, told, payload in early:
            if self._host.peer(peer.name) is peer:
                self._above.on_message(peer, told, payload)

    # -- messages -----------------------------------------------------------------------------------------------

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """From another shard."""
        is_before, is_behind = peer.name == self._predecessor, peer.name == self._successor
        if isinstance(message, Keep) and message.of == "recalled" and is_behind and self.is_restoring:
            self._recalled[-1].append(payload)
            if not message.more_pieces:
                self._recalled.append([])
        elif isinstance(message, Keep) and message.of != "recalled" and is_before:
            if (kept := self._copy.take(message, payload)) is not None:
                self._host.send(peer, kept)
        elif isinstance(message, Kept) and is_behind:
            self._kept(message)
        elif isinstance(message, Recall) and is_before:
            is_lost = self._copy.last > 0 and not self._copy.is_whole
            self._send(self._copy.last, "recalled", () if is_lost else list(self._copy))
            self._host.send(peer, Recalled(self._copy.last, is_lost), priority=PRIORITY)
        elif isinstance(message, Recalled) and is_behind and self.is_restoring:
            self._restore(message)
        elif isinstance(message, Keep | Kept | Recall | Recalled):
            raise ProtocolError(f"{type(message).__name__} was sent to a shard that does not await it")
        elif self.is_restoring:
            self._early.append((peer, message, payload))
        else:
            self._above.on_message(peer, message, payload)

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Whether another shard may send a payload of that size."""
        if not isinstance(message, Keep):
            self._above.check_payload(peer, message)
        elif not 0 < payload_size(message) <= MOST_PIECE_BYTES:
            raise ProtocolError(f"a piece of a log of {payload_size(message)} bytes is announced")


def _pieces(header: bytes, payload: Sequence[torch.Tensor]) -> Pieces:
    whole = (each.reshape(-1).view(torch.uint8) for each in payload)
    return [torch.frombuffer(bytearray(header), dtype=torch.uint8), *(each for each in whole if each.numel())]


def _bytes(piece: torch.Tensor) -> bytes:
    return piece.numpy().tobytes()


def _joined(payload: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(payload)) if payload else NOTHING
