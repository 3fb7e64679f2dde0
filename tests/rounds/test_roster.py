"""Who takes part, decided from what is known."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from standings import stand

from geomx.node.members.roster_keeper import MOST_AT_ONCE, RosterKeeper
from geomx.rounds.losses import Losses
from geomx.rounds.membership import Members
from geomx.rounds.roster import decide, reason
from geomx.tree import Tree
from geomx.wire.roster_messages import Asks, Held, Hold, Lost, Roster, Standing

TREE = Tree.of_parties({"A": ("A/0", "A/1"), "B": ("B/0",), "C": ("C/0",)})
EVERYBODY = frozenset(TREE.workers)
GO_ON = Losses("continue")


def least(parties: int, workers: int) -> Losses:
    return Losses("continue", 60.0, parties, workers)


A = frozenset({"A/0", "A/1"})
# Who takes part, who is out, who is lost, who asks, what else is known; who is out then, and what is said of it.
DECISIONS: dict[str, tuple[Any, ...]] = {
    "with all below": (EVERYBODY, (), {"A": "silent", "B/0": "gone"}, (), {},
        A | {"B/0"}, "A is lost (silent); B/0 is lost (gone)"),
    "who is out comes back": (EVERYBODY - A, A, {}, ("A/1", "C/0"), {}, {"A/0"}, "A/1 is back"),
    "not through a server that is lost": (EVERYBODY - {"A/1"}, {"A/1"}, {"A": "gone"}, ("A/1",), {},
        A, "A is lost (gone)"),
    "too few workers": (EVERYBODY, (), {"A": "silent"}, (), {"losses": least(1, 3)},
        (), "A is awaited: 2 workers would be left, and run.least_workers is 3"),
    "too few parties": (EVERYBODY, (), {"B": "silent"}, (), {"losses": least(3, 1)},
        (), "B is awaited: 2 parties would be left, and run.least_parties is 3"),
    "who has come back counts": (EVERYBODY - {"C/0"}, {"C/0"}, {"A": "silent"}, ("C/0",), {"losses": least(2, 2)},
        A, "C/0 is back; A is lost (silent)"),
    "one is left in its party": (EVERYBODY, (), {"A/0": "gone"}, (), {"losses": least(3, 1)},
        {"A/0"}, "A/0 is lost (gone)"),
    # Of two parties one has left in order, and two are asked for: the loss of a worker changes nothing in that.
    "few parties before": (A, (), {"A/1": "gone"}, (), {"losses": least(2, 1)}, {"A/1"}, "A/1 is lost (gone)"),
    "few workers through it": (A, (), {"A/1": "gone"}, (), {"losses": least(1, 2)},
        (), "A/1 is awaited: 1 worker would be left, and run.least_workers is 2"),
    "before all have first values": (EVERYBODY, (), {"A": "silent"}, (), {"has_begun": False},
        (), "A is awaited: the run has not begun"),
    "the last, as others have left": ({"A/0"}, (), {"A/0": "gone"}, (), {"have_left": True},
        {"A/0"}, "A/0 is lost (gone)"),
    "the last": ({"A/0"}, EVERYBODY - {"A/0"}, {"A/0": "gone"}, (), {},
        EVERYBODY - {"A/0"}, "A/0 is awaited: 0 workers would be left, and run.least_workers is 1"),
}  # fmt: skip


@pytest.mark.parametrize("what", DECISIONS)
def test_who_takes_part_is_decided_from_what_is_known(what: str) -> None:
    present, before, lost, asking, more, out, why = DECISIONS[what]
    decision = decide(TREE, present, frozenset(before), lost, asking, **({"losses": GO_ON} | more))
    assert decision.out == frozenset(out)
    assert reason(decision.joined, decision.why) == why


def out_of(roster: Roster) -> tuple[str, ...]:
    return TREE.workers_in(roster.out)


class Shards:
    """A first shard with another, and what they say."""

    def __init__(self, others: tuple[str, ...] = ("global/1",)) -> None:
        self.members = Members(TREE, "global/0")
        self.closed: dict[str, int] = {"": 4}
        self.slowest_turn, self.steps = -1, 9
        self.holds: list[tuple[str, Hold]] = []
        self.rosters: list[Roster] = []
        self.keeps_back = False
        self.kept_back: tuple[Roster, Callable[[], None]]
        self.keeper = RosterKeeper(
            self.members,
            GO_ON,
            others,
            self,
            lambda *said: self.holds.append(said),
            self.publish,
            lambda: True,
        )

    def publish(self, roster: Roster, then: Callable[[], None]) -> None:
        self.rosters.append(roster)
        if self.keeps_back:
            self.kept_back = roster, then
        else:
            self.take(roster, then)

    def take(self, roster: Roster, then: Callable[[], None]) -> None:
        workers_in = self.members.tree.workers_in
        self.members.enroll(
            workers_in(roster.out), dict.fromkeys(workers_in(roster.joined), roster.from_turns)
        )
        then()

    def held(self, number: int, nodes: Iterable[str]) -> Held:
        return Held(number, stand(self.closed, {"": (3, 4)}))

    def pace(self) -> int:
        return self.steps

    def slowest(self) -> int:
        return self.slowest_turn

    def nears_its_end(self) -> bool:
        return bool(self.members.left(self.members.order))


def test_nothing_is_decided_while_a_roster_is_on_its_way_into_the_log() -> None:
    shards = Shards(())
    shards.keeps_back = True
    shards.keeper.told(Lost("A", 7, {}, "silent"))
    shards.keeper.told(Lost("B", 7, {}, "silent"))
    assert [out_of(roster) for roster in shards.rosters] == [("A/0", "A/1")]
    shards.take(*shards.kept_back)
    assert out_of(shards.rosters[-1]) == ("A/0", "A/1", "B/0")


def test_a_roster_holds_behind_the_last_turn_that_has_closed_anywhere() -> None:
    shards = Shards()
    shards.keeper.told(Lost("A", 7, stand({"": 5, "A": 2}), "silent"))
    assert shards.holds == [("global/1", Hold(1, ("A",)))]
    assert shards.rosters == []  # before the other shard has said what it has closed
    shards.keeper.answered("global/1", Held(1, stand({"": 6}, {"": (5, 6)})))
    (roster,) = shards.rosters
    assert roster.from_turns == {"": 7, "A": 3}
    assert roster.standings[""] == Standing(6, 5, 6)
    assert (roster.number, out_of(roster), roster.settles) == (1, ("A/0", "A/1"), (("A", 7),))
    assert roster.pace == 9


def test_what_comes_up_while_a_roster_is_decided_is_decided_next() -> None:
    shards = Shards()
    shards.keeper.told(Lost("A", 7, stand({"": 5}), "silent"))
    shards.keeper.told(Lost("B/0", 1, stand({"": 5}), "gone"))
    shards.keeper.told(Lost("A", 7, stand({"": 6}), "silent"))  # another shard has noticed it as well
    shards.keeper.answered("global/1", Held(1, stand({"": 5})))
    assert [out_of(roster) for roster in shards.rosters] == [("A/0", "A/1")]
    shards.keeper.answered("global/1", Held(1, stand({"": 9})))  # late, and of another roster
    assert len(shards.rosters) == 1
    shards.keeper.answered("global/1", Held(2, stand({"": 5})))
    assert [out_of(roster) for roster in shards.rosters] == [("A/0", "A/1"), ("A/0", "A/1", "B/0")]
    assert shards.rosters[1].settles == (("B/0", 1),)  # of A nothing is said twice


def test_who_comes_back_is_let_in_at_once_where_there_is_one_shard() -> None:
    shards = Shards(())
    shards.keeper.told(Lost("A/1", 1, stand({"": 5}), "gone"))
    shards.keeper.told(Asks("A/1", 2, stand({"": 8, "A": 1}, {"": (7, 8)})))
    lost, back = shards.rosters
    assert (out_of(lost), lost.from_turns) == (("A/1",), {"": 6})
    assert (out_of(back), TREE.workers_in(back.joined), back.from_turns) == ((), ("A/1",), {"": 9, "A": 2})
    assert back.standings[""] == Standing(8, 7, 8)


def test_of_many_who_are_lost_at_once_no_roster_settles_more_than_fit_into_a_message() -> None:
    shards = Shards(("global/1",))
    names = [f"{number}/0" for number in range(MOST_AT_ONCE + 10)]
    tree = Tree.of_parties({name.removesuffix("/0"): (name,) for name in (*names, "Q/0")})
    shards.members.tree, shards.members.order = tree, {name: place for place, name in enumerate(tree.workers)}
    for name in names:
        shards.keeper.told(Lost(name, 1, stand({"": 5}), "gone"))
    shards.keeper.answered("global/1", Held(1, stand({"": 5})))  # of the first, who was told of alone
    for number in (2, 3):
        shards.keeper.answered("global/1", Held(number, stand({"": 5})))
    assert [len(roster.settles) for roster in shards.rosters] == [1, MOST_AT_ONCE, 9]
    assert len(tree.workers_in(shards.rosters[-1].out)) == len(names)


def test_a_cohort_of_which_nobody_took_part_comes_back_at_the_turn_of_the_slowest() -> None:
    shards = Shards(())
    shards.keeper.told(Lost("A", 1, stand({"": 5, "A": 3}), "gone"))
    shards.slowest_turn = 20
    shards.keeper.told(Asks("A/0", 2, stand({"": 5, "A": 3})))
    assert shards.rosters[-1].from_turns == {"": 6, "A": 21}
    shards.slowest_turn = 25
    shards.keeper.told(Asks("A/1", 2, stand({"": 5, "A": 3})))  # where A/0 is, which has closed nothing yet
    assert shards.rosters[-1].from_turns == {"": 6, "A": 21}
    shards.keeper.told(Lost("A/1", 2, stand({"": 5, "A": 22}), "gone"))
    shards.keeper.told(Asks("A/1", 3, stand({"": 5, "A": 22})))
    assert shards.rosters[-1].from_turns == {"": 6, "A": 23}


def test_who_has_just_come_back_and_has_told_no_step_yet_holds_nobody_back() -> None:
    """Else the next would begin with steps whose means it has left out."""
    shards = Shards(())
    shards.keeper.told(Lost("A", 1, stand({"": 5}), "gone"))
    shards.keeper.told(Asks("A/0", 2, stand({"": 5})))
    shards.steps = -1
    shards.keeper.told(Asks("A/1", 2, stand({"": 5})))
    assert [roster.pace for roster in shards.rosters] == [9, 9, 9]


def test_a_thousand_losses_are_told_in_a_line() -> None:
    names = {f"P{number}/0": "silent for a while" for number in range(1000)}
    tree = Tree.of_parties({name.removesuffix("/0"): (name,) for name in (*names, "Q/0")})
    decision = decide(tree, set(tree.workers), set(), names, (), GO_ON)
    assert reason(decision.joined, decision.why).endswith("; 992 more are lost")
    assert len(reason(decision.joined, decision.why)) < 500


def test_a_run_of_which_all_have_left_is_over() -> None:
    shards = Shards(())
    shards.members.enroll(["A/1"], {})
    shards.members.leave(["A/0", "B/0", "C/0"], {"": 3})
    shards.keeper.told(Asks("A/1", 2, stand({"": 8})))
    assert shards.rosters == []
