"""How far the run has read its data, and among whom a pass is shared, as one worker knows."""

from __future__ import annotations

from geomx.node.port import Ready
from geomx.node.slices.join_state import read_behind
from geomx.rounds.absences import Absences
from geomx.tree import EVERYONE
from geomx.wire.messages import UNREAD, Place, Reading, Update
from geomx.wire.roster_messages import Roster, Standing


class RunsData:
    """Of the cohort in which this worker takes its steps. Sets of workers are bitmaps, see `Roster`.

    Attributes:
        reading: How far the others were when this worker came back.
        is_known: Whether it was told that.
        absences: Who took no part in which turn.
    """

    def __init__(self) -> None:
        self.reading = UNREAD
        self.is_known = False
        self.cohort = EVERYONE
        self._known = Standing()
        self.absences = Absences()

    def told(self, ready: Ready) -> None:
        """This worker joins."""
        first = Standing(absent=b"" if ready.roster.number else ready.roster.out)
        self._known = self._known.latest(ready.standings.get(self.cohort, first))
        before = _bits(ready.roster.out) | _bits(ready.roster.joined)
        self.absences.changes(0, _bytes(before))
        self.changes(ready.roster)

    def changes(self, roster: Roster) -> None:
        """Others take part from some turn on."""
        self.absences.changes(roster.from_turns.get(EVERYONE, 0), roster.out)

    def answered(self, update: Update) -> None:
        """The run has made something of what was contributed to a step."""
        if update.cohort != self.cohort or update.kind != "gradient" or update.step < 0:
            return
        # Of those who do not move in step, each hears of others at another time.
        out = self.absences.in_turn(update.turn) if self.cohort == EVERYONE else b""
        self._known = self._known.with_steps_of(read_behind(self._known, update, out))

    def caught_up(self, next_step: int) -> None:
        """This worker has what the run has made, and takes the policy's step `next_step` next."""
        known = self._known
        since = max(0, next_step - 1 - known.read_at)
        self.reading = Reading(known.passes, known.batches + since, known.taken + since)
        self.is_known = known.read_at >= 0

    def found(self, reading: Reading) -> None:
        """This worker has seen by itself how far the others are."""
        self.reading, self.is_known = reading, True

    def place_beside(self, place: Place) -> Place:
        """Where a script is beside the others, who have gone on without it from this place."""
        if not self.is_known:
            return place
        passes, batches, steps = self.reading
        return Place(passes, (batches,), steps, place.weight, place.first_loss)

    def take_batches(self) -> int:
        """How many batches of the running pass the others had read when this worker came back; said once."""
        passes, batches, steps = self.reading
        self.reading = Reading(passes, 0, steps)
        return batches

    def loaded(self, place: Place, absent: bytes) -> None:
        """All go on from a checkpoint that was written at this place, among whom its pass is not shared."""
        known = self._known
        self._known = Standing(
            read_at=known.read_at,
            read_turn=known.read_turn,
            passes=place.epoch,
            absent=absent,
            taken=place.steps,
        )

    def absent(self, epoch: int) -> bytes:
        """Among whom a pass is not shared, since they took no part when it began."""
        return self._known.absent if epoch == self._known.passes else b""


def _bits(bitmap: bytes) -> int:
    return int.from_bytes(bitmap, "little")


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
