"""Runs amid faults: which faults are made, what a cut link does, and the figures of what such a run has left."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import storm, workloads
from benchmarks.storm_faults import Act, Fault, Relay, acts_of, faults_of
from benchmarks.storm_figures import GLOBAL, Seen, counted_lines, curve_of, figures, loss_at
from benchmarks.storm_nodes import KEPT, description
from benchmarks.storm_train import CONTEXT, SHAPE, VOCABULARY, Windows, tokens
from geomx.config import Run
from geomx.observe.records import Record

ROOT = Path(__file__).parents[2]
UNIT = 40.0

# -- what is run ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", storm.TABLE["schedules"])
def test_no_fault_begins_while_another_lies_upon_its_party(name: str) -> None:
    faults = faults_of(storm.TABLE["schedules"][name], storm.PARTIES, 360.0)
    assert len(faults) == len(storm.TABLE["schedules"][name])
    until = dict.fromkeys(storm.PARTIES, 0.0)
    for fault in faults:
        assert fault.at_s > until[fault.party]
        until[fault.party] = fault.at_s + fault.for_s


def test_the_whole_schedule_adds_two_faults_of_each_kind_to_those_of_workers() -> None:
    workers, every = storm.TABLE["schedules"]["workers"], storm.TABLE["schedules"]["all"]
    assert [fault for fault in every if fault in workers] == workers
    added = sorted(fault["what"] for fault in every if fault not in workers)
    assert added == ["cut link"] * 2 + ["kill server"] * 2 + ["stop worker"] * 2


def test_faults_of_parties_that_are_not_there_or_that_come_too_late_are_left_out() -> None:
    told = [
        {"at_s": at_s, "what": "kill worker", "party": party}
        for at_s, party in ((9, "A"), (3, "C"), (4, "B"))
    ]
    assert [(fault.at_s, fault.party) for fault in faults_of(told, "AB", 10.0)] == [(4, "B")]
    with pytest.raises(ValueError, match="`burn worker` is no fault"):
        faults_of([{"at_s": 1.0, "what": "burn worker", "party": "A"}], "A", 10.0)


def test_each_fault_is_undone_in_its_time() -> None:
    faults = [
        Fault(1.0, "cut link", "B", 20.0),
        Fault(2.0, "kill server", "A"),
        Fault(3.0, "stop worker", "A", 2.0),
    ]
    assert [(act.t, act.what, act.node, act.fault) for act in acts_of(faults)] == [
        (1.0, "cut", "B", 0),
        (2.0, "kill", "A", 1),
        (3.0, "stop", "A/0", 2),
        (5.0, "go on", "A/0", 2),
        (7.0, "start", "A", 1),
        (21.0, "heal", "B", 0),
    ]


@pytest.mark.parametrize("system", storm.TABLE["systems"])
def test_the_description_is_one_of_a_run(system: str) -> None:
    ports = {GLOBAL: 7000, "A": 7001, "B": 7002}
    text = description(storm.TABLE["systems"][system], ports, on_loss="")
    run = Run.parse(text, "storm.toml")
    assert run.workers == ("A/0", "B/0")
    assert run.address_of("B") == "127.0.0.1:7002"
    assert run.sync.policy.startswith(system)
    assert 'on_loss = "continue"' in description(storm.TABLE["systems"][system], ports, "continue")


def test_the_model_has_3_million_parameters() -> None:
    model = workloads.Gpt(*SHAPE, VOCABULARY)
    assert sum(parameter.numel() for parameter in model.parameters()) == 3_323_136


def test_a_worker_that_is_started_again_reads_the_same_windows_until_the_moment_that_it_is_told(
    tmp_path: Path,
) -> None:
    train, held_out = tokens()
    assert 0 <= int(train.min()) <= int(train.max()) < VOCABULARY
    assert len(held_out) > CONTEXT
    windows = Windows(train, 3, tmp_path / "until")
    first = [batch.tolist() for batch, _ in zip(windows, range(4), strict=False)]
    assert first == [batch.tolist() for batch, _ in zip(windows, range(4), strict=False)]
    (tmp_path / "until").write_text("0.0")
    assert [batch.tolist() for batch in windows] == first[:1]


def test_a_cut_link_holds_what_it_is_given_and_closes_nothing() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        relay = Relay(door.getsockname()[1])
        near = socket.create_connection(("127.0.0.1", relay.port))
        far, _ = door.accept()
        with near, far:
            near.sendall(b"before")
            assert far.recv(6) == b"before"
            relay.cut()
            near.sendall(b"amid")
            far.setblocking(False)
            with pytest.raises(BlockingIOError):
                far.recv(4)
            far.setblocking(True)
            relay.heal()
            assert far.recv(4, socket.MSG_WAITALL) == b"amid"
            far.sendall(b"answer")
            assert near.recv(6, socket.MSG_WAITALL) == b"answer"
            near.close()
            assert far.recv(1) == b""
        relay.close()


# -- its figures ------------------------------------------------------------------------------------------------


def record(t: float, node: str, name: str, /, **fields: Any) -> Record:
    assert name in KEPT, f"{name} is not kept of a run"
    return Record(t, node, name, "debug", fields)


def closed(t: float, turn: int, origins: str, names: bool = True) -> Record:
    """A round with these parties' workers, of three."""
    named: dict[str, Any] = {"cohort": "", "counted": len(origins)} if names else {}
    if names and (absent := [f"{party}/0" for party in "ABC" if party not in origins]):
        named["absent"] = ", ".join(absent)
    return record(t, GLOBAL, "round", turn=turn, kind="gradient", weight=UNIT * len(origins), **named)


