"""Turns of several slices that count as a whole."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from trees import members_of

from geomx.bits import bitmap_of, places_of
from geomx.errors import Disagreement, ProtocolError
from geomx.layout import Layout, Slice, Tensor
from geomx.node.members.whole_turns import MOST_NAMED, WholeTurns
from geomx.rounds.gathering import Gathering
from geomx.rounds.round import Round
from geomx.sync.fsa import FSA
from geomx.wire.messages import Push, Reading
from geomx.wire.roster_messages import Close, Complete, Message

LAYOUT = Layout((Tensor("w", (4,), "float32"), Tensor("v", (5,), "float32")), slice_elements=5, pack_below=0)
BOTH = bitmap_of([0, 1])


@given(st.frozensets(st.integers(0, 3000)))
def test_a_bitmap_says_which_slices(slices: frozenset[int]) -> None:
    assert places_of(bitmap_of(slices)) == sorted(slices)


class Gathered:
    """A server that gathers two slices from three workers."""

    def __init__(self, agrees: bool = True) -> None:
        self.members = members_of(["A/0", "B/0", "C/0"])
        self.closed: list[tuple[int, list[str]]] = []
        self.gathering = Gathering(FSA(), self.members, self.close, self.never, lambda *_: agrees)
        self.gathering.begin(LAYOUT.slices)

    def close(self, slice_: Slice, round_: Round) -> None:
        self.closed.append((slice_.index, sorted(round_.origins)))

    @staticmethod
    def never(*_: object) -> None:
        raise AssertionError("this policy knows no time")

    def push(self, name: str, *slices: int) -> None:
        for index in slices:
            self.gathering.add(LAYOUT.slices[index], push(name, index), None, 0.0)


def push(name: str, index: int, together: bytes = BOTH, kind: Any = "gradient") -> Push:
    return Push(
        3, index, kind, "step()", 1.0, {name: 1}, None, b"", Reading(), "", 3, size=16, together=together
    )


def test_nothing_closes_before_all_is_there() -> None:
    server = Gathered()
    for name in ("A/0", "B/0", "C/0"):
        server.push(name, 0)
    assert server.closed == []
    assert server.gathering.missing("", 3) == []  # of slice 0, nobody
    server.push("A/0", 1)
    assert server.gathering.missing("", 3) == ["B/0", "C/0"]
    server.push("B/0", 1)
    server.push("C/0", 1)
    assert server.closed == [(0, ["A/0", "B/0", "C/0"]), (1, ["A/0", "B/0", "C/0"])]


def test_who_is_lost_halfway_counts_in_no_slice() -> None:
    server = Gathered()
    server.push("A/0", 0, 1)
    server.push("B/0", 0, 1)
    server.push("C/0", 0)
    assert server.gathering.last_closed(["C/0"]) == {"": -1}
    server.members.enroll(["C/0"], {})
    server.gathering.drop(frozenset({"C/0"}), {"": 0})
    server.gathering.look(1.0)
    assert server.closed == [(0, ["A/0", "B/0"]), (1, ["A/0", "B/0"])]


def test_where_others_have_slices_it_closes_once_it_is_named() -> None:
    server = Gathered(agrees=False)
    for name in ("A/0", "B/0", "C/0"):
        server.push(name, 0, 1)
    assert server.closed == []
    server.gathering.named("", 7, 1.0)  # of which nothing is known here
    server.gathering.named("", 3, 1.0)
    assert [index for index, _ in server.closed] == [0, 1]


@pytest.mark.parametrize("others", [b"", bitmap_of([0]), bitmap_of([0, 1, 2])])
def test_workers_that_exchange_different_parts_are_told(others: bytes) -> None:
    server = Gathered()
    server.push("A/0", 0)
    with pytest.raises(Disagreement, match="B/0 and A/0 exchange different parts of the model"):
        server.gathering.add(LAYOUT.slices[0], push("B/0", 0, others), None, 0.0)
    with pytest.raises(Disagreement, match="B/0 and others exchange different parts of the model"):
        server.gathering.add(LAYOUT.slices[1], push("B/0", 1, b"\7"), None, 0.0)


def test_a_push_is_of_a_slice_of_its_turn() -> None:
    server = Gathered()
    for kind, together in (("gradient", bitmap_of([1])), ("assign", BOTH)):
        with pytest.raises(ProtocolError, match=f"a push of kind {kind}"):
            server.gathering.check(push("B/0", 0, together, kind))


class Shard(WholeTurns):
    def __init__(self, me: str, shards: tuple[str, ...] = ("g/0", "g/1", "g/2")) -> None:
        self.sent: list[tuple[str, Message]] = []
        self.closed: list[tuple[str, int]] = []
        self.is_held = False

        def close(other: str, message: Close) -> None:
            assert me != shards[0] or not self.is_held  # what it has not closed itself it has nobody close
            self.sent.append((other, message))

        super().__init__(
            me,
            shards,
            lambda message: self.sent.append((shards[0], message)),
            close,
            lambda *which: self.closed.append(which),
            lambda: not self.is_held,
        )
        self.begin([0, 1, 1, 2])  # which shard holds each slice


def complete(turn: int, number: int, *slices: int) -> Complete:
    return Complete("", turn, number, bitmap_of(slices))


def test_the_first_shard_names_a_turn_that_all_who_have_slices_of_it_have_complete() -> None:
    first = Shard("g/0")
    assert not first.agrees(complete(4, 1, 0, 1, 2))
    assert first.sent == []
    first.complete("g/1", complete(4, 1, 0, 1, 2), closed=3)  # the third has none of these slices
    assert first.closed == [("", 4)]
    assert first.sent == [("g/1", Close("", 4))]
    first.complete("g/1", complete(5, 1, 0, 1), closed=4)
    first.agrees(complete(5, 1, 0, 1))  # it is the last itself
    assert first.closed == [("", 4), ("", 5)]


def test_nothing_is_named_while_the_first_shard_holds() -> None:
    first = Shard("g/0")
    first.is_held = True
    first.agrees(complete(4, 1, 0, 1))
    first.complete("g/1", complete(4, 1, 0, 1), closed=3)
    assert first.closed == []
    first.is_held = False
    first.agrees(complete(4, 1, 0, 1))
    assert first.closed == [("", 4)]


def test_a_shard_that_was_started_again_hears_what_has_closed() -> None:
    first = Shard("g/0")
    first.complete("g/1", complete(4, 1, 0, 1), closed=4)
    assert first.sent == [("g/1", Close("", 4))]


def test_a_turn_of_others_slices_is_named_as_well() -> None:
    first = Shard("g/0")
    first.complete("g/1", complete(4, 0, 1, 3), closed=3)
    assert first.sent == []
    first.complete("g/2", complete(4, 0, 1, 3), closed=3)
    assert sorted(name for name, _ in first.sent) == ["g/1", "g/2"]


def test_what_is_complete_by_another_roster_is_not() -> None:
    first = Shard("g/0")
    assert not first.agrees(complete(4, 1, 0, 1))
    first.complete("g/1", complete(4, 2, 0, 1), closed=3)
    assert first.closed == []
    first.agrees(complete(4, 2, 0, 1))
    assert first.closed == [("", 4)]


def test_another_shard_tells_the_first_once_by_each_roster() -> None:
    other = Shard("g/1")
    for number in (1, 1, 2):
        assert not other.agrees(complete(4, number, 0, 1))
    assert other.sent == [("g/0", complete(4, 1, 0, 1)), ("g/0", complete(4, 2, 0, 1))]
    for turn in range(1000):
        other.agrees(complete(turn, 2, 0, 1))
        other.complete("g/2", complete(turn, 2, 0, 1, 3), closed=-1)
    assert max(len(other._told), len(other._complete)) <= MOST_NAMED


def test_one_shard_asks_nobody() -> None:
    assert Shard("g/0", ("g/0",)).agrees(complete(4, 1, 0))
