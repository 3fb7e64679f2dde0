"""What the report says of runs whose nodes are lost, come back, and are started again."""

from __future__ import annotations

import json

import pytest
from recorded import TWO, finished, first_step, record, roster, shown, usage

from geomx.config import Run
from geomx.observe.records import Record
from geomx.observe.report import closing_rows, make_report


@pytest.fixture
def run() -> Run:
    return Run.parse(TWO, "two.toml")


def test_the_loss_is_that_of_the_living(run: Run) -> None:
    logged = [record("A/0", "log", loss=9.0), record("B/0", "log", loss=2.0)]
    left = record("global/0", "left", peer="A/0", turn=2, early=True)
    assert make_report(run, [*logged, left], wall_s=9.0)["final_loss"] == 2.0
    assert make_report(run, [logged[0], left], wall_s=9.0)["final_loss"] == 9.0


def test_who_has_left_early_has_no_say_in_what_the_others_end_with(run: Run) -> None:
    left = record("global/0", "left", peer="A/0", turn=2, early=True)
    records = [finished("A/0", "cd" * 32, [3, 3]), left, finished("B/0", "ab" * 32, [3, 5])]
    report = make_report(run, records, wall_s=9.0)
    assert report["parameters_sha256"] == "ab" * 32
    rows = {name: (value, verdict) for name, value, verdict in closing_rows(report)}
    assert rows["members"] == ("1 worker left; 1 of 2 workers at the end", "")
    assert rows["weights"][0].startswith("the same on all workers that are left")
    assert "lost" not in rows


LOST = roster(3.0, "A/0", lost={"A/0": "nothing was heard of it for 5 s"})
BACK = roster(4.0, "", "A/0", 2)


def test_who_was_lost_and_came_back_is_one_list(run: Run) -> None:
    attached = record("A/0", "attached", parameters=10, trained_bytes=40)
    report = make_report(run, [attached, LOST, BACK], 1.0)
    json.dumps(report, allow_nan=False)
    assert [(each["at_s"], each["kind"]) for each in report["members"]] == [(3.0, "lost"), (4.0, "back")]
    assert ("members", "1 worker lost, 1 back; 2 of 2 workers at the end", "") in closing_rows(report)
    records = [LOST, BACK, finished("A/0"), finished("B/0")]
    killed = make_report(run, records, 1.0, lost={"A/0": "was killed by SIGKILL"})
    assert "the same on all workers, " in shown(killed)


def test_who_is_missing_at_the_end_or_from_a_part_of_a_step_is_marked(run: Run) -> None:
    report = make_report(run, [LOST, finished("B/0", "bb" * 32)], 1.0)
    assert ("members", "1 worker lost, 0 back; 1 of 2 workers at the end", "bad") in closing_rows(report)
    assert "the same on all workers that are left" in shown(report)
    torn = record("global/0", "torn", turn=6, cohort="", whom="A/0")
    rows = closing_rows(make_report(run, [torn, LOST, BACK], 1.0))
    assert ("members", "1 worker lost, 1 back, 1 torn turn; 2 of 2 workers at the end", "bad") in rows
    assert "members" not in shown(make_report(run, [finished("B/0")], 1.0))


def clock(node: str) -> Record:
    """A process of a node has been started."""
    return record(node, "clock", unix_s=0.0)


def test_what_processes_did_before_others_took_their_place_counts(run: Run) -> None:
    records = [
        *[clock("A"), clock("A/0"), clock("B/0")],
        first_step("A", {"global/0": 10}, {"global/0": 20}),
        usage("A", {"global/0": 100, "A/0": 7}, {"global/0": 50, "A/0": 11}, cpu_s=2.0),
        *[record("A/0", "step", samples=8), record("A/0", "step", samples=8)],
        *[clock("A"), clock("A/0")],
        first_step("A", {"global/0": 1}, {"global/0": 20}),
        usage("A", {"global/0": 30, "A/0": 1}, {"global/0": 40, "A/0": 2}, cpu_s=0.5),
        *[record("A/0", "step", samples=8), finished("A/0"), finished("B/0")],
    ]
    report = make_report(run, records, 1.0)
    assert (report["wan_bytes_up"], report["wan_bytes_down"]) == (130, 90)
    assert (report["lan_bytes_up"], report["lan_bytes_down"]) == (13, 8)
    assert report["node_cpu_s"] == {"A": 2.5}
    assert (report["steps"], report["samples"]) == (3, 3 * 8 + 64)


def test_the_ledger_is_held_against_those_that_took_part_all_the_time(run: Run) -> None:
    """What the others have pushed may have counted nothing, or nobody knows how much it was."""
    ends = [finished("A/0", ledger=[2, 3]), finished("B/0", ledger=[2, 3])]
    away = {"lost": [LOST, BACK], "started again": [clock("A/0"), clock("A/0")]}
    for before in away.values():
        report = make_report(run, [*before, *ends], 1.0)
        assert (report["counted_exactly_once"], report["ledger_workers"]) == (True, 1)
        assert "proved by the ledger, of 1 of 2 workers: the rest were away" in shown(report)
    assert make_report(run, ends, 1.0)["counted_exactly_once"] is False
    wrong = [LOST, BACK, finished("A/0", ledger=[2, 4]), finished("B/0", ledger=[2, 4])]
    assert make_report(run, wrong, 1.0)["counted_exactly_once"] is False
    assert make_report(run, [LOST, ends[1]], 1.0)["counted_exactly_once"] is True
    every = [LOST, BACK, roster(5.0, "B/0", lost={"B/0": "gone"}), *ends]
    assert make_report(run, every, 1.0)["counted_exactly_once"] is None
