"""Where every slice stands at a server, for whoever joins a run that has begun."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from geomx.errors import ProtocolError
from geomx.node.slices.patched import whole
from geomx.rounds.round import Round
from geomx.tree import EVERYONE
from geomx.wire.messages import UNREAD, Reached, Update
from geomx.wire.roster_messages import Standing, Standings

REACHED_KEPT = 8  # of each worker: turns that are under way, and the last one that is over
CANNOT_REJOIN = (
    "cannot rejoin: only the workers have the weights, since the optimizer runs there (clip_norm moves it there); set "
    'run.on_loss = "wait" or optimizer.place = "server" to keep it on the global servers'
)
PASSES_LIMIT = 16  # over its shares that a worker's script can have under way


class SliceStanding(NamedTuple):
    """By cohort: what it holds, values and their version; before a step that is answered in part; its last turn."""

    held: dict[str, tuple[Any, int]]
    before: dict[str, tuple[int, tuple[Any, int] | None]]
    answered: dict[str, int]


class JoinState:
    """What went down last of each slice, to each cohort, and how far the policy and the workers' scripts have come.

    `absent`: who takes no part in the run's first pass; a bitmap.
    """

    def __init__(self, absent: bytes = b"") -> None:
        self._first = Standing(absent=absent)
        self._held: dict[
            int, dict[str, tuple[Any, int]]
        ] = {}  # by slice and cohort: values and their version
        self._answered: dict[int, dict[str, int]] = {}  # by slice and cohort: the last turn
        self._steps: dict[str, Standing] = {}  # by cohort: its steps and passes, without its turn
        self._reached: dict[str, deque[Reached]] = {}  # by worker
        self._before: dict[
            str, tuple[int, dict[int, tuple[Any, int] | None]]
        ] = {}  # by cohort: a turn, its slices as they were before

    @property
    def slices(self) -> int:
        """How many have been answered at all; 0: the run has not begun."""
        return len(self._answered)

    def forget(self) -> None:
        """What went down is not what the run stands at any more; how far the workers' scripts are remains."""
        for known in (self._held, self._answered, self._steps, self._before):
            known.clear()

    @property
    def steps(self) -> Standings:
        """By cohort its steps and passes, without its turn; see `learn`."""
        return self._steps

    def kept(self, index: int) -> SliceStanding:
        """Where a slice stands."""
        before = dict[str, tuple[int, tuple[Any, int] | None]]()
        for cohort, (turn, slices) in self._before.items():
            if index in slices:
                was = slices[index]
                before[cohort] = turn, None if was is None else (whole(was[0]), was[1])
        held = {cohort: (whole(values), at) for cohort, (values, at) in self._held.get(index, {}).items()}
        return SliceStanding(held, before, dict(self._answered.get(index, {})))

    def put_back(self, index: int, kept: SliceStanding) -> None:
        """The inverse."""
        if kept.answered:
            self._answered[index] = kept.answered
        self._held[index] = kept.held
        for cohort, (turn, was) in kept.before.items():
            self._before.setdefault(cohort, (turn, {}))[1][index] = was

    def held(self, index: int, cohort: str) -> Any:
        """The values of a slice that joiners of a cohort go on from."""
        held = self._held.get(index, {})
        return held.get(cohort, held.get(EVERYONE, (None, -1)))[0]

    def hold(self, index: int, cohort: str, values: Any, version: int) -> None:
        """Joiners of a cohort go on from these values of a slice; what is everyone's replaces what cohorts had."""
        if cohort == EVERYONE:
            self._held[index] = {}
        held = self._held.setdefault(index, {})
        held.pop(cohort, None)
        held[cohort] = values, version  # the newest stands last

    def keep(self, update: Update, slices: int) -> None:
        """Before a slice's values of a step are held: keep those that it had until all `slices` are answered.

        Whoever takes that step once more begins with the weights with which the others have begun it.
        """
        turn, before = self._before.get(update.cohort, (-1, {}))
        if turn != update.turn:
            before = {}
        held = self._held.get(update.slice, {})
        before[update.slice] = held.get(update.cohort, held.get(EVERYONE))
        if len(before) < slices:
            self._before[update.cohort] = update.turn, before
        else:
            self._before.pop(update.cohort, None)

    def answered(self, update: Update) -> bool:
        """A slice has been answered; whether for the first time."""
        is_first = update.slice not in self._answered
        if update.step >= 0:
            self.learn({update.cohort: Standing(step=update.step, step_turn=update.turn)})
        self._answered.setdefault(update.slice, {})[update.cohort] = update.turn
        return is_first

    def stepped(self, update: Update, out: bytes) -> None:
        """A slice has been answered what it has contributed to a step. `out`: who took no part in it."""
        known = self.standing(update.cohort)
        self.learn({update.cohort: read_behind(known, update, out)})

    def learn(self, standings: Standings) -> None:
        """Cohorts are known to have come so far in their steps and passes."""
        for cohort, standing in standings.items():
            self._steps[cohort] = self.standing(cohort).with_steps_of(standing)

    def reached(self, message: Reached) -> None:
        """A worker has told how far it is."""
        self._reached.setdefault(message.worker, deque(maxlen=REACHED_KEPT)).append(message)

    def reached_by(self, worker: str) -> tuple[Reached, ...]:
        """What a worker has told last, the newest at the end."""
        return tuple(self._reached.get(worker, ()))

    def closed(self, round_: Round) -> None:
        """A round has closed."""
        if round_.step >= 0:
            self.learn({round_.cohort: Standing(step=round_.step, step_turn=round_.turn)})

    def standing(self, cohort: str, turn: int = -1) -> Standing:
        """Where a cohort stands whose last turn that has closed is this one."""
        known = self._steps.get(cohort, self._first)
        return known.behind(max(turn, known.step_turn, known.read_turn))

    def updates(
        self, cohorts: Sequence[str], belongs: Callable[[str], bool], is_worker: bool
    ) -> Iterator[tuple[Update, Any]]:
        """What brings a joiner up to date; without values, how far a slice is.

        `cohorts`: those in which its workers take their steps; `belongs`: whether all of them belong to another: to a
        party, and to regions, each inside the next, whose newest mean is what their workers have. To a worker, where a
        step has been answered in part, what was before it comes first.
        """
        turn, before = self._before.get(cohorts[0], (-1, {})) if is_worker else (-1, {})
        for index, was in before.items():
            if was is None:
                continue
            values, version = whole(was[0]), was[1]
            told = Update(
                turn - 1, index, "assign", 0.0, None, UNREAD, cohorts[0], values.nbytes, base=version
            )
            yield told, values
        steps = {*cohorts, EVERYONE}
        for index, answered in self._answered.items():
            held = self._held.get(index, {})
            own = [cohort in held for cohort in cohorts]
            means = [cohort for cohort in held if cohort not in steps and belongs(cohort)]
            newest = means[-1] if means else None
            order = dict.fromkeys(answered, 1) | dict.fromkeys(cohorts, 0)
            if any(own) and not all(own):  # what replaces the others' comes before them
                order[EVERYONE] = -1
            if newest is not None:
                order[newest] = 2
            for cohort in sorted(answered, key=order.__getitem__):
                if cohort not in steps and not belongs(cohort):
                    continue
                is_older = all(own) and cohort == EVERYONE and cohort not in cohorts
                is_meant = (cohort in steps and not is_older) or cohort == newest
                values, version = held.get(cohort, (None, -1)) if is_meant else (None, -1)
                values = whole(values)
                size = 0 if values is None else values.nbytes
                turn, known = answered[cohort], self.standing(cohort)
                step = known.step if known.step_turn == turn else -1
                told = Update(turn, index, "assign", 0.0, None, UNREAD, cohort, size, step=step, base=version)
                yield told, values


def read_behind(known: Standing, update: Update, out: bytes) -> Standing:
    """How far all scripts of a cohort are behind a step, of which this was known. `out`: who took no part in it."""
    passes, batches, steps = update.reading
    return Standing(
        read_at=update.step,
        read_turn=update.turn,
        passes=passes,
        batches=batches,
        absent=out if passes > known.passes else known.absent,
        taken=steps if update.weight else known.taken,
    )


def check_reached(message: Reached) -> None:
    """Raise `ProtocolError` where no script can have done that."""
    for place in (message.before, message.behind):
        counts = (place.epoch, place.steps, *place.batches)
        fits = min(counts) >= 0 and len(place.batches) <= PASSES_LIMIT and 0.0 <= place.weight < math.inf
        if not fits or (place.first_loss is not None and not 0.0 < place.first_loss < math.inf):
            raise ProtocolError(f"the script of {message.worker} is said to be at {place}")
