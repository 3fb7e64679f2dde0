from __future__ import annotations

import itertools
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import Disagreement, ProtocolError
from geomx.rounds.turn import OPEN_ROUNDS, KnownTurns
from geomx.wire.messages import Push, Reading


def push(*origins: str, turn: int = 1, weight: float = 1.0, incarnation: int = 1, **more) -> Push:
    fields = {
        "kind": "gradient",
        "operation": "step()",
        "present": None,
        "hyper": b"",
        "reading": Reading(),
    } | more
    return Push(turn, 0, weight=weight, origins=dict.fromkeys(origins, incarnation), **fields)


def test_a_contribution_counts_once_whatever_its_incarnation():
    turns = KnownTurns()
    assert turns.add(push("A/0"), "first", 0, 0.0) is not None
    assert turns.add(push("A/0"), "again", 0, 0.0) is None
    assert turns.add(push("A/0", incarnation=2), "restarted", 0, 0.0) is None
    round_ = turns.add(push("A/1"), "second", 1, 0.0)
    assert [payload for _, payload in round_.in_order()] == ["first", "second"]


def test_what_is_counted_inside_an_aggregate_is_dropped_alone_and_refused_in_other_company():
    turns = KnownTurns()
    turns.add(push("A/0", "A/1"), None, 0, 0.0)
    assert turns.add(push("A/1"), None, 1, 0.0) is None
    with pytest.raises(ProtocolError, match="turn 1: A/1 is counted already, in other company"):
        turns.add(push("A/1", "A/2"), None, 1, 0.0)


def test_the_sum_of_a_server_that_begins_anew_takes_the_place_of_its_former_one():
    turns = KnownTurns()
    turns.add(push("B/0"), "other", 3, 0.0)
    round_ = turns.add(push("A/0", "A/1"), "before", 0, 0.0)
    round_.former |= {"A/0", "A/1"}
    assert turns.add(push("A/0"), "less", 0, 0.0) is None
    assert turns.add(push("A/1", "A/2", weight=2.0), "anew", 1, 0.0) is round_
    assert [payload for _, payload in round_.in_order()] == ["anew", "other"]
    assert (round_.weight, set(round_.origins)) == (3.0, {"A/1", "A/2", "B/0"})
    with pytest.raises(ProtocolError, match="A/2 is counted already"):
        turns.add(push("A/2", "A/0"), "once more", 0, 0.0)
    with pytest.raises(ProtocolError, match="B/0 is counted already"):
        turns.add(push("A/0", "B/0"), "another's", 0, 0.0)


def test_where_turns_count_as_a_whole_a_part_of_a_sum_takes_its_place_when_its_server_begins_anew():
    """It had sent that sum of some slices only."""
    turns, whole = KnownTurns(), {"together": b"\1"}
    round_ = turns.add(push("A/0", "A/1", **whole), "before", 0, 0.0)
    assert turns.add(push("A/0", **whole), "less", 0, 0.0) is None
    round_.former |= {"A/0", "A/1"}
    assert turns.add(push("A/0", "A/1", **whole), "again", 0, 0.0) is None
    assert turns.add(push("A/0", **whole), "less", 0, 0.0) is round_
    assert [payload for _, payload in round_.in_order()] == ["less"]


def test_what_is_handed_over_adds_to_a_round_and_says_nothing_else():
    turns = KnownTurns()
    round_ = turns.add(push("A/1", reading=Reading(3, 6, 9), step=4, present=b"\1"), "its", 1, 0.0)
    round_.handed_over = [(0, push("A/0", weight=2.0, drains=True, present=b"\2", hyper=b"x"), "given up")]
    assert (round_.reading, round_.step, round_.hyper) == (Reading(3, 6, 9), 4, b"")
    assert (round_.weight, round_.present) == (3.0, b"\3")
    assert [payload for _, payload in round_.in_order()] == ["given up", "its"]
    assert list(round_.origins) == ["A/1"]


def test_a_closed_round_stays_closed():
    turns = KnownTurns()
    turns.add(push("A/0", turn=3), None, 0, 0.0)
    assert turns.close(0, "", 3).turn == 3
    for turn in (-5, 2, 3):
        assert turns.add(push("A/1", turn=turn), None, 1, 0.0) is None
    assert list(turns) == []


def test_few_rounds_are_open_at_a_time():
    turns = KnownTurns()
    for turn in range(OPEN_ROUNDS):
        turns.add(push("A/0", turn=turn), None, 0, 0.0)
    with pytest.raises(ProtocolError, match=f"{OPEN_ROUNDS} rounds are open, turn {1 << 60}"):
        turns.add(push("A/0", turn=1 << 60), None, 0, 0.0)


