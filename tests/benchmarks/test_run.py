"""What `run.py --missing` leaves out, and what a run that is stopped leaves."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import run, sitting, venvs
from benchmarks.cells import Result, read_results, write_results
from benchmarks.measures import Turn
from benchmarks.sitting import sittings
from benchmarks.suites import cells_of_suite


@pytest.fixture
def asked(monkeypatch):
    """The first cells of the sittings that would be run, at commit `now`."""
    cells = []
    monkeypatch.setattr(run, "missing_here", list)
    monkeypatch.setattr(run, "sit", lambda group, *_: cells.append(group[0].sitting))
    monkeypatch.setattr(run, "commit_here", lambda: "now")
    monkeypatch.setattr(run.data, "fashion_mnist", lambda split: None)
    return cells


GROUPS = sittings(cells_of_suite("fallback"))
ALL = [group[0].sitting for group in GROUPS]


@pytest.mark.parametrize(
    ("commit", "cells", "still_asked"),
    [("now", GROUPS[0], ALL[1:]), ("before", GROUPS[0], ALL), ("now", GROUPS[0][1:], ALL)],
)
def test_a_sitting_all_of_whose_cells_have_results_of_this_commit_is_left_out(
    commit, cells, still_asked, asked, tmp_path, monkeypatch
):
    path = tmp_path / "fallback.jsonl"
    write_results(path, [Result.of(cell, commit=commit) for cell in cells])
    command = ["run.py", "fallback", "--missing", "--let-cores-sleep", "--out", str(path)]
    monkeypatch.setattr(sys, "argv", command)
    assert run.main() == 0
    assert asked == still_asked


@pytest.fixture
def page(monkeypatch):
    """The commands that would write the page."""
    written = []
    monkeypatch.setattr(run.subprocess, "run", lambda command, **_: written.append(command))
    monkeypatch.setattr(sys, "argv", ["run.py", "quick", "--page", "--let-cores-sleep"])
    return written


def test_missing_data_is_told_before_anything_starts(asked, page, monkeypatch, capsys):
    def missing(split):
        raise run.data.DataMissingError("apt install dataset-fashion-mnist")

    monkeypatch.setattr(run.data, "fashion_mnist", missing)
    assert run.main() == 2
    assert (asked, page) == ([], [])
    assert "apt install" in capsys.readouterr().err


def test_no_page_is_written_of_rows_that_failed(asked, page, tmp_path, monkeypatch, capsys):
    path = tmp_path / "quick.jsonl"
    sys.argv += ["--out", str(path)]
    cell = next(iter(cells_of_suite("quick")))
    write_results(path, [Result.of(cell, commit="now", state="it hung")])
    assert run.main() == 1
    assert page == []
    assert "it hung" in capsys.readouterr().err


def test_a_sitting_that_is_stopped_leaves_what_it_has(tmp_path, monkeypatch):
    path = tmp_path / "fallback.jsonl"
    cells = [replace(cell, where="loopback") for cell in GROUPS[0]]
    asked = []

    def turn(cell, *_):
        asked.append(cell)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return Turn("now", 0.0, "it was not run")

    monkeypatch.setattr(sitting, "run_turn", turn)
    monkeypatch.setattr(venvs, "python_of", lambda *_: Path(sys.executable))
    with pytest.raises(KeyboardInterrupt):
        sitting.sit(cells, 1, path, "now", {}, keep=False)
    (kept,) = read_results(path)
    assert (kept.config, kept.state, kept.commit) == (cells[0].config, "it was not run", "now")
