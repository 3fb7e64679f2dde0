"""The report of nodes that were on several machines."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from geomx.cli import BAD_USAGE, FAILED, OK, main
from geomx.observe.records import Recorder

TOML = '[run]\nname = "far"\n[[party]]\nname = "A"\nworkers = 1\n[[party]]\nname = "B"\nworkers = 1\n'


@pytest.fixture
def run(tmp_path: Path) -> Path:
    path = tmp_path / "far.toml"
    path.write_text(TOML)
    (tmp_path / "records").mkdir()
    return path


def step_of(node: str, records: Path, samples: int = 8) -> None:
    recorder = Recorder(records, node, trace=True)
    recorder.record("step", turn=0, samples=samples)
    recorder.record("span", track="training", label="step", start=1.0, stop=2.0)
    recorder.close()


def test_of_some_nodes_it_says_whose_records_are_missing(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    step_of("A/0", tmp_path / "records")
    step_of("B/0", tmp_path / "records", samples=16)
    report, trace = tmp_path / "new" / "report.json", tmp_path / "new" / "trace.json"
    arguments = ["report", str(run), str(tmp_path / "records"), "--json", str(report), "--trace", str(trace)]
    assert main([*arguments, "sync.policy=mixed"]) == OK
    said = capsys.readouterr().out
    assert "no records of global/0, A, B:" in said
    assert "far, mixed, 2 parties" in said
    made = json.loads(report.read_text())
    assert (made["steps"], made["samples"]) == (1, 24)
    named = [e["args"]["name"] for e in json.loads(trace.read_text())["traceEvents"] if e["ph"] == "M"]
    assert {"A/0", "B/0"} <= set(named)


def test_a_failure_that_a_node_told_is_shown(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recorder = Recorder(tmp_path / "records", "A")
    recorder.record("failed", "error", node="A/0", error="NodeLost", reason="cannot read [/etc/x]")
    recorder.close()
    assert main(["report", str(run), str(tmp_path / "records")]) == OK
    assert "A: A/0 failed: cannot read [/etc/x]" in capsys.readouterr().out


def tell(node: str, records: Path, *notes: tuple[str, dict[str, Any]]) -> None:
    """What one process of a node has recorded."""
    recorder = Recorder(records, node)
    for name, fields in notes:
        recorder.record(name, "info", **fields)
    recorder.close()


def roster(out: str, joined: str, members: int, lost: dict[str, str]) -> tuple[str, dict[str, Any]]:
    fields = {"number": 1, "out": out, "joined": joined, "members": members, "turns": {"": 3}, "lost": lost}
    return "roster", fields | {"awaited": {}}


def finished(sha256: str = "ab" * 32) -> tuple[str, dict[str, Any]]:
    fields = {"steps": 1, "samples": 8, "train_s": 1.0, "parameters": 9, "parameters_sha256": sha256}
    return "finished", fields | {"ledger": None, "contributions": 1, "cohort": ""}


def test_weights_that_differ_are_no_result(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tell("A/0", tmp_path / "records", finished())
    tell("B/0", tmp_path / "records", finished("cd" * 32))
    assert main(["report", str(run), str(tmp_path / "records")]) == FAILED
    assert "the result is wrong: workers have different weights" in capsys.readouterr().err


FAILED_OF = {"node": "A", "error": "NodeLost", "reason": "silent for 5 s"}
IS_LOST = roster("A/0", "", 1, {"A/0": "nothing was heard of it for 5 s"})
IS_BACK = roster("", "A/0", 2, {})


def gathered(run: Path, folder: Path) -> dict[str, Any]:
    report = folder / "report.json"
    assert main(["report", str(run), str(folder / "records"), "--json", str(report)]) == OK
    made: dict[str, Any] = json.loads(report.read_text())
    return made


@pytest.mark.parametrize("is_back", [False, True])
def test_a_run_that_goes_on_without_a_worker_has_not_failed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], is_back: bool
) -> None:
    """Nor one in which it was started again."""
    records = tmp_path / "records"
    tell("A/0", records, ("attached", {"parameters": 9, "trained_bytes": 36}), ("failed", FAILED_OF))
    tell("global/0", records, IS_LOST, *[IS_BACK] * is_back)
    for worker in ("A/0", "B/0") if is_back else ("B/0",):
        tell(worker, records, finished())
    report = gathered(run, tmp_path)
    assert (report["ended"], report["failure"]) == ("well", None)
    changes = [(change["kind"], change["who"]) for change in report["members"]]
    assert changes == [("lost", ["A/0"]), ("back", ["A/0"])][: 1 + is_back]
    assert all(change["at_s"] > 0 for change in report["members"])
    said = capsys.readouterr().out
    assert "failed" not in said
    assert f"1 worker lost, {int(is_back)} back; {1 + is_back} of 2 workers at the end" in said


def test_who_failed_before_it_was_started_again_is_not_named_for_what_came_later(
    run: Path, tmp_path: Path
) -> None:
    records = tmp_path / "records"
    tell("A/0", records, ("failed", FAILED_OF | {"node": "A/0"}))
    tell("global/0", records, IS_LOST, IS_BACK)
    tell("A/0", records, ("step", {"samples": 8}))
    tell("B/0", records, ("failed", {"node": "B/0", "error": "RunFailed", "reason": "ValueError: boom"}))
    report = gathered(run, tmp_path)
    assert (report["ended"], report["failure"]) == ("failed", "B/0: B/0 failed: ValueError: boom")


@pytest.mark.parametrize(
    ("node", "status", "says"),
    [
        (None, BAD_USAGE, "no records; allowed: a folder with the files"),
        ("C/0", BAD_USAGE, "records of C/0; allowed: records of global/0, A, B, A/0, B/0"),
        ("A", FAILED, "no record at byte"),
    ],
)
def test_what_are_no_records_of_this_run_is_refused(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], node: str | None, status: int, says: str
) -> None:
    if node is not None:
        step_of(node, tmp_path / "records")
    if status == FAILED:
        with (tmp_path / "records" / "A.jsonl").open("a") as file:
            file.write("garbage\n")
    assert main(["report", str(run), str(tmp_path / "records")]) == status
    assert says in capsys.readouterr().err
