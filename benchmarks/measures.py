"""From the steps that workers wrote down to the figures of one turn, and from turns to the figures of a cell.

A round is `every` steps; those of the warm-up are left out, and so is, for every worker, a round into which an
evaluation fell. Times are pooled over workers.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import OK, Cell, Result
from benchmarks.grounds import Way, round_s
from benchmarks.training import record_path

Line = Mapping[str, Any]
Steps = Mapping[str, Sequence[Line]]  # by worker


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of a cell came to. Times in seconds of the monotonic clock.

    `note`: what readers of its figures must know.
    """

    at: str
    load: float
    state: str = OK
    steps: Steps = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    rss_mb: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def read_steps(folder: Path, workers: Iterable[str]) -> dict[str, list[Line]]:
    """What the workers have written down so far; a line that is not whole is left out."""
    found: dict[str, list[Line]] = {}
    for name in workers:
        path = record_path(folder, name)
        text = path.read_text() if path.exists() else ""
        if whole := text[: text.rfind("\n") + 1].splitlines():
            found[name] = [json.loads(line) for line in whole]
    return found


def looks(steps: Steps) -> list[Line]:
    """The lines of evaluations."""
    return [line for lines in steps.values() for line in lines if "accuracy" in line]


def paused_s(steps: Steps, since: float, until: float) -> float:
    """For how long, between two moments, everything stood still for an evaluation."""
    return sum(max(0.0, min(until, look["until"]) - max(since, look["t"])) for look in looks(steps))


def boundaries(lines: Sequence[Line], cell: Cell) -> list[Line]:
    """The steps at which the measured rounds begin and end."""
    ends = {line["step"]: line for line in lines if "accuracy" not in line}
    numbers = range(cell.warmup * cell.every, cell.steps + 1, cell.every)
    return [ends[number] for number in numbers if number in ends]


def all_boundaries(steps: Steps, cell: Cell) -> dict[str, list[Line]]:
    """Those of each worker of whom a round was measured."""
    found = {name: boundaries(lines, cell) for name, lines in steps.items()}
    return {name: bounds for name, bounds in found.items() if len(bounds) > 1}


def measured_span(steps: Steps, cell: Cell) -> tuple[float, float] | None:
    """From when all workers have warmed up until the first has ended; None where nothing was measured."""
    bounds = all_boundaries(steps, cell)
    if not bounds or len(bounds) < len(steps):
        return None
    return max(each[0]["t"] for each in bounds.values()), min(each[-1]["t"] for each in bounds.values())


def round_times(steps: Steps, cell: Cell) -> list[float]:
    """Seconds of every measured round of every worker, but for those into which an evaluation fell."""
    rounds = [pair for bounds in all_boundaries(steps, cell).values() for pair in itertools.pairwise(bounds)]
    spans = [(start["t"], end["t"]) for start, end in rounds]
    return [end - start for start, end in spans if not paused_s(steps, start, end)]


def wan_bytes(steps: Steps, cell: Cell) -> list[tuple[float, float]]:
    """Bytes up and down a round, of each party: what its namespace has counted in the measured rounds."""
    bounds = all_boundaries(steps, cell)
    firsts = [bounds[name] for site in cell.sites if (name := f"{site}/0") in bounds]
    return [
        tuple((each[-1][key] - each[0][key]) / (len(each) - 1) for key in ("sent", "received"))
        for each in firsts
    ]


def samples_per_s(steps: Steps, cell: Cell) -> float | None:
    """Of all workers together."""
    rates = []
    for bounds in all_boundaries(steps, cell).values():
        begin, end = bounds[0], bounds[-1]
        seconds = end["t"] - begin["t"] - paused_s(steps, begin["t"], end["t"])
        rates.append((end["step"] - begin["step"]) * cell.batch / seconds)
    return sum(rates) if rates else None


class Reached(NamedTuple):
    """When the target was reached: seconds since the first step began without evaluations, and bytes over the WAN."""

    accuracy: float
    seconds: float
    wan_bytes: float


