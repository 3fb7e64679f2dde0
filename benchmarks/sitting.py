"""A sitting: cells that are compared with each other, run in turn (A B A B) so that what disturbs one disturbs all."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import venvs
from benchmarks.cells import OK, Cell, Result
from benchmarks.grounds import Grounds, ways_of
from benchmarks.measures import Turn, result_of
from benchmarks.systems.adapters import ROOT, SYSTEMS, refused, requirements_of
from benchmarks.turn import NOT_BEGUN, run_turn

OWN_PACKAGES = ("geomx", "torch", "numpy", "uvloop", "msgspec")


@dataclass(frozen=True, slots=True)
class Facts:
    """What the figures of a run of the benchmark have in common."""

    commit: str
    machine: dict[str, str]

    @classmethod
    def here(cls) -> "Facts":
        """Of this working tree and this machine. Behind the commit is a + where more than the page has changed."""
        commit = _git("rev-parse", "--short", "HEAD") or "unknown"
        changed = "+" if _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs") else ""
        machine = {"kernel": platform.release(), "cores": str(len(os.sched_getaffinity(0)))}
        return cls(commit + changed, machine | {"python": platform.python_version()})


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def sittings(cells: Iterable[Cell]) -> list[list[Cell]]:
    """The cells that share all but the system and where its servers stand, together and in their order."""
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(cell.sitting, []).append(cell)
    return list(groups.values())


@dataclass(slots=True)
class _Seat:
    """One cell of a sitting, and what has come of it so far. `reason`: why it cannot be had, if it cannot."""

    cell: Cell
    python: Path = Path()
    reason: str | None = None
    turns: list[Turn] = field(default_factory=list)

    def prepare(self) -> None:
        """Install what the cell needs."""
        self.reason = refused(self.cell)
        try:
            if self.reason is None:
                self.python = venvs.python_of(self.cell.system, requirements_of(self.cell.system))
        except venvs.InstallError as error:
            self.reason = str(error)
        if self.reason is not None:
            print(f"  {self.cell}: {self.reason}", flush=True)

    def result(self, facts: Facts) -> Result:
        if self.reason is not None:
            return Result.of(self.cell, state=self.reason, commit=facts.commit, versions=facts.machine)
        pins = venvs.pins_in(requirements_of(self.cell.system))
        versions = facts.machine | (pins or {name: importlib.metadata.version(name) for name in OWN_PACKAGES})
        ways = ways_of(self.cell).values()
        return result_of(self.cell, self.turns, ways, commit=facts.commit, versions=versions)


class Sitting:
    """Cells that are run in turn. Every one has a result, if only a reason why it has none."""

    def __init__(self, cells: Sequence[Cell], facts: Facts) -> None:
        self._seats, self._facts = [_Seat(cell) for cell in cells], facts
        for seat in self._seats:
            seat.prepare()

    def take(self, turns: int, keep: bool = False) -> None:
        """Run each cell so many times; who failed once is not asked again. `keep`: the folders of turns."""
        with Grounds() as grounds:
            for number in range(1, turns + 1):
                for seat in self._seats:
                    if seat.reason is None and all(turn.state == OK for turn in seat.turns):
                        self._take(seat, grounds, f"  {number}/{turns}  {seat.cell}:", keep)

    def _take(self, seat: _Seat, grounds: Grounds, line: str, keep: bool) -> None:
        cell = seat.cell
        for is_last in (False, True):
            turn = run_turn(cell, SYSTEMS[cell.system], grounds.of(cell), seat.python, keep)
            if is_last or NOT_BEGUN not in turn.state:
                break
            print(f"{line} {turn.state}; once more")  # some systems hang now and then while their nodes meet
        seat.turns.append(turn)
        print(line, told(result_of(cell, [turn], ways_of(cell).values())), flush=True)

    def results(self) -> list[Result]:
        """Of the turns so far; of cells that could be run and have had none, nothing."""
        return [seat.result(self._facts) for seat in self._seats if seat.turns or seat.reason is not None]


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
