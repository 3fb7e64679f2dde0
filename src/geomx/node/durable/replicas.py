"""A shard's log in the memory of the next shard, where a run has no store: chain replication, of one link.

What a shard decides goes to its *keeper*, and what follows from it is told once that has it; so the death of one shard
costs nothing that was told. Whoever is started in its place asks its keeper first, and lets in nobody before it has
the answer. A keeper that was started again has nothing: it is sent a cut, and until that has come a second death ends
the run. As in the parameter server (Li et al., OSDI 2014, section 4.3), what is kept is of closed rounds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

import torch

from geomx.errors import GeomxError, NodeLost, ProtocolError
from geomx.node.contract import Cut, Mark, Persist
from geomx.node.peers.peer import Handler, Peer
from geomx.wire.copy_messages import Keep, Kept, Recall, Recalled
from geomx.wire.messages import payload_size
from geomx.wire.roster_messages import Message

PRIORITY = 1  # behind what shards say to each other; equal, so that pieces stay in order
MOST_PIECE_BYTES = 1 << 31
Pieces = Sequence[torch.Tensor]  # a record's header and payload, as bytes


class ReplicasHost(Protocol):
    """The shard around it."""

    name: str

    @property
    def now(self) -> float: ...
    def peer(self, name: str) -> Peer | None: ...
    def send(self, peer: Peer, message: Message, payload: Any = None, priority: int = 0) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: Any) -> None: ...
    def on_persisted(self, number: int) -> None: ...
    def on_cut_stored(self, error: GeomxError | None) -> None: ...
    def on_restored(self, records: Iterable[tuple[bytes, Any]]) -> None: ...
    def copy_is_gone(self) -> None: ...
    def is_restored(self) -> None: ...


class Copy:
    """Another shard's log: what stands for its beginning, and the records behind that."""

    def __init__(self) -> None:
        self._cut: list[Pieces] = []
        self._records: deque[tuple[int, Pieces]] = deque()
        self._coming: list[torch.Tensor] = []  # the pieces of one record
        self._new_cut: list[Pieces] = []
        self.last = 0
        self.is_whole = False

    def begin(self) -> None:
        """Another process of its owner writes from now on."""
        self._coming, self._new_cut = [], []

    def take(self, message: Keep, piece: torch.Tensor) -> Kept | None:
        """Keep a piece; returns what its owner is to be told, if anything."""
        self._coming.append(piece)
        if message.more:
            return None
        record, self._coming = self._coming, []
        if message.of == "log":
            if message.number > self.last:
                self.is_whole = self.is_whole or message.number == 1
                self._records.append((message.number, record))
                self.last = message.number
            return Kept(message.number)
        self._new_cut.append(record)
        if message.of == "cut":
            return None
        self._cut, self._new_cut = self._new_cut, []
        while self._records and self._records[0][0] <= message.number:
            self._records.popleft()
        self.last, self.is_whole = max(self.last, message.number), True
        return Kept(message.number, cut=True)

    def __iter__(self) -> Iterator[Pieces]:
        yield from self._cut
        yield from (record for _, record in self._records)