def line(t: float, turn: int, counted: int | None, loss: float = 2.0) -> dict[str, Any]:
    return {"t": t, "turn": turn, "samples": 40, "loss": loss, "counted": counted}


def seen(names: bool = True, **more: Any) -> Seen:
    """Three parties: A's worker dies at 112 and is back in the round of 140, B's server dies at 150 and is not."""
    rounds = ("ABC", "ABC", "BC", "BC", "ABC", "AC", "ABC")
    records = [closed(100.0 + 10 * turn, turn, origins, names) for turn, origins in enumerate(rounds)]
    records += [record(116.0, "A", "lost", peer="A/0", reason="silence")]
    records += [record(120.0, "A/0", "clock"), record(158.0, "B", "clock")]
    ended = {"A/0": [5, 4, 7], "C/0": [5, 4, 7]}
    finished = {"A/0": 3, "C/0": 7}
    for worker, ledger in ended.items():
        records += [record(170.0, worker, "finished", ledger=ledger, contributions=finished[worker])]
    begins, again = ({"t": t, "attached": True, "counted": counted} for t, counted in ((90.0, 0), (123.0, 2)))
    lines: dict[str, list[dict[str, Any]]] = {
        "A/0": [begins, line(100.1, 0, 1), line(110.1, 1, 2)],
        "B/0": [],
        "C/0": [begins, *(line(100.1 + 10 * turn, turn, turn + 1, loss=4.0) for turn in range(7))],
    }
    lines["A/0"] += [again, line(140.1, 4, 3), line(150.1, 5, 4), line(160.1, 6, 5)]
    told: dict[str, Any] = {
        "ended": {},
        "workers": ["A/0", "B/0", "C/0"],
        "unit": UNIT,
        "began": 100.0,
        "until": 165.0,
        "faults": [Fault(12.0, "kill worker", "A"), Fault(45.0, "kill server", "B")],
        "acts": [
            Act(112.0, "kill", "A/0", 0),
            Act(117.0, "start", "A/0", 0),
            Act(145.0, "kill", "B", 1),
            Act(150.0, "start", "B", 1),
        ],
        "records": sorted(records, key=lambda each: each.t),
        "lines": lines,
    }
    return Seen(**told | more)


