from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import members_of

from geomx.errors import ProtocolError

NAMES = ("A/0", "A/1", "B/0")


def test_the_order_is_that_of_the_run():
    members = members_of(("B/0", "A/1", "A/0"))
    assert members.first(["A/0", "A/1"]) == 1
    assert list(members.order) == ["B/0", "A/1", "A/0"]


def test_who_has_left_takes_part_up_to_the_last_turn_it_named():
    members = members_of(NAMES)
    members.leave(["A/1"], {"": 5})
    members.leave(["A/1"], {"": 9})  # said twice: the first word counts
    assert members.expected(5) == set(NAMES)
    assert members.expected(6) == {"A/0", "B/0"}
    assert members.has_left(["A/1"])
    assert not members.has_left(["A/0", "A/1"])
    assert not members.all_left
    members.leave(["A/0", "B/0"], {"": 7})
    assert members.all_left
    assert members.expected(8) == set()


def test_a_stranger_cannot_leave():
    with pytest.raises(ProtocolError, match="C/0 leaves a run of which it is no member"):
        members_of(NAMES).leave(["C/0"], {"": 1})


@given(
    leaves=st.lists(st.tuples(st.sampled_from(NAMES), st.integers(-1, 9)), max_size=5),
    asked=st.lists(st.integers(-2, 11), max_size=20),
)
def test_the_members_of_a_turn_are_those_that_have_not_left_before_it(leaves, asked):
    members, last = members_of(NAMES), {}
    for name, turn in leaves:
        members.expected(turn)  # asking in between changes nothing
        members.leave([name], {"": turn})
        last.setdefault(name, turn)
    for turn in asked:
        assert members.expected(turn) == {name for name in NAMES if last.get(name, turn) >= turn}


def test_a_long_run_after_somebody_has_left_costs_no_memory():
    members = members_of(NAMES)
    members.leave(["A/1"], {"": 5})
    assert len({id(members.expected(turn)) for turn in range(6, 10_000)}) == 1


def test_who_is_out_is_not_awaited_in_any_turn_and_counts_where_it_came() -> None:
    members = members_of(NAMES)
    assert members.enroll(["A/1"], {}) == {"A/1"}
    assert members.expected(0) == members.expected(9) == {"A/0", "B/0"}
    assert members.present(NAMES) == {"A/0", "B/0"}
    assert members.enroll(["A/1"], {}) == set()  # nobody is out since now


def test_who_comes_back_is_awaited_from_the_turn_on_with_which_it_begins() -> None:
    members = members_of(NAMES)
    members.enroll(["A/1"], {})
    members.enroll([], {"A/1": {"": 6, "A": 2, "B": 40}})
    assert members.expected(5) == {"A/0", "B/0"}
    assert members.expected(6) == set(NAMES)
    assert members.expected(1, "A") == {"A/0"}
    assert members.expected(2, "A") == {"A/0", "A/1"}
    assert members.begins(["A/1", "A/0"]) == {"A/1": {"": 6, "A": 2}}


def test_a_run_is_over_when_all_who_are_in_have_left() -> None:
    members = members_of(NAMES)
    members.enroll(NAMES, {})
    assert not members.all_left  # somebody may come back
    members.enroll(["A/1"], {})
    members.leave(["A/0", "B/0"], {"": 3})
    assert members.all_left