def test_where_nobody_may_be_ahead_two_open_rounds_name_who_is_in_which():
    turns = KnownTurns()
    turns.add(push("A/0", turn=1), None, 0, 0.0)
    turns.check_one_open(0, "")
    turns.add(push("A/1", turn=1 << 60), None, 1, 0.0)
    with pytest.raises(Disagreement, match=rf"turn 1 \(A/0\) and turn {1 << 60} \(A/1\) .* same order"):
        turns.check_one_open(0, "")


@given(st.permutations(range(5)))
def test_contributions_are_added_in_the_order_of_their_places(arrival):
    turns = KnownTurns()
    for place in arrival:
        round_ = turns.add(push(f"A/{place}", weight=place), place, place, 0.0)
    assert [payload for _, payload in round_.in_order()] == [0, 1, 2, 3, 4]
    assert round_.weight == 10
    assert set(round_.origins) == {f"A/{place}" for place in range(5)}


@pytest.mark.parametrize("order", list(itertools.permutations([b"", b"x", b""])))
def test_hyper_parameters_are_those_of_whoever_has_an_opinion(order):
    turns = KnownTurns()
    for place, hyper in enumerate(order):
        round_ = turns.add(push(f"A/{place}", hyper=hyper), None, place, 0.0)
    assert round_.hyper == b"x"


def test_different_hyper_parameters_name_both_sides():
    turns = KnownTurns()
    turns.add(push("A/0"), None, 0, 0.0)
    turns.add(push("A/1", hyper=b"x"), None, 1, 0.0)
    with pytest.raises(Disagreement, match=r"B/0 and A/1 have different hyper-parameters .* average"):
        turns.add(push("B/0", hyper=b"y"), None, 2, 0.0)


@pytest.mark.parametrize(
    ("restarts", "blamed"),
    [
        ({"A/1": 7}, "A/1 was restarted at step 7: call run.resume(scheduler)"),
        ({"B/0": 2, "B/1": 3}, "B/0, B/1 were restarted at step 2: call run.resume(scheduler)"),
        ({"B/0": 2}, "average a metric"),  # one of two that agree with each other
        ({"A/0": 5}, "average a metric"),  # it has no opinion
    ],
)
def test_who_was_restarted_is_told_to_resume_and_nobody_else(restarts, blamed):
    turns = KnownTurns()
    turns.add(push("A/0"), None, 0, 0.0, restarts)
    turns.add(push("A/1", hyper=b"x"), None, 1, 0.0, restarts)
    with pytest.raises(Disagreement) as caught:
        turns.add(push("B/0", "B/1", hyper=b"y"), None, 2, 0.0, restarts)
    assert blamed in str(caught.value)


def test_different_kinds_name_both_calls():
    turns = KnownTurns()
    turns.add(push("A/0"), None, 0, 0.0)
    with pytest.raises(Disagreement, match=r"A/1 called save\(\), others step\(\)"):
        turns.add(push("A/1", kind="mean", operation="save()"), None, 1, 0.0)


def test_a_part_is_present_where_anybody_has_it_and_what_is_read_is_what_all_have_read():
    turns = KnownTurns()
    turns.add(push("A/0", present=b"\x01", reading=Reading(3)), None, 0, 0.0)
    round_ = turns.add(push("A/1", present=b"\x04", reading=Reading(2, 7)), None, 1, 0.0)
    assert round_.present == b"\x05"
    assert round_.reading == Reading(2, 7)
    assert not round_.reading.is_at_end


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ([(1.0, 2.0), (3.0, 6.0)], 5.0),
        ([(1.0, 2.0), (3.0, None)], 2.0),  # whoever has told
        ([(1.0, None), (0.0, None)], None),
        ([(2.0, 4.0), (0.0, math.nan)], 4.0),  # whoever has no weight has no say
        ([(0.0, 4.0), (0.0, 6.0)], 5.0),  # where nobody has any
        ([(1.0, 4.0), (1.0, math.inf)], math.inf),
    ],
)
def test_the_loss_is_the_weighted_mean_of_what_was_told(told, expected):
    turns = KnownTurns()
    for place, (weight, loss) in enumerate(told):
        current = turns.add(push(f"A/{place}", weight=weight, relative_loss=loss), None, place, 0.0)
    assert current.relative_loss == expected
