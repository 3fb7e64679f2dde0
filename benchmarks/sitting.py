"""A sitting: cells that are compared with each other, run in turn (A B A B) so that what disturbs one disturbs all."""

from __future__ import annotations

import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks import data, systems, venvs
from benchmarks.cells import OK, Cell, Result
from benchmarks.data import DataMissingError
from benchmarks.grounds import Grounds, ways_of
from benchmarks.measures import Turn, result_of
from benchmarks.systems.base import ROOT, System
from benchmarks.turn import NOT_BEGUN, run_turn
from benchmarks.venvs import InstallError

MEASURED_PACKAGES = ("geomx", "torch", "numpy", "uvloop", "msgspec")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the figures of a run of the benchmark have in common."""

    commit: str
    machine: dict[str, str]

    @classmethod
    def here(cls) -> Facts:
        """Of this working tree and this machine. Behind the commit is a + where more than the page has changed."""
        commit = _git("rev-parse", "--short", "HEAD") or "unknown"
        changed = "+" if _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs") else ""
        machine = {"kernel": platform.release(), "cores": str(len(os.sched_getaffinity(0)))}
        return cls(commit + changed, machine)


@dataclass(slots=True)
class _Seat:
    """One cell of a sitting, and what has come of it so far. `python`: None where the system cannot be had."""

    cell: Cell
    system: System
    python: Path | None
    reason: str
    turns: list[Turn]

    @property
    def goes_on(self) -> bool:
        """A system that failed once is not asked again."""
        return self.python is not None and all(turn.state == OK for turn in self.turns)


def sittings(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells that share all but the system and where its servers stand, together and in their order."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.sitting, []).append(cell)
    return list(groups.values())


class Sitting:
    """Cells that are run in turn. Every one has a result, if only a reason why it has none."""

    def __init__(self, cells: Sequence[Cell], facts: Facts) -> None:
        self._seats = [_seat(cell) for cell in cells]
        self._facts = facts

    def take(self, turns: int, keep: bool = False) -> None:
        """Run each cell so many times. `keep`: the folders of turns."""
        with Grounds() as grounds:
            for number in range(1, turns + 1):
                for seat in self._seats:
                    if seat.goes_on and seat.python is not None:
                        take = partial(
                            run_turn, seat.cell, seat.system, grounds.of(seat.cell), seat.python, keep
                        )
                        turn = take()
                        if NOT_BEGUN in turn.state:  # some systems hang now and then while their nodes meet
                            print(f"  {number}/{turns}  {seat.cell}: {turn.state}; once more", flush=True)
                            turn = take()
                        seat.turns.append(turn)
                        result = result_of(seat.cell, [turn], ways_of(seat.cell))
                        print(f"  {number}/{turns}  {seat.cell}: {told(result)}", flush=True)

    def results(self) -> list[Result]:
        """Of the turns so far; of cells that could be run and have had none, nothing."""
        return [_result(seat, self._facts) for seat in self._seats if seat.turns or seat.python is None]


def told(result: Result) -> str:
    """One line for the terminal."""
    if not result.is_ok:
        return result.state
    if result.to_accuracy_s is not None:
        return f"{result.accuracy:.1%} after {result.to_accuracy_s:.1f} s"
    if result.round_s_median is None:
        return "no round was measured"
    floor = f", {result.ratio_to_floor:.2f} × the floor" if result.ratio_to_floor else ""
    return f"{result.round_s_median:.3f} s a round{floor} (load {result.load:.1f})"


def _seat(cell: Cell) -> _Seat:
    system = systems.find(cell.system)
    requirements = systems.FOLDER / cell.system / "requirements.txt"
    python, reason = None, system.refuses(cell)
    if reason is None:
        try:
            python = venvs.python_of(cell.system, requirements)
            if cell.workload.name.startswith("gpt"):
                data.fetch_plays()
        except (InstallError, DataMissingError) as error:
            reason, python = str(error), None
    if reason is not None:
        print(f"  {cell}: {reason}", flush=True)
    return _Seat(cell, system, python, reason or "", [])


def _result(seat: _Seat, facts: Facts) -> Result:
    if seat.python is None:
        return Result.of(seat.cell, state=seat.reason, commit=facts.commit, versions=facts.machine)
    names = venvs.names_in(systems.FOLDER / seat.cell.system / "requirements.txt") or MEASURED_PACKAGES
    versions = facts.machine | venvs.versions_of(seat.python, names)
    return result_of(seat.cell, seat.turns, ways_of(seat.cell), commit=facts.commit, versions=versions)


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()