class Replicas:
    """Of one shard. `keeper`: who keeps its log; `owner`: whose log it keeps; `above`: handles all else."""

    def __init__(self, host: ReplicasHost, keeper: str, owner: str, above: Handler) -> None:
        self._host, self._keeper, self._owner, self._above = host, keeper, owner, above
        self._copy = Copy()
        self._unkept: deque[tuple[int, Pieces]] = deque()
        self._base = self._last = 0  # records of former processes; with this one's
        self._marked = 0
        self.is_restoring = True
        self._began = 0.0
        self._recalled: list[list[torch.Tensor]] = [[]]  # records, of which the last is still to come
        self._early: list[tuple[Peer, Message, Any]] = []

    # -- its own log --------------------------------------------------------------------------------------------

    def keep(self, effect: Persist | Mark | Cut) -> None:
        """Have the keeper do what a driver does with a store."""
        if isinstance(effect, Persist):
            self._last = self._base + effect.number
            record = _pieces(effect.header, effect.payload)
            self._unkept.append((self._last, record))
            self._send(self._last, "log", record)
        elif isinstance(effect, Mark):
            self._marked = self._last
        else:
            *records, last = (_pieces(header, payload) for header, payload in effect.records)
            for record in records:
                self._send(self._marked, "cut", record)
            self._send(self._marked, "whole", last)
        self.look()

    def look(self) -> None:
        """A keeper that has left in order needs to keep nothing: the run is over."""
        keeper = self._host.peer(self._keeper)
        if keeper is not None and keeper.has_gone and not self.is_restoring:
            self._kept(Kept(self._last))
            self._host.on_cut_stored(None)

    def opened(self, peer: Peer, first: bool) -> None:
        """A shard's session is open, `first` with this incarnation."""
        if first and peer.name == self._owner:
            self._copy.begin()
        if not first or peer.name != self._keeper:
            return
        if self.is_restoring:
            self._began, self._recalled = self._host.now, [[]]
            self._host.send(peer, Recall())
            return
        for number, record in self._unkept:
            self._send(number, "log", record)
        if self._last:
            self._host.copy_is_gone()

    def _send(self, number: int, of: Any, record: Pieces) -> None:
        peer = self._host.peer(self._keeper)
        if peer is not None:
            for place, piece in enumerate(record, 1):
                self._host.send(peer, Keep(number, of, place < len(record), piece.numel()), piece, PRIORITY)

    def _kept(self, message: Kept) -> None:
        if message.cut:
            self._host.on_cut_stored(None)
            return
        while self._unkept and self._unkept[0][0] <= message.number:
            self._unkept.popleft()
        if message.number > self._base:
            self._host.on_persisted(message.number - self._base)

    def _restore(self, message: Recalled) -> None:
        if message.is_lost:
            why = f"it and {self._keeper}, which keeps its log (run.replicas), have both died within seconds"
            raise NodeLost(self._host.name, why)
        records, self._recalled = self._recalled[:-1], [[]]
        self._base = self._last = message.number
        self.is_restoring = False
        if records:
            self._host.on_restored((_bytes(head), _joined(payload)) for head, *payload in records)
            self._host.note("restored", "info", seconds=self._host.now - self._began, term=0)
        self._host.is_restored()
        early, self._early = self._early, []
        for peer, told, payload in early:
            if self._host.peer(peer.name) is peer:
                self._above.on_message(peer, told, payload)

    # -- messages -----------------------------------------------------------------------------------------------

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """From another shard."""
        if isinstance(message, Keep) and message.of == "recalled" and peer.name == self._keeper:
            self._recalled[-1].append(payload)
            if not message.more:
                self._recalled.append([])
        elif isinstance(message, Keep) and message.of != "recalled" and peer.name == self._owner:
            if (kept := self._copy.take(message, payload)) is not None:
                self._host.send(peer, kept)
        elif isinstance(message, Kept) and peer.name == self._keeper:
            self._kept(message)
        elif isinstance(message, Recall) and peer.name == self._owner:
            self._give_back(peer)
        elif isinstance(message, Recalled) and peer.name == self._keeper and self.is_restoring:
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

    def _give_back(self, peer: Peer) -> None:
        is_lost = not self._copy.is_whole and (self._copy.last > 0 or self._last > 0)
        for record in () if is_lost else self._copy:
            for place, piece in enumerate(record, 1):
                self._host.send(
                    peer, Keep(0, "recalled", place < len(record), piece.numel()), piece, PRIORITY
                )
        self._host.send(peer, Recalled(self._copy.last, is_lost), priority=PRIORITY)


def _pieces(header: bytes, payload: Sequence[torch.Tensor]) -> Pieces:
    whole = (each.reshape(-1).view(torch.uint8) for each in payload)
    return [torch.frombuffer(bytearray(header), dtype=torch.uint8), *(each for each in whole if each.numel())]


def _bytes(piece: torch.Tensor) -> bytes:
    return piece.numpy().tobytes()


def _joined(payload: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.cat(list(payload)) if payload else torch.empty(0, dtype=torch.uint8)