def test_rounds_behind_the_first_and_their_contributions_are_counted() -> None:
    for names in (True, False):
        row = figures(seen(names))
        assert (row["rounds"], row["contributions"]) == (6, 3 + 2 + 2 + 3 + 2 + 3)
        assert row["longest_without_round_s"] == 10.0


@pytest.mark.parametrize(
    ("fields", "took_part"),
    [
        ({"cohort": "", "counted": 3}, {"A/0", "B/0", "C/0"}),
        ({"cohort": "", "counted": 1, "absent": "A/0, C/0"}, {"B/0"}),
        ({"cohort": "", "counted": 0, "absent": "A/0, B/0, C/0"}, set()),
        ({"cohort": "B", "counted": 1}, {"B/0"}),
        ({"cohort": "B", "counted": 0}, None),  # who is absent is told of everybody's rounds alone
        ({}, None),
    ],
)
def test_who_took_part_in_a_round_is_everybody_but_who_was_absent(
    fields: dict[str, Any], took_part: set[str] | None
) -> None:
    records = [record(101.0, GLOBAL, "round", turn=1, kind="gradient", weight=UNIT, **fields)]
    (found,) = seen(records=records).all_rounds
    assert found.origins == (None if took_part is None else frozenset(took_part))


def test_of_the_living_all_took_part_but_where_one_stayed_away() -> None:
    row = figures(seen())
    assert (row["living_share_mean"], row["living_share_least"]) == (1.0, 1.0)
    without_faults = figures(seen(faults=[], acts=[]))
    assert without_faults["living_share_least"] == pytest.approx(2 / 3)


def test_a_fault_has_its_times() -> None:
    kills_worker, kills_server = figures(seen())["faults"]
    assert kills_worker["noticed_s"] == 4.0
    assert kills_worker["others_next_s"] == 8.0
    assert kills_worker["again_s"] == 140.0 - 117.0
    assert kills_worker["again_after_imports_s"] == 140.0 - 120.0
    assert kills_server["noticed_s"] is None
    assert kills_server["others_next_s"] == 5.0
    assert kills_server["again_s"] == 10.0
    assert kills_server["again_after_imports_s"] == 2.0


def test_whoever_is_back_trains_from_its_first_step_behind_the_roster_that_let_it_in() -> None:
    """A process that kept running may still take steps that count for nothing."""
    let_in = record(122.0, GLOBAL, "roster", joined="A/0")
    steps = [
        record(t, node, "step")
        for t, node in ((118.0, "A/0"), (121.0, "C/0"), (124.0, "A/0"), (151.0, "B/0"))
    ]
    records = sorted([*seen().records, let_in, *steps], key=lambda each: each.t)
    kills_worker, kills_server = figures(seen(records=records))["faults"]
    assert kills_worker["trains_s"] == 124.0 - 120.0  # its imports were done at 120
    assert kills_server["trains_s"] is None  # its worker's step was before its imports were done


def test_where_rounds_name_nobody_the_workers_lines_say_when_it_was_back() -> None:
    kills_worker, kills_server = figures(seen(names=False))["faults"]
    assert kills_worker["again_s"] == 140.0 - 117.0
    assert kills_server["again_s"] is None


def test_what_was_not_done_has_no_times() -> None:
    row = figures(seen(acts=[], began=0.0, records=[]))
    assert row["rounds"] == 0
    assert row["longest_without_round_s"] is None
    assert [row["faults"][0][key] for key in ("noticed_s", "others_next_s", "again_s")] == [None] * 3
    assert storm.beside(row, row)["rounds_share"] is None
    assert storm.beside(row, None) == {}


def test_the_next_fault_of_a_party_ends_the_waiting_for_the_one_before() -> None:
    faults = [Fault(12.0, "kill worker", "A"), Fault(25.0, "stop worker", "A", 2.0)]
    acts = [Act(112.0, "kill", "A/0", 0), Act(117.0, "start", "A/0", 0)]
    acts += [Act(125.0, "stop", "A/0", 1), Act(127.0, "go on", "A/0", 1)]
    killed, stopped = figures(seen(faults=faults, acts=acts))["faults"]
    assert killed["again_s"] is None
    assert stopped["again_s"] == 140.0 - 127.0


