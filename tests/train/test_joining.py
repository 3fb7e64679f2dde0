"""Where a worker goes on that joins a run, or comes back to it."""

from __future__ import annotations

from geomx.node.port import Ready
from geomx.train.calls.joining import GoesOn, StepsBegun, comes_back, joins, place_beside
from geomx.wire.messages import Place, Reached, Reading
from geomx.wire.roster_messages import Roster, Standing

STEPS = StepsBegun("", frozenset({0, 1}), whole=True, is_whole=True)
FRESH = {"": 0}


def ready(*closed: int, step: int, at: int, begins: int | None = None, pace: int = -1) -> Ready:
    """Of slices whose last turns are these; the last step was that of a turn."""
    by_slice = {index: (turn, turn) for index, turn in enumerate(closed)}
    standing = Standing(max(closed), step, at)
    mine = {} if begins is None else {"": begins}
    return Ready(by_slice, {"": standing}, begins=mine, roster=Roster(3, pace=pace))


def test_a_step_that_has_closed_in_part_is_taken_once_more() -> None:
    assert joins(ready(7, 6, step=5, at=7), STEPS, FRESH) == GoesOn({"": 7}, 5, again=("", 7))


def test_a_step_whose_slices_have_all_closed_is_over() -> None:
    there = joins(ready(7, 7, step=5, at=7), STEPS, FRESH)
    assert there == GoesOn({"": 8}, 6, {0: ("", 7), 1: ("", 7)})


def test_behind_a_call_that_is_no_step_the_next_step_comes() -> None:
    assert joins(ready(8, 8, step=5, at=7), STEPS, FRESH) == GoesOn({"": 9}, 6)


def test_whoever_was_let_in_begins_where_it_was_told_with_what_others_have_made() -> None:
    there = joins(ready(7, 6, step=5, at=7, begins=8), STEPS, FRESH)
    assert there == GoesOn({"": 8}, 6, {0: ("", 7), 1: ("", 7)}, is_new=True)
    ahead = joins(ready(7, 7, step=5, at=7, begins=8, pace=11), STEPS, FRESH)
    assert ahead.step == 11  # of the running window the slowest has taken so many


def test_whoever_was_cut_off_for_a_moment_stays_where_it_is() -> None:
    pushed = {(0, ""): 8}
    assert comes_back(ready(7, 7, step=5, at=7), STEPS, {"": 8}, {0: ("", 8)}, pushed) is None
    assert comes_back(ready(7, 7, step=5, at=7, begins=8), STEPS, {"": 8}, {0: ("", 8)}, pushed) is None
    gone_on = comes_back(ready(9, 9, step=7, at=9, begins=10), STEPS, {"": 8}, {0: ("", 8)}, pushed)
    assert gone_on is not None
    assert (gone_on.turns, gone_on.step, gone_on.is_new) == ({"": 10}, 8, True)


def test_local_steps_that_were_taken_apart_are_given_up() -> None:
    local = StepsBegun("", frozenset({0}), whole=False, is_whole=True)
    there = comes_back(ready(7, step=5, at=7, begins=8), local, {"": 8}, {}, {})
    assert there is not None
    assert there.is_new


def test_beside_the_others_what_was_missed_is_counted() -> None:
    told = Reached("A/0", "", 4, 3, Place(1, (3,), 13, 8.0), Place(1, (4,), 14, 9.0, 2.5))
    assert place_beside((told,), Reading(1, 9, 19)) == (Place(1, (9,), 19, 9.0, 2.5), 5)
    assert place_beside((told,), Reading(2, 1, 21)) == (Place(2, (1,), 21, 9.0, 2.5), 0)
    assert place_beside((), Reading(2, 1, 9)) == (Place(2, (1,), 9), 0)
