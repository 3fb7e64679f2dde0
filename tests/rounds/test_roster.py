"""Who takes part, decided from what is known."""

from __future__ import annotations

from collections.abc import Iterable

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


def test_who_is_lost_is_out_with_all_below() -> None:
    decision = decide(TREE, EVERYBODY, frozenset(), {"A": "silent", "B/0": "gone"}, (), GO_ON)
    assert decision.out == {"A/0", "A/1", "B/0"}
    assert decision.joined == ()
    assert reason(decision.joined, decision.why) == "A is lost (silent); B/0 is lost (gone)"


def test_who_asks_and_is_out_comes_back() -> None:
    out = frozenset({"A/0", "A/1"})
    decision = decide(TREE, EVERYBODY - out, out, {}, ("A/1", "C/0"), GO_ON)
    assert decision.out == {"A/0"}
    assert decision.joined == ("A/1",)
    assert reason(decision.joined, decision.why) == "A/1 is back"


def test_below_the_least_numbers_the_lost_are_awaited() -> None:
    workers = decide(TREE, EVERYBODY, frozenset(), {"A": "silent"}, (), Losses("continue", 60.0, 1, 3))
    assert workers.out == frozenset()
    assert (
        reason(workers.joined, workers.why)
        == "A is awaited: 2 workers would be left, and run.least_workers is 3"
    )
    parties = decide(TREE, EVERYBODY, frozenset(), {"B": "silent"}, (), Losses("continue", 60.0, 3, 1))
    assert parties.out == frozenset()
    assert "2 parties would be left, and run.least_parties is 3" in reason(parties.joined, parties.why)
    # Who has come back counts, and in a party of which one is left nothing is short.
    again = decide(
        TREE, EVERYBODY - {"C/0"}, {"C/0"}, {"A": "silent"}, ("C/0",), Losses("continue", 60.0, 2, 2)
    )
    assert again.out == {"A/0", "A/1"}
    one = decide(TREE, EVERYBODY, frozenset(), {"A/0": "gone"}, (), Losses("continue", 60.0, 3, 1))
    assert one.out == {"A/0"}


def test_who_has_left_in_order_makes_no_later_loss_one_too_many() -> None:
    """Of two parties one has left, and two are asked for: the loss of a worker changes nothing in that."""
    a = frozenset({"A/0", "A/1"})
    assert decide(TREE, a, frozenset(), {"A/1": "gone"}, (), Losses("continue", 60.0, 2, 1)).out == {"A/1"}
    assert not decide(TREE, a, frozenset(), {"A/1": "gone"}, (), Losses("continue", 60.0, 1, 2)).out


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
        self.keeper = RosterKeeper(
            self.members,
            GO_ON,
            others,
            self,
            lambda *said: self.holds.append(said),
            self.publish,
            lambda: True,
        )

    def publish(self, roster: Roster) -> None:
        self.rosters.append(roster)
        workers_in = self.members.tree.workers_in
        self.members.enroll(
            workers_in(roster.out), dict.fromkeys(workers_in(roster.joined), roster.from_turns)
        )

    def held(self, number: int, nodes: Iterable[str]) -> Held:
        return Held(number, stand(self.closed, {"": (3, 4)}))

    def pace(self) -> int:
        return self.steps

    def slowest(self) -> int:
        return self.slowest_turn

    def nears_its_end(self) -> bool:
        return bool(self.members.left(self.members.order))


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


def test_before_all_have_first_values_nobody_is_left_out() -> None:
    decision = decide(TREE, EVERYBODY, frozenset(), {"A": "silent"}, (), GO_ON, has_begun=False)
    assert decision.out == frozenset()
    assert reason(decision.joined, decision.why) == "A is awaited: the run has not begun"


def test_the_last_of_all_is_not_awaited_where_the_others_have_left() -> None:
    last = decide(TREE, {"A/0"}, frozenset(), {"A/0": "gone"}, (), GO_ON, have_left=True)
    assert last.out == {"A/0"}
    only = decide(TREE, {"A/0"}, EVERYBODY - {"A/0"}, {"A/0": "gone"}, (), GO_ON)
    assert only.out == EVERYBODY - {"A/0"}


def test_who_asks_through_a_server_that_is_lost_is_not_let_in() -> None:
    decision = decide(TREE, EVERYBODY - {"A/1"}, {"A/1"}, {"A": "gone"}, ("A/1",), GO_ON)
    assert decision.joined == ()
    assert decision.out == {"A/0", "A/1"}


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
