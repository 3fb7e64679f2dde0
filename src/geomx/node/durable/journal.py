"""What a shard has decided, in a log that outlives it: whoever is started in its place decides the same again.

Whatever follows from a decision is told when the log has it (`behind`): updates of a round, a roster, the word that
somebody has left. So nobody knows more of the run than the log, and nothing that was told is taken back.

What is in the log is what a shard cannot find out again: the model, hyper-parameters, each closed round with the bytes
of its contributions, who takes part. From these the same code makes the same weights, optimizer state, anchors and
residuals, bit for bit. Rounds that are open are not in it, but for promised ones: whoever has contributed keeps that
until it is answered.
"""

from __future__ import annotations

import operator
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from geomx.node.contract import Persist
from geomx.node.durable.records import ClosedRound, Promised, Record, encode, handed_in, record_of
from geomx.rounds.round import Round
from geomx.wire.messages import Hyper, Push
from geomx.wire.roster_messages import Roster

HYPERS_KEPT = 4096  # fewer than a shard keeps
MOST_PROMISED = 1 << 16


class Journal:
    """Of one server. `persist(effect)`: has the driver write it; None: it keeps no log.

    Attributes:
        written: How many records are, or will be, in the log.
        bytes: Of their payloads.
        is_replaying: What happens now has happened before, and is in the log already.
    """

    def __init__(self, persist: Callable[[Persist], None] | None) -> None:
        self._persist = persist
        self._hypers: dict[bytes, None] = {}  # that are in the log, the oldest first
        self.written = self._stored = self.bytes = 0
        self._behind: deque[tuple[int, Callable[[], None]]] = deque()
        self._promised: dict[
            tuple[int, str, int], tuple[Round, list[Any]]
        ] = {}  # with its contributions then
        self.is_replaying = False

    @property
    def is_kept(self) -> bool:
        """Whether there is one."""
        return self._persist is not None

    @property
    def is_stored(self) -> bool:
        """Whether all is in the log that was written."""
        return self._stored == self.written

    def write(self, record: Record, payload: Sequence[torch.Tensor] = ()) -> None:
        """Put a record into the log."""
        if isinstance(record, Roster):  # others take part
            self._promised.clear()
        if self._persist is not None and not self.is_replaying:
            self.written += 1
            self.bytes += sum(piece.nbytes for piece in payload)
            self._persist(Persist(self.written, encode(record), payload))

    def hyper(self, message: Hyper) -> None:
        """Hyper-parameters that rounds will name: each of those that tell them tells the same."""
        if message.digest not in self._hypers:
            self._hypers[message.digest] = None
            if len(self._hypers) > HYPERS_KEPT:
                del self._hypers[next(iter(self._hypers))]
            self.write(message)

    def handed_in(self, giver: tuple[str, int], handed: tuple[int, Push, Any]) -> None:
        """A child that leaves has given up something."""
        self.write(*handed_in(giver, handed))

    def promised(self, index: int, round_: Round) -> None:
        """A round of a slice will close as it is, unless others take part."""
        key = index, round_.cohort, round_.turn
        if self._is_as_promised(key, round_):
            return
        self._promised[key] = round_, list(round_.contributions)
        if len(self._promised) > MOST_PROMISED:
            del self._promised[next(iter(self._promised))]
        record, payload = record_of(index, round_)
        self.write(Promised(record), payload)

    @property
    def promises(self) -> list[tuple[Promised, list[torch.Tensor]]]:
        """What is promised, and open."""
        every = [
            record_of(key[0], round_)
            for key, (round_, _) in self._promised.items()
            if self._is_as_promised(key, round_)
        ]
        return [(Promised(record), payload) for record, payload in every]

    def _is_as_promised(self, key: tuple[int, str, int], round_: Round) -> bool:
        known, contributions = self._promised.get(key, (None, []))
        same = len(contributions) == len(round_.contributions)
        return known is round_ and same and all(map(operator.is_, contributions, round_.contributions))

    def closed(self, index: int, round_: Round) -> None:
        """A round of a slice has closed."""
        if not self.is_kept:
            return
        key = index, round_.cohort, round_.turn
        is_promised = self._is_as_promised(key, round_) and not round_.handed_over
        self._promised.pop(key, None)
        if self.is_replaying:
            return
        if is_promised:
            self.write(ClosedRound(*key, round_.kind, None))
        else:
            self.write(*record_of(index, round_))

    def behind(self, then: Callable[[], None]) -> None:
        """Go on when all is in the log that was written until now."""
        if self.is_stored:
            then()
        else:
            self._behind.append((self.written, then))

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
