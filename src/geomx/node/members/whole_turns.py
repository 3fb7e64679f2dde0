"""When turns that count as a whole close on several shards: once all that have slices of one have all of it.

The others tell the first shard, which names the turn; then each closes its slices. A roster that changes who takes part
makes all of them say so again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from geomx.bits import places_of
from geomx.wire.roster_messages import Close, Complete

MOST_NAMED = 64  # turns that are remembered


class WholeTurns:
    """One shard's part.

    Args:
        me: The shard.
        shards: All; the first leads.
        tell: Tells the first shard what is complete here, and keeps to that.
        close: Tells another shard that a turn has closed here.
        named: Called where a turn may close here.
        may_close: Whether anything may close now.
    """

    def __init__(
        self,
        me: str,
        shards: Sequence[str],
        tell: Callable[[Complete], None],
        close: Callable[[str, Close], None],
        named: Callable[[str, int], None],
        may_close: Callable[[], bool],
    ) -> None:
        self._me, self._shards = me, tuple(shards)
        self._tell, self._close, self._named, self._may_close = tell, close, named, may_close
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
        if self._me == self._shards[0]:
            self._come(self._me, message)
        elif self._told.get(key) != message.number:
            self._told[key] = message.number
            self._forget(self._told)
            self._tell(message)
        return False

    def complete(self, shard: str, message: Complete, closed: int) -> None:
        """Another shard has all of a turn. `closed`: the last of its cohort that has closed here."""
        if (message.cohort, message.turn) in self._closing or message.turn <= closed:  # it was started again
            self._close(shard, Close(message.cohort, message.turn))
        else:
            self._come(shard, message)

    def _come(self, shard: str, message: Complete) -> None:
        """A shard has all of a turn; where all have, it closes here, and only then elsewhere."""
        key = message.cohort, message.turn
        come = self._complete.setdefault(key, {})
        self._forget(self._complete)
        come[shard] = message.number
        slices = [index for index in places_of(message.together) if index < len(self._table)]
        holders = {self._shards[self._table[index]] for index in slices}
        if not holders or any(come.get(holder) != message.number for holder in holders):
            return
        if self._me in holders and not self._may_close():
            return
        del self._complete[key]
        self._closing[key] = message.number
        self._forget(self._closing)
        self._named(*key)
        for other in sorted(holders - {self._me}):
            self._close(other, Close(*key))

    @staticmethod
    def _forget(of: dict[tuple[str, int], Any]) -> None:
        while len(of) > MOST_NAMED:
            del of[next(iter(of))]
