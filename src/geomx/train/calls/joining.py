"""Where a worker goes on that joins a run which has begun, or comes back to it. Pure: no port, no waiting."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from geomx.node.port import Ready
from geomx.tree import EVERYONE
from geomx.wire.messages import Place, Reached, Reading
from geomx.wire.roster_messages import Standing, Standings

Turn = tuple[str, int]  # a cohort's


@dataclass(frozen=True, slots=True)
class StepsBegun:
    """How a worker takes its steps.

    Attributes:
        cohort: In which it takes them.
        slices: Those that take part in a step of the whole model.
        whole: A step that is taken once more begins with the weights of before it, where they come.
        is_whole: Every step that exchanges anything exchanges all of these slices.
    """

    cohort: str = EVERYONE
    slices: frozenset[int] = frozenset()
    whole: bool = False
    is_whole: bool = False


@dataclass(frozen=True, slots=True)
class GoesOn:
    """Where a worker goes on.

    Attributes:
        turns: By cohort, the turn that comes next.
        step: The policy's step that comes next.
        awaited: By slice, the turn whose update is to come first.
        again: The turn of a step that is taken once more, which the worker's other process may have taken in part.
        is_new: The run has gone on without this worker, which begins with turns that nobody has closed.
    """

    turns: dict[str, int]
    step: int
    awaited: dict[int, Turn] = field(default_factory=dict)
    again: Turn | None = None
    is_new: bool = False


def joins(ready: Ready, steps: StepsBegun, turns: Mapping[str, int]) -> GoesOn:
    """Where a new process goes on: in the last step of which something has closed.

    The worker that was here before may have contributed to it in part. What has closed is not pushed again, so the step
    is taken once more; unless a call that is no step has come behind it, before which all of it was closed, or all of
    its slices have closed: then its answers are on their way. `turns`: by its cohorts, the turn that comes next.
    """
    if ready.begins:
        return begins_anew(ready, steps, turns)
    last = last_step(ready)
    there, step = dict(turns), last + 1
    for name, known in ready.standings.items():
        once_more = known.step == last >= 0 and known.step_turn == known.turn
        there[name] = known.turn + (not once_more)
        if once_more:
            step = last
    own = ready.standings.get(steps.cohort, Standing())
    if step != own.step or own.step_turn != own.turn:
        return GoesOn(there, step)
    turn = steps.cohort, own.turn
    if any(ready.by_slice[index][0] < own.turn for index in steps.slices):
        return GoesOn(there, step, again=turn if steps.whole else None)
    return GoesOn(there | {steps.cohort: own.turn + 1}, own.step + 1, dict.fromkeys(steps.slices, turn))


def comes_back(
    ready: Ready,
    steps: StepsBegun,
    turns: Mapping[str, int],
    outstanding: Mapping[int, Turn],
    pushed: Mapping[tuple[int, str], int],
) -> GoesOn | None:
    """Where a worker goes on that was cut off; None: where it is, since the run has not gone on without it.

    `outstanding`: by slice, the turn whose update it waits for. `pushed`: by slice and cohort, the last turn to which
    it has contributed.
    """
    begins = ready.begins
    ahead = any(turn > turns.get(name, 0) for name, turn in begins.items())
    for index, (cohort, turn) in outstanding.items():
        first = begins.get(cohort, turn + 1)
        # What another process of this worker had contributed, nobody sends again; and where all of a cohort were away,
        # nobody closes what was left of their turn.
        is_not_its = turn >= first and pushed.get((index, cohort)) != turn
        ahead = ahead or is_not_its or (cohort != EVERYONE and turn < begins.get(cohort, turn))
    return begins_anew(ready, steps, turns) if ahead or (begins and not steps.whole) else None


def begins_anew(ready: Ready, steps: StepsBegun, turns: Mapping[str, int]) -> GoesOn:
    """Take part from the turns on that are named, with what was made before."""
    there = {name: turns[name] for name in {EVERYONE, steps.cohort}} | ready.begins
    last = -1  # the turn of a step that others close in all slices
    if steps.is_whole and steps.cohort == EVERYONE:
        last = ready.standings.get(EVERYONE, Standing()).step_turn
    awaited = {}
    for index, (own, everyones) in ready.by_slice.items():
        before = last if index in steps.slices and last < there[steps.cohort] else -1
        if max(own, before) >= 0:
            awaited[index] = steps.cohort, max(own, before)
        elif everyones >= 0:
            awaited[index] = EVERYONE, everyones
    return GoesOn(there, max(last_step(ready) + 1, ready.roster.pace), awaited, is_new=True)


def last_step(ready: Ready) -> int:
    """The policy's last step, of any of the worker's cohorts; -1: there was none."""
    return max((known.step for known in ready.standings.values()), default=-1)


def has_begun(ready: Ready) -> bool:
    """Whether a run has first values of every slice."""
    return bool(ready.by_slice) and all(everyones >= 0 for _, everyones in ready.by_slice.values())


def place_in(
    reached: Sequence[Reached], turns: Mapping[str, int], step: int, standings: Standings
) -> Place | None:
    """Where a script goes on that was started again; None: it had not come to any step.

    `reached`: what it had told, the newest last. `turns`: by cohort, the turn that comes next. `step`: of the policy,
    likewise. `standings`: by cohort.
    """
    for told in reversed(reached):
        if told.turn < turns.get(told.cohort, 0):
            behind = told.behind
            passes = standings.get(told.cohort, Standing()).passes
            if told.step < 0 or passes <= behind.epoch:
                return behind
            return Place(passes, (), behind.steps, behind.weight, behind.first_loss)
        if told.step == step:  # it is taken once more
            return told.before
    return None


def place_beside(reached: Sequence[Reached], others: Reading) -> tuple[Place, int]:
    """Where a script goes on whose worker has missed steps: beside the others.

    `reached`: as above. Returns the place, and how many batches of this pass were the worker's, and missed.
    """
    passes, batches, steps = others
    told = next((each for each in reversed(reached) if each.step >= 0), None)
    if told is None:
        return Place(passes, (batches,), steps), 0
    before = told.behind
    missed = max(0, batches - sum(before.batches[:1])) if before.epoch == passes else 0
    return Place(passes, (batches,), steps, before.weight, before.first_loss), missed
