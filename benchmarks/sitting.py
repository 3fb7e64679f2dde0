"""A sitting: cells that are compared with each other, run in turn (A B A B) so that what disturbs one disturbs all."""

import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks import venvs
from benchmarks.cells import OK, Cell, Result, write_results
from benchmarks.grounds import Ground, Grounds, ways_of
from benchmarks.measures import Turn, ratio_to_floor, result_of
from benchmarks.systems.adapters import ROOT, SYSTEMS, refused, requirements_of
from benchmarks.turn import NOT_BEGUN, run_turn

OWN_PACKAGES = ("geomx", "torch", "numpy", "uvloop", "msgspec")


def commit_here() -> str:
    """Of this working tree. Behind it is a + where more than the page has changed."""

    def git(*arguments: str) -> str:
        return subprocess.run(
            ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False
        ).stdout

    changed = git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!docs")
    return (git("rev-parse", "--short", "HEAD").strip() or "unknown") + ("+" if changed.strip() else "")


def machine_here() -> dict[str, str]:
    cores = str(len(os.sched_getaffinity(0)))
    return {"kernel": platform.release(), "cores": cores, "python": platform.python_version()}


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

    def __post_init__(self) -> None:
        self.reason = refused(self.cell)
        try:
            if self.reason is None:
                self.python = venvs.python_of(self.cell.system, requirements_of(self.cell.system))
        except venvs.InstallError as error:
            self.reason = str(error)
        if self.reason is not None:
            print(f"  {self.cell}: {self.reason}", flush=True)

    @property
    def goes_on(self) -> bool:
        """Who failed once is not asked again."""
        return self.reason is None and all(turn.state == OK for turn in self.turns)

    def take(self, ground: Ground, number: str, keep: bool) -> None:
        """One turn more."""
        for is_last in (False, True):
            turn = run_turn(self.cell, SYSTEMS[self.cell.system], ground, self.python, keep)
            if is_last or NOT_BEGUN not in turn.state:
                break
            print(
                f"  {number}  {self.cell}: {turn.state}; once more"
            )  # some hang now and then while their nodes meet
        self.turns.append(turn)
        print(f"  {number}  {self.cell}: {told(self.result([turn]))}", flush=True)

    def result(self, turns: list[Turn]) -> Result:
        if self.reason is not None:
            return Result.of(self.cell, state=self.reason)
        result = result_of(self.cell, turns, ways_of(self.cell).values())
        pins = venvs.pins_in(requirements_of(self.cell.system))
        result.versions = pins or {name: importlib.metadata.version(name) for name in OWN_PACKAGES}
        return result


def sit(
    cells: Iterable[Cell], turns: int, path: Path, commit: str, machine: dict[str, str], keep: bool
) -> None:
    """Run each cell so many times; what came of it is written when all has ended, or been stopped.

    Every cell has a result, if only a reason why it has none; but for those that could be run and have had no turn.
    """
    seats = [_Seat(cell) for cell in cells]
    try:
        with Grounds() as grounds:
            for number in range(1, turns + 1):
                for seat in seats:
                    if seat.goes_on:
                        seat.take(grounds.of(seat.cell), f"{number}/{turns}", keep)
    finally:
        results = [seat.result(seat.turns) for seat in seats if seat.turns or seat.reason is not None]
        for result in results:
            result.commit, result.versions = commit, machine | result.versions
        write_results(path, results)


def told(result: Result) -> str:
    """One line for the terminal."""
    if not result.is_ok:
        return result.state
    if result.to_accuracy_s is not None:
        return f"{result.accuracy:.1%} after {result.to_accuracy_s:.1f} s"
    if result.round_s_median is None:
        return "no round was measured"
    ratio = ratio_to_floor(result, ways_of(result).values())
    floor = f", {ratio:.2f} × its floor" if ratio else ""
    return f"{result.round_s_median:.3f} s a round{floor} (load {result.load:.1f})"
