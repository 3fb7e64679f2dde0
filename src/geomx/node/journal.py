"""What a shard has decided, in a log that outlives it: whoever is started in its place decides the same again.

Whatever follows from a decision is told when the log has it (`behind`): updates of a round, a roster, the word that
somebody has left. So nobody knows more of the run than the log, and nothing that was told is taken back.

What is in the log is what a shard cannot find out again: the model, hyper-parameters, each closed round with the bytes
of its contributions, who takes part. From these the same code makes the same weights, optimizer state, anchors and
residuals, bit for bit. Rounds that are open are not in it: whoever has contributed keeps that until it is answered.

It grows by what comes up, for as long as the run lasts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import msgspec
import torch

from geomx.errors import ProtocolError
from geomx.node.contract import Persist
from geomx.rounds.round import Round
from geomx.wire.messages import Attach, Hyper, Kind, Leave, Push, Scale
from geomx.wire.roster_messages import Roster


class Contribution(msgspec.Struct, frozen=True, array_like=True):
    """One of a round. `place`: in the order of adding; `size`: of its payload, -1: it has none."""

    place: int
    push: Push
    size: int


class ClosedRound(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A round, with the payloads of its contributions one behind the other."""

    slice: int
    cohort: str
    turn: int
    kind: Kind
    contributions: tuple[Contribution, ...]
    handed_over: tuple[Contribution, ...] = ()


HYPERS_KEPT = 4096  # fewer than a shard keeps
Record = Attach | Hyper | ClosedRound | Scale | Roster | Leave
_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(Record).decode


class Journal:
    """Of one server. `persist(effect)`: has the driver write it; None: it keeps no log.

    Attributes:
        is_replaying: What happens now has happened before, and is in the log already.
    """

    def __init__(self, persist: Callable[[Persist], None] | None) -> None:
        self._persist = persist
        self._hypers: dict[bytes, None] = {}  # that are in the log, the oldest first
        self._written = self._stored = 0  # how many records
        self._behind: deque[tuple[int, Callable[[], None]]] = deque()
        self.is_replaying = False

    @property
    def is_kept(self) -> bool:
        """Whether there is one."""
        return self._persist is not None

    def write(self, record: Record, payload: Sequence[torch.Tensor] = ()) -> None:
        """Put a record into the log."""
        if self._persist is not None and not self.is_replaying:
            self._written += 1
            self._persist(Persist(self._written, _encode(record), payload))

    def hyper(self, message: Hyper) -> None:
        """Hyper-parameters that rounds will name: each of those that tell them tells the same."""
        if message.digest not in self._hypers:
            self._hypers[message.digest] = None
            if len(self._hypers) > HYPERS_KEPT:
                del self._hypers[next(iter(self._hypers))]
            self.write(message)

    def closed(self, index: int, round_: Round) -> None:
        """A round of a slice has closed."""
        if self._persist is None or self.is_replaying:
            return
        payloads: list[torch.Tensor] = []

        def of(each: tuple[int, Push, Any]) -> Contribution:
            place, push, payload = each
            if payload is not None:
                payloads.append(payload)
            return Contribution(place, push, -1 if payload is None else payload.nbytes)

        contributions = tuple(map(of, round_.contributions))
        handed_over = tuple(map(of, round_.handed_over))
        self.write(
            ClosedRound(index, round_.cohort, round_.turn, round_.kind, contributions, handed_over), payloads
        )

    def behind(self, then: Callable[[], None]) -> None:
        """Go on when all is in the log that was written until now."""
        if self._stored == self._written:
            then()
        else:
            self._behind.append((self._written, then))

    @contextmanager
    def replaying(self) -> Iterator[None]:
        """What happens within has happened before, and is in the log already."""
        self.is_replaying = True
        try:
            yield
        finally:
            self.is_replaying = False

    def stored(self, number: int) -> None:
        """So many records are in the log."""
        self._stored = number
        while self._behind and self._behind[0][0] <= number:
            self._behind.popleft()[1]()


def read(header: bytes) -> Record:
    """A record. Raises `ProtocolError` where it is of another version of geomx."""
    try:
        record: Record = _decode(header)
    except msgspec.DecodeError as error:
        raise ProtocolError(
            f"the store has a record that this version of geomx cannot read: {error}"
        ) from error
    return record


def round_of(record: ClosedRound, payload: torch.Tensor) -> Round:
    """The round, as it was when it closed."""
    found = Round(record.turn, record.cohort, record.kind, 0.0)
    pieces = _pieces(payload, (*record.contributions, *record.handed_over))
    for each in record.contributions:
        found.contributions.append((each.place, each.push, next(pieces)))
        found.origins.update(each.push.origins)
    found.handed_over = [(each.place, each.push, next(pieces)) for each in record.handed_over]
    return found


def _pieces(payload: torch.Tensor, of: Iterable[Contribution]) -> Iterator[torch.Tensor | None]:
    at = 0
    for each in of:
        if each.size < 0:
            yield None
        else:
            yield payload[at : at + each.size]
            at += each.size