def reached(steps: Steps, cell: Cell) -> Reached | None:
    """The first evaluation that reached the workload's target; None where none did.

    The clock starts with the first step of whoever begins last: by then all have the first weights, whose way counts
    for no system. It stands still during an evaluation, as all do.
    """
    target, first = cell.target_accuracy, steps.get(cell.worker_names[0], ())
    if target is None or not first:
        return None
    start = max(lines[0]["t"] for lines in steps.values())
    for line in first:
        if line.get("accuracy", -1.0) >= target:
            seconds = line["t"] - start - paused_s(steps, start, line["t"])
            return Reached(line["accuracy"], seconds, _crossed(steps, cell, line["t"]))
    return None


def _crossed(steps: Steps, cell: Cell, until: float) -> float:
    """All bytes over the WAN from the beginning. What a hub in a site of its own sends is seen where it arrives."""
    ways = ("sent", "received") if cell.hub == "own site" else ("sent",)
    total = 0.0
    for site in cell.sites:
        lines = [line for line in steps.get(f"{site}/0", ()) if line["t"] <= until]
        if lines:
            total += sum(lines[-1][way] - lines[0][way] for way in ways)
    return total


def percentile(values: Iterable[float], share: float) -> float:
    """The least value that is not below this share of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def result_of(cell: Cell, turns: Sequence[Turn], ways: Iterable[Way], **facts: Any) -> Result:
    """The line of a cell. `ways`: of its parties to the hub; `facts`: commit and versions."""
    good = [turn for turn in turns if turn.state == OK]
    failures = [turn.state for turn in turns if turn.state != OK]
    result = Result.of(cell, load=turns[0].load if turns else None, **facts)
    result.floor_s = round_s(cell.size_bytes, ways) or None
    result.accuracy = max((line["accuracy"] for turn in turns for line in looks(turn.steps)), default=None)
    if not good:
        result.state = failures[0] if failures else "it was not run"
        return result
    told = [line["note"] for t in good for lines in t.steps.values() for line in lines if "note" in line]
    told += [turn.note for turn in good if turn.note] + [f"one turn failed: {why}" for why in failures]
    result.note = "; ".join(dict.fromkeys(told))
    times = [round_times(turn.steps, cell) for turn in turns]
    result.turns = [
        {"at": t.at, "load": t.load, "state": t.state, "round_s_median": statistics.median(s) if s else None}
        for t, s in zip(turns, times, strict=True)
    ]
    result.rounds = sum(len(boundaries(turn.steps[min(turn.steps)], cell)) - 1 for turn in good)
    if pooled := [each for turn, some in zip(turns, times, strict=True) if turn.state == OK for each in some]:
        result.round_s_median, result.round_s_p95 = statistics.median(pooled), percentile(pooled, 0.95)
        result.ratio_to_floor = result.round_s_median / result.floor_s if result.floor_s else None
    if cell.where != "loopback":
        moved = [each for turn in good for each in wan_bytes(turn.steps, cell)]
        result.wan_bytes_up, result.wan_bytes_down = (
            mean(up for up, _ in moved),
            mean(down for _, down in moved),
        )
    result.samples_per_s = mean(samples_per_s(turn.steps, cell) for turn in good)
    if found := [each for turn in good if (each := reached(turn.steps, cell)) is not None]:
        figures = (statistics.fmean(values) for values in zip(*found, strict=True))
        result.accuracy, result.to_accuracy_s, result.to_accuracy_wan_bytes = figures
    for turn in good:
        share = _shared_rounds(turn, cell)
        for node, seconds in turn.cpu_s.items():
            result.cpu_s[node] = result.cpu_s.get(node, 0.0) + seconds / share
        for node, size in turn.rss_mb.items():
            result.rss_mb[node] = max(size, result.rss_mb.get(node, 0.0))
    return result


def _shared_rounds(turn: Turn, cell: Cell) -> float:
    """Which share of a worker's measured rounds lay in the time that all workers were measured in."""
    span, bounds = measured_span(turn.steps, cell), boundaries(turn.steps[min(turn.steps)], cell)
    if span is None or span[1] <= span[0]:
        return 1.0
    return (span[1] - span[0]) / (bounds[-1]["t"] - bounds[0]["t"])
