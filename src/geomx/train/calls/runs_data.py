"""How far the run has read its data, and among whom a pass is shared, as one worker knows."""

from __future__ import annotations

from collections import deque

from geomx.node.port import Ready
from geomx.tree import EVERYONE
from geomx.wire.messages import Update
from geomx.wire.roster_messages import Roster, Standing

MOST_KEPT = 64  # rosters


class RunsData:
    """Of the cohort in which this worker takes its steps. Sets of workers are bitmaps, see `Roster`.

    Attributes:
        passes: As this worker was told when it came back: how many passes over the data the run had ended.
        into_pass: Likewise, how many batches of the next it had read.
    """

    def __init__(self) -> None:
        self.passes = self.into_pass = 0
        self.cohort = EVERYONE
        self._known = Standing()
        self._out: deque[tuple[int, int]] = deque(
            [(0, 0)], maxlen=MOST_KEPT
        )  # from which turn on, who was out
        self._departed: dict[int, int] = {}  # who has left early, behind which turn

    def told(self, ready: Ready) -> None:
        """This worker joins."""
        self._known = self._known.latest(ready.standings.get(self.cohort, Standing()))
        self._out.append((0, _bits(ready.roster.out) | _bits(ready.roster.joined)))  # before
        self.changes(ready.roster)

    def changes(self, roster: Roster) -> None:
        """Others take part from some turn on."""
        self._out.append((roster.from_turns.get(EVERYONE, 0), _bits(roster.out)))

    def departs(self, workers: bytes, last: int) -> None:
        """These have left early, behind this turn of everybody's."""
        self._departed[last] = self._departed.get(last, 0) | _bits(workers)

    def answered(self, update: Update) -> None:
        """The run has made something of what was contributed to a step."""
        if update.cohort != self.cohort or update.kind != "gradient" or update.step < 0:
            return
        passes, batches = update.reading
        absent = self._known.absent
        if passes > self._known.passes:
            absent = self._absent_at(update.turn)
        at = Standing(
            read_at=update.step, read_turn=update.turn, passes=passes, batches=batches, absent=absent
        )
        self._known = self._known.with_steps_of(at)

    def caught_up(self, next_step: int) -> bool:
        """This worker has what the run has made, and takes the policy's step `next_step` next.

        Returns whether it is known how far the data has been read.
        """
        known = self._known
        self.passes = known.passes
        self.into_pass = known.batches + max(0, next_step - 1 - known.read_at)
        return known.read_at >= 0

    def loaded(self, epoch: int, absent: bytes) -> None:
        """A checkpoint was written in this pass."""
        known = self._known
        self._known = Standing(read_at=known.read_at, read_turn=known.read_turn, passes=epoch, absent=absent)

    @property
    def away(self) -> bytes:
        """The workers that take no part, as far as is known."""
        _, out = self._out[-1]
        for workers in self._departed.values():
            out |= workers
        return _bytes(out)

    def absent(self, epoch: int) -> bytes:
        """Among whom a pass is not shared, since they took no part when it began."""
        return self._known.absent if epoch == self._known.passes else b""

    def _absent_at(self, turn: int) -> bytes:
        """Who took no part in a turn: all that hear its answer have heard of them before."""
        if self.cohort != EVERYONE:  # of those who do not move in step, each hears of others at another time
            return b""
        absent = next(out for first, out in reversed(self._out) if first <= turn)
        for last, workers in self._departed.items():
            absent |= workers if last < turn else 0
        return _bytes(absent)


def _bits(bitmap: bytes) -> int:
    return int.from_bytes(bitmap, "little")


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