def test_the_ledger_is_compared_with_the_rounds() -> None:
    ledger = figures(seen())["ledger"]
    assert ledger["rounds"] == {"A/0": 5, "B/0": 6, "C/0": 7}
    assert ledger["kept"] == {"A/0": 5, "B/0": 4, "C/0": 7}
    assert ledger["own"] == {"A/0": 5, "B/0": 0, "C/0": 7}
    assert ledger["in_doubt"] == {"A/0": 1, "B/0": 0, "C/0": 0}
    assert ledger["exact"] is False


def test_of_a_torn_turn_the_ledger_and_the_rounds_may_count_different_workers() -> None:
    torn = [record(t, GLOBAL, "torn", turn=turn, whom="A/0, B/0") for t, turn in ((116.0, 1), (150.0, 5))]
    records = sorted([*seen().records, *torn], key=lambda each: each.t)
    ledger = figures(seen(records=records))["ledger"]
    assert ledger["torn"] == {"A/0": 2, "B/0": 2, "C/0": 0}
    assert ledger["exact"] is True  # of B/0, two are missing
    once = [each for each in records if each.t != 150.0 or each.name != "torn"]
    assert figures(seen(records=once))["ledger"]["exact"] is False


def test_without_names_a_ledger_may_have_no_more_than_was_pushed() -> None:
    assert figures(seen(names=False))["ledger"]["exact"] is False  # B's worker has told of nothing
    lines = seen().lines | {"B/0": [line(100.0 + turn, turn, turn + 1) for turn in range(5)]}
    assert figures(seen(names=False, lines=lines))["ledger"]["exact"] is True
    assert figures(seen(names=False, lines=lines, faults=[], acts=[]))["ledger"]["exact"] is False
    assert figures(seen(records=[]))["ledger"]["exact"] is None


def test_what_the_ledger_has_not_counted_trained_nothing() -> None:
    lines = [{"t": 0.0, "attached": True, "counted": 7}, line(1.0, 1, 8), line(2.0, 2, 8), line(3.0, 3, 9)]
    assert [each["turn"] for each in counted_lines(lines)] == [1, 3]


def test_the_loss_is_of_the_last_tenth_of_so_many_samples() -> None:
    curve = curve_of(seen())
    assert curve[0] == (80.0, 3.0)
    assert curve[-1] == (480.0, 3.0)
    assert loss_at([(90.0, 9.0), (95.0, 3.0), (100.0, 2.0), (110.0, 1.0)], 100.0) == 2.5
    assert loss_at([], 0.0) is None


def test_runs_without_figures_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    row = figures(seen(acts=[], began=0.0, records=[], ended={"A": "A ended"}))
    storm.show([row | {"system": "fsa", "kind": "storm", "held_out_loss": None}])
    shown = capsys.readouterr().out
    assert "kill server" in shown
    assert "A ended" in shown


# -- whole ------------------------------------------------------------------------------------------------------


@pytest.mark.grids
@pytest.mark.processes
def test_a_run_without_faults_counts_every_contribution(tmp_path: Path) -> None:
    path = tmp_path / "storm.jsonl"
    command = [sys.executable, str(ROOT / "benchmarks" / "storm.py"), "--systems", "fsa", "--only", "calm"]
    options = ["--parties", "2", "--seconds", "3", "--on-loss", "none", "--out", str(path)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=400)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = map(json.loads, path.read_text().splitlines())
    assert row["state"] == "ok"
    assert row["contributions"] == 2 * row["rounds"] > 0
    assert row["living_share_least"] == 1.0
    assert row["ledger"]["exact"] is True
    assert row["held_out_loss"] is not None
