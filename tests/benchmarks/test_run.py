"""What `run.py --missing` leaves out, and what a run that is stopped leaves."""

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import run, sitting, venvs
from benchmarks.cells import Result, read_results, write_results
from benchmarks.measures import Turn
from benchmarks.sitting import Facts, sittings
from benchmarks.suites import cells_of_suite


@pytest.fixture
def asked(monkeypatch):
    """The numbers of the sittings that would be run, at commit `now`."""
    numbers = []
    monkeypatch.setattr(run.machine, "missing_here", list)
    monkeypatch.setattr(run, "_run", lambda groups, *_: numbers.extend(groups))
    monkeypatch.setattr(Facts, "here", lambda: Facts("now", {}))
    return numbers


@pytest.mark.parametrize(
    ("commit", "still_asked"), [("now", [2, 3, 4, 5, 6]), ("before", [1, 2, 3, 4, 5, 6])]
)
def test_a_sitting_that_has_results_of_this_commit_is_left_out(
    commit, still_asked, asked, tmp_path, monkeypatch
):
    path = tmp_path / "fallback.jsonl"
    first = sittings(cells_of_suite("fallback"))[0]
    write_results(path, [Result.of(cell, commit=commit) for cell in first])
    monkeypatch.setattr(sys, "argv", ["run.py", "fallback", "--missing", "--out", str(path)])
    assert run.main() == 0
    assert asked == still_asked


def test_a_sitting_that_lacks_a_cell_is_run_again_whole(asked, tmp_path, monkeypatch):
    path = tmp_path / "fallback.jsonl"
    first = sittings(cells_of_suite("fallback"))[0]
    write_results(path, [Result.of(cell, commit="now") for cell in first[1:]])
    monkeypatch.setattr(sys, "argv", ["run.py", "fallback", "--missing", "--out", str(path)])
    assert run.main() == 0
    assert 1 in asked


def test_a_sitting_that_is_stopped_leaves_what_it_has(tmp_path, monkeypatch):
    path = tmp_path / "fallback.jsonl"
    cells = [replace(cell, where="loopback") for cell in sittings(cells_of_suite("fallback"))[0]]
    asked = []

    def turn(cell, *_):
        asked.append(cell)
        if len(asked) == 2:
            raise KeyboardInterrupt
        return Turn("now", 0.0, "it was not run")

    monkeypatch.setattr(sitting, "run_turn", turn)
    monkeypatch.setattr(venvs, "python_of", lambda *_: Path(sys.executable))
    with pytest.raises(KeyboardInterrupt):
        run._run({1: cells}, 1, path, Facts("now", {}), keep=False)
    (kept,) = read_results(path)
    assert (kept.config, kept.state) == (cells[0].config, "it was not run")
