"""Who is lost, back and awaited, and which turns are torn: one list, from the records of a run."""

from __future__ import annotations

from typing import Any

import pytest
import recorded

from geomx.config import Run
from geomx.observe.members import MemberChanges, in_short, out_at_end
from geomx.observe.records import Record

TOML = """
[run]
name = "three"
shards = 2
on_loss = "continue"
[[region]]
name = "R"
[[party]]
name = "A"
parent = "R"
workers = 2
[[party]]
name = "B"
parent = "R"
workers = 1
[[party]]
name = "C"
workers = 1
"""
SILENT = "nothing was heard of it for 5 s"


def run_of(policy: str = "fsa") -> Run:
    return Run.parse(TOML, "three.toml", [f"sync.policy={policy}"])


def roster(
    t: float, number: int, out: str = "", node: str = "global/0", members: int | None = None, **more: Any
) -> Record:
    """Of a run of four workers, which goes on at turn 10 behind the first, at turn 20 behind the second."""
    left = 4 - len(list(filter(None, out.split(", ")))) if members is None else members
    more = {"number": number, "turns": {"": 10 * number}} | more
    return recorded.roster(t, out, members=left, node=node, **more)


def torn(t: float, node: str, turn: int, whom: str, cohort: str = "") -> Record:
    return Record(t, node, "torn", "warning", {"turn": turn, "cohort": cohort, "whom": whom})


def note(t: float, node: str, name: str, **fields: Any) -> Record:
    return Record(t, node, name, "info", fields)


def members_of(*records: Record, policy: str = "fsa") -> MemberChanges:
    members = MemberChanges(run_of(policy))
    for record in records:
        members.take(record)
    return members


def texts(members: MemberChanges) -> list[str]:
    return [change.text for change in members.changes]


def left(t: float, peer: str, node: str = "global/0", early: bool = True) -> Record:
    return note(t, node, "left", peer=peer, turn=7, **({"early": True} if early else {}))


def test_who_was_asked_to_leave_and_has_is_not_lost() -> None:
    ends = [left(20.0, worker, early=False) for worker in ("A/0", "B/0", "C/0")]
    members = members_of(left(5.0, "A/1", "A"), left(5.1, "A/1"), left(5.2, "A/1", "global/1"), *ends)
    assert texts(members) == ["A/1 has left; 3 of 4 workers take part"]
    assert members.left == {"A/1"}
    assert not members.is_out("A/1")
    assert in_short(members.told(), 4) == "1 worker left; 3 of 4 workers at the end"
    assert out_at_end(members.told()) == set()


def test_rosters_count_those_who_have_left_no_more() -> None:
    members = members_of(left(5.0, "A/1"), roster(12.0, 1, out="B/0", lost={"B/0": SILENT}, members=2))
    assert texts(members)[1].startswith(f"B/0 is lost ({SILENT}); 2 of 4 workers take part")
    assert in_short(members.told(), 4) == "1 worker lost, 0 back, 1 worker left; 2 of 4 workers at the end"


@pytest.mark.parametrize(
    ("codec", "node", "tells"),
    [
        ("lan.codec_up=int8", "A/1", True),
        ("wan.codec_up=int8", "A/1", False),
        ("wan.codec_up=int8", "C", True),
        ("party.C.workers=1", "C", False),
    ],
)
def test_what_a_codec_held_back_is_lost_with_its_node(codec: str, node: str, tells: bool) -> None:
    run = Run.parse(TOML, "three.toml", [codec])
    members = MemberChanges(run)
    members.take(roster(12.0, 1, out="A/1" if node == "A/1" else "C/0", lost={node: SILENT}))
    (text,) = texts(members)
    assert (", and so is what its codec held back; " in text) is tells


LOST = roster(12.0, 1, out="A/1", lost={"A/1": SILENT})
BACK = roster(15.0, 2, joined="A/1")


def test_a_worker_is_lost_and_comes_back() -> None:
    members = members_of(
        note(2.0, "A/0", "attached"), note(2.5, "A/1", "attached"), LOST, note(14.0, "A/1", "attached"), BACK
    )
    assert members.told() == [
        {
            "at_s": 10.0, "kind": "lost", "who": ["A/1"],
            "text": f"A/1 is lost ({SILENT}); 3 of 4 workers take part from turn 10 on",
            "cohort": "", "turn": 10, "workers": 3,
        },
        {
            "at_s": 13.0, "kind": "back", "who": ["A/1"],
            "text": "A/1 is back; 4 of 4 workers take part from turn 20 on", "cohort": "", "turn": 20, "workers": 4,
        },
    ]  # fmt: skip
    assert members.out == frozenset()


