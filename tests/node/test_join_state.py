"""What whoever joins a run is told of each slice: the newest that its workers have, and how far all else is."""

from __future__ import annotations

import torch

from geomx.node.slices.join_state import JoinState
from geomx.tree import EVERYONE
from geomx.wire.messages import UNREAD, Update
from geomx.wire.roster_messages import Standing, latest


def answer(state: JoinState, cohort: str, turn: int, step: int) -> None:
    update = Update(turn, 0, "mean", 1.0, None, UNREAD, cohort, 8, step=step)
    state.hold(0, cohort, torch.tensor([float(step)], dtype=torch.float64), turn)
    state.answered(update)


def told(state: JoinState, *above: str) -> list[tuple[str, int, int, float | None]]:
    """To a worker below these: of which cohort, its turn and step, and the values."""
    updates = state.updates((EVERYONE,), lambda cohort: cohort in ("A/0", *above, EVERYONE), True)
    return [
        (update.cohort, update.turn, update.step, None if values is None else values.item())
        for update, values in updates
    ]


def test_the_newest_mean_of_those_inside_each_other_comes_last_and_alone() -> None:
    state = JoinState()
    answer(state, EVERYONE, 1, 7)
    answer(state, "A", 4, 9)
    answer(state, "R", 2, 11)
    assert told(state, "A", "R") == [(EVERYONE, 1, 7, 7.0), ("A", 4, 9, None), ("R", 2, 11, 11.0)]
    answer(state, "A", 5, 13)
    assert told(state, "A", "R") == [(EVERYONE, 1, 7, 7.0), ("R", 2, 11, None), ("A", 5, 13, 13.0)]


def test_means_that_the_runs_has_overtaken_are_told_without_values() -> None:
    """Turns of a region are counted by its members alone: whoever joins has to hear which comes next."""
    state = JoinState()
    answer(state, "R", 2, 3)
    answer(state, EVERYONE, 1, 7)
    assert told(state, "R") == [(EVERYONE, 1, 7, 7.0), ("R", 2, 3, None)]
    assert told(state) == [(EVERYONE, 1, 7, 7.0)]


def test_where_a_cohort_has_taken_no_step_its_workers_go_on_from_everybodys() -> None:
    """To a region's server: of its parties one has weights of its own, and comes behind what replaces both."""
    state = JoinState()
    answer(state, EVERYONE, 0, -1)
    answer(state, "A", 3, 2)
    updates = [update for update, _ in state.updates(("A", "B"), lambda cohort: cohort == EVERYONE, False)]
    assert [(update.cohort, update.size) for update in updates] == [(EVERYONE, 8), ("A", 8)]
    answer(state, "B", 1, 0)
    updates = [update for update, _ in state.updates(("A", "B"), lambda cohort: cohort == EVERYONE, False)]
    assert [(update.cohort, update.size) for update in updates] == [("A", 8), ("B", 8), (EVERYONE, 0)]


def test_the_last_step_is_that_of_the_last_turn() -> None:
    """Where workers take as many as they have time for, one of a later turn may be the smaller number."""
    state = JoinState()
    answer(state, EVERYONE, 3, 6)
    answer(state, EVERYONE, 4, 5)
    known = state.standing(EVERYONE)
    assert (known.step, known.step_turn) == (5, 4)
    one, other = {"": Standing(3, 6, 3), "A": Standing(1, 1, 1)}, {"": Standing(4, 5, 4)}
    assert latest(one, other) == {"": Standing(4, 5, 4), "A": Standing(1, 1, 1)}
