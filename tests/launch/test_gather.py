"""The report of nodes that were on several machines."""

from __future__ import annotations

import json
from pathlib import Path

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


@pytest.mark.parametrize(
    ("node", "status", "says"),
    [
        (None, BAD_USAGE, "no records; allowed: a folder with the files"),
        ("C/0", BAD_USAGE, "records of C/0; allowed: records of global/0, A, B, A/0, B/0"),
        ("A", FAILED, "no record at byte"),
    ],
)
def test_what_are_no_records_of_this_run_is_refused(
    run: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    node: str | None,
    status: int,
    says: str,
) -> None:
    if node is not None:
        step_of(node, tmp_path / "records")
    if status == FAILED:
        with (tmp_path / "records" / "A.jsonl").open("a") as file:
            file.write("garbage\n")
    assert main(["report", str(run), str(tmp_path / "records")]) == status
    assert says in capsys.readouterr().err