def test_each_change_is_told_once_though_all_nodes_note_the_rosters() -> None:
    members = MemberChanges(run_of())
    told = [
        members.take(note(11.9, "A", "lost", peer="A/1", reason=SILENT)),
        members.take(LOST),
        members.take(roster(12.1, 1, out="A/1", lost={"A/1": SILENT}, node="global/1")),
        members.take(roster(12.1, 1, out="A/1", lost={"A/1": SILENT}, node="A", members=1)),
        members.take(
            Record(12.2, "C/0", "roster", "debug", {"number": 1, "out": 1, "reason": "A/1 is lost"})
        ),
    ]
    assert [len(changes) for changes in told] == [0, 1, 0, 0, 0]


def test_a_server_is_lost_with_all_below_it_and_told_of_by_both_shards() -> None:
    lost = {"A": SILENT}
    members = members_of(
        roster(12.0, 1, out="A/0, A/1", lost=lost), roster(12.1, 2, out="A/0, A/1", lost=lost)
    )
    (change,) = members.changes
    assert (change.kind, change.who, change.workers) == ("lost", ("A/0", "A/1"), 2)
    assert change.text == f"A is lost ({SILENT}); 2 of 4 workers take part from turn 10 on"
    assert [members.is_out(name) for name in ("A", "A/0", "R", "global/0", "nobody")] == [True, True] + 3 * [
        False
    ]


def test_who_comes_back_as_another_is_lost_has_an_entry_of_its_own() -> None:
    members = members_of(LOST, roster(13.0, 2, out="C/0", joined="A/1", lost={"C/0": SILENT}))
    assert [(change.kind, change.who) for change in members.changes[1:]] == [
        ("back", ("A/1",)),
        ("lost", ("C/0",)),
    ]
    assert texts(members)[1:] == [
        "A/1 is back; 3 of 4 workers take part from turn 20 on",
        f"C/0 is lost ({SILENT}); 3 of 4 workers take part from turn 20 on",
    ]


SAID = "A/0 is lost (so it says); B is awaited: nobody; C/0 is back"  # words within a reason are no marks


@pytest.mark.parametrize(
    ("out", "lost", "told"),
    [
        ("A/1", {"A/1": SAID}, f"A/1 is lost ({SAID}); 3 of 4 workers take part from turn 10 on"),
        (
            "A/0, A/1, C/0",
            {"A/1": SILENT},
            f"A/1 is lost ({SILENT}); 2 more workers lost; 1 of 4 workers takes",
        ),
        ("A/0, A/1", {}, "A/0, A/1 are lost; 2 of 4"),
    ],
)
def test_who_is_lost_is_told_whatever_the_reasons_name(out: str, lost: dict[str, str], told: str) -> None:
    """Reasons come from other machines."""
    (text,) = texts(members_of(roster(1.0, 1, out=out, lost=lost)))
    assert text.startswith(told)


def test_turns_are_those_in_which_workers_take_their_steps() -> None:
    """MixedSync counts steps by party; the whole run's turns are calls alone."""
    parties = {"": 1, "A": 7, "C": 9}
    members = members_of(
        roster(1.0, 1, out="A/1", lost={"A/1": SILENT}, turns=parties),
        roster(2.0, 2, out="A/1, B/0, C/0", lost={"B": SILENT, "C": SILENT}, turns=parties),
        policy="mixed",
    )
    assert [(change.cohort, change.turn) for change in members.changes] == [("A", 7), (None, None)]
    assert texts(members)[0].endswith("; 3 of 4 workers take part from turn 7 of A on")
    assert texts(members)[1].endswith("; 1 of 4 workers takes part")


def test_who_is_awaited_is_told_once_until_it_is_there_again_and_may_be_lost_after_all() -> None:
    short = "2 workers would be left, and run.least_workers is 3"
    members = members_of(
        roster(5.0, 1, awaited={"A": short}),
        roster(10.0, 2, awaited={"A": short}),
        note(10.5, "A/0", "resumed", peer="A"),  # its worker, which knows less
        note(11.0, "R", "joined", peer="A"),
        note(12.0, "R", "joined", peer="B"),
    )
    assert [(change.t, change.kind, change.who, change.workers) for change in members.changes] == [
        (5.0, "roster", ("A/0", "A/1"), 4),
        (11.0, "back", ("A/0", "A/1"), 4),
    ]
    assert texts(members) == [f"A is awaited: {short}", "A is back, and is no longer awaited"]
    assert members.take(roster(20.0, 3, awaited={"A": short}))
    members.take(roster(21.0, 4, out="A/0, A/1", lost={"A": SILENT}))
    members.take(note(22.0, "R", "joined", peer="A"))
    assert [change.kind for change in members.changes[2:]] == ["roster", "lost"]


