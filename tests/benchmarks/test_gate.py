"""What the gate measures, and when it fails."""

import sys

import pytest

from benchmarks import gate
from benchmarks.systems.adapters import refused


@pytest.mark.parametrize("name", gate.ROWS)
def test_each_row_can_be_had_and_has_measured_rounds(name: str) -> None:
    cell = gate.cell_of(name)
    assert refused(cell) is None
    assert cell.rounds_a_turn >= gate.ROUNDS
    assert cell.where == "lab"


@pytest.mark.parametrize(
    ("first", "again", "status"),
    [(1.0, None, 0), (1.2, 0.9, 0), (1.2, 1.2, 1)],
    ids=["as fast", "slow by chance", "slower"],
)
def test_a_row_that_is_slow_is_measured_once_more(first, again, status, monkeypatch, capsys) -> None:
    """Of the other commit a round takes one second."""
    answers = iter([{"dense": [1.0] * 3, "fp16": [first] * 3}, {"fp16": [again] * 4}])
    asked = []

    def measured(grounds, sides, names, turns):
        asked.append(list(names))
        return {name: (times, [1.0] * len(times)) for name, times in next(answers).items()} if names else {}

    monkeypatch.setattr(gate, "missing_here", list)
    monkeypatch.setattr(gate, "_installed", lambda commit: gate.ROOT)
    monkeypatch.setattr(gate, "_measured", measured)
    monkeypatch.setattr(sys, "argv", ["gate.py", "abcdef", "--rows", "dense", "fp16"])
    assert gate.main() == status
    assert asked == [["dense", "fp16"], [] if again is None else ["fp16"]]
    told = capsys.readouterr()
    assert "fp16" in told.out
    assert ("slower than 1.05 × abcdef: fp16" in told.err) == bool(status)


def test_a_commit_that_is_not_there_is_told(monkeypatch, capsys) -> None:
    monkeypatch.setattr(gate, "missing_here", list)
    monkeypatch.setattr(gate, "_install", lambda tree, place: None)
    monkeypatch.setattr(sys, "argv", ["gate.py", "nothing-of-this-name"])
    assert gate.main() == 2
    assert "nothing-of-this-name" in capsys.readouterr().err
