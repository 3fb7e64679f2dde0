"""When turns that count as a whole close on several shards: once all that have slices of one have all of it.

The others tell the first shard, which names the turn; then each closes its slices. A roster that changes who takes part
makes all of them say so again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from geomx.bits import places_of
from geomx.wire.roster_messages import Close, Complete, Message

MOST_NAMED = 64  # turns that are remembered


class WholeTurns:
    """One shard's part. `shards`: all, this one as `me`; the first leads. `named(cohort, turn)`: one may close here."""

    def __init__(
        self,
        me: str,
        shards: Sequence[str],
        send: Callable[[str, Message], None],
        named: Callable[[str, int], None],
    ) -> None:
        self._me, self._shards, self._send, self._named = me, tuple(shards), send, named
        self._told: dict[tuple[str, int], int] = {}  # to the first shard: by which roster
        self._complete: dict[tuple[str, int], dict[str, int]] = {}  # by shard: by which roster
        self._closing: dict[tuple[str, int], int] = {}  # turns that were named, by which roster
        self._table: Sequence[int] = ()  # which shard holds each slice, by number

    def renewed(self) -> None:
        """Another shard was started again: tell it once more."""
        self._told.clear()

    def begin(self, table: Sequence[int]) -> None:
        """The model is known."""
        self._table = table

    def agrees(self, message: Complete) -> bool:
        """A turn is complete here: whether it may close at once."""
        if len(self._shards) == 1:
            return True
        key = message.cohort, message.turn
        if self._me != self._shards[0]:
            if self._told.get(key) != message.number:
                self._told[key] = message.number
                self._forget(self._told)
                self._send(self._shards[0], message)
            return False
        return self._has_come(self._me, message)

    def complete(self, shard: str, message: Complete) -> None:
        """Another shard has all of a turn."""
        if (message.cohort, message.turn) in self._closing:  # it was started again
            self._send(shard, Close(message.cohort, message.turn))
        elif self._has_come(shard, message):
            self._named(message.cohort, message.turn)

    def _has_come(self, shard: str, message: Complete) -> bool:
        come = self._complete.setdefault((message.cohort, message.turn), {})
        self._forget(self._complete)
        come[shard] = message.number
        slices = [index for index in places_of(message.together) if index < len(self._table)]
        holders = {self._shards[self._table[index]] for index in slices}
        if not holders or any(come.get(holder) != message.number for holder in holders):
            return False
        del self._complete[message.cohort, message.turn]
        self._closing[message.cohort, message.turn] = message.number
        self._forget(self._closing)
        for other in holders - {self._me}:
            self._send(other, Close(message.cohort, message.turn))
        return True

    @staticmethod
    def _forget(of: dict[tuple[str, int], Any]) -> None:
        while len(of) > MOST_NAMED:
            del of[next(iter(of))]