def test_a_torn_turn_has_one_line_behind_the_roster_that_tore_it() -> None:
    tears = [
        roster(12.0, 1, out="A/1, B/0", lost={"R": SILENT}),
        torn(12.0, "global/0", 9, "A/1, B/0"),
        roster(12.1, 1, out="A/1, B/0", node="R", members=1),
        torn(12.1, "R", 9, "A/1, B/0"),
        roster(12.2, 1, out="A/1, B/0", node="A", members=1),
        torn(12.2, "A", 9, "A/1"),
        torn(12.2, "A", 8, "A/1"),
        torn(12.3, "A", 9, "A/0", cohort="A"),
    ]
    members = members_of(*tears)
    told = [(change.kind, change.cohort, change.turn, change.who) for change in members.changes]
    assert told == [
        ("lost", "", 10, ("A/1", "B/0")),
        ("torn", "", 9, ("A/1", "B/0")),
        ("torn", "", 8, ("A/1",)),
        ("torn", "A", 9, ("A/0",)),
    ]
    assert [change.workers for change in members.changes] == [2, 2, 2, 2]
    says = "so slices of its step are means over different workers"
    assert texts(members)[1] == f"turn 9 is torn: it lost A/1, B/0 in the middle, {says}"
    assert texts(members)[3] == f"turn 9 of A is torn: it lost A/0 in the middle, {says}"


def test_of_a_torn_turn_servers_name_their_own_workers() -> None:
    members = members_of(
        torn(12.1, "A", 9, "A/1"),
        roster(12.1, 1, out="A/1, B/0", node="A", members=1),
        torn(12.2, "R", 9, "A/1, B/0"),
        roster(12.2, 1, out="A/1, B/0", node="R", members=1),
    )
    (change,) = members.changes
    assert (change.who, change.text.partition(" in ")[0]) == (
        ("A/1", "B/0"),
        "turn 9 is torn: it lost A/1, B/0",
    )


def test_without_losses_the_list_is_empty() -> None:
    members = members_of(note(1.0, "A/0", "attached"), note(2.0, "A", "joined", peer="A/0"))
    assert (members.told(), in_short([], 4), out_at_end([])) == ([], "", set())


def test_nobody_knows_how_long_a_run_trained_that_never_did() -> None:
    assert members_of(LOST).told()[0]["at_s"] is None


def test_the_list_in_short() -> None:
    short = "2 workers would be left, and run.least_workers is 3"
    records = [
        LOST,
        torn(11.9, "A", 9, "A/1"),
        roster(12.1, 1, out="A/1", node="A", members=1),
        roster(13.0, 2, out="A/1", awaited={"C": short}),
        note(14.0, "global/1", "resumed", peer="C"),
        BACK,
        roster(16.0, 4, out="A/0, A/1, B/0", lost={"R": SILENT}),
        roster(17.0, 5, out="A/1, B/0", joined="A/0"),
    ]
    told = members_of(*records).told()
    assert in_short(told, 4) == "4 workers lost, 2 back, 1 wait, 1 torn turn; 2 of 4 workers at the end"
    assert out_at_end(told) == {"A/1", "B/0"}
    assert in_short(members_of(*records[:3]).told(), 4) == (
        "1 worker lost, 0 back, 1 torn turn; 3 of 4 workers at the end"
    )


def test_a_global_server_that_goes_on_from_its_log_is_told_and_changes_nobody() -> None:
    members = members_of(note(5.0, "global/0", "restored", seconds=0.25, term=2))
    assert texts(members) == ["global/0 goes on from its log, which took 0.2 s to read"]
    assert in_short(members.told(), 4) == "a global server restarted 1 time; 4 of 4 workers at the end"


def test_a_party_that_nobody_describes_is_counted_when_it_comes() -> None:
    run = Run.parse(TOML, "three.toml", ["run.on_loss=continue", "run.open=true"])
    members = MemberChanges(run)
    members.take(roster(12.0, 1, joined="guest-1/0", members=5))
    members.take(roster(13.0, 2, lost={"guest-1": SILENT}, members=4))
    assert texts(members) == ["guest-1/0 has come; 5 workers take part from turn 10 on"]
