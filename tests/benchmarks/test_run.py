"""What `run.py --missing` leaves out."""

import sys

import pytest

from benchmarks import run
from benchmarks.cells import Result, write_results
from benchmarks.sitting import Facts, sittings
from benchmarks.suites import fallback


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
    first = sittings(fallback().cells)[0]
    write_results(path, [Result.of(cell, commit=commit) for cell in first])
    monkeypatch.setattr(sys, "argv", ["run.py", "fallback", "--missing", "--out", str(path)])
    assert run.main() == 0
    assert asked == still_asked


def test_a_sitting_that_lacks_a_cell_is_run_again_whole(asked, tmp_path, monkeypatch):
    path = tmp_path / "fallback.jsonl"
    first = sittings(fallback().cells)[0]
    write_results(path, [Result.of(cell, commit="now") for cell in first[1:]])
    monkeypatch.setattr(sys, "argv", ["run.py", "fallback", "--missing", "--out", str(path)])
    assert run.main() == 0
    assert 1 in asked
