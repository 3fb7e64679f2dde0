"""From the steps that workers wrote down to the figures of one turn, and from turns to the figures of a cell.

A round is `every` steps; those of the warm-up are left out, and so is, for every worker, a round into which an
evaluation fell. Times are pooled over workers.
"""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.cells import OK, Cell, Result
from benchmarks.floors import Path as Way
from benchmarks.floors import round_s
from benchmarks.training import record_path

Line = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of a cell came to. `steps`: the lines of each worker. Times in seconds of the monotonic clock.

    `note`: what readers of its figures must know.
    """

    at: str
    load: float
    state: str = OK
    steps: Mapping[str, Sequence[Line]] = field(default_factory=dict)
    cpu_s: Mapping[str, float] = field(default_factory=dict)
    rss_mb: Mapping[str, float] = field(default_factory=dict)
    note: str = ""


def read_steps(folder: Path, workers: Sequence[str]) -> dict[str, list[Line]]:
    """What the workers have written down so far; a line that is not whole is left out."""
    found: dict[str, list[Line]] = {}
    for name in workers:
        path = record_path(folder, name)
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1].splitlines()
        if whole:
            found[name] = [json.loads(line) for line in whole]
    return found


def ends(lines: Sequence[Line]) -> dict[int, Line]:
    """The line of each step, evaluations left out."""
    return {line["step"]: line for line in lines if "accuracy" not in line}


def boundaries(lines: Sequence[Line], cell: Cell) -> list[Line]:
    """The steps at which the measured rounds begin and end."""
    steps = ends(lines)
    first = cell.warmup * cell.every
    return [steps[number] for number in range(first, cell.steps + 1, cell.every) if number in steps]


def measured_span(turn_steps: Mapping[str, Sequence[Line]], cell: Cell) -> tuple[float, float] | None:
    """From when all workers have warmed up until the first has ended; None where nothing was measured."""
    bounds = [boundaries(lines, cell) for lines in turn_steps.values()]
    if not bounds or any(len(each) < 2 for each in bounds):
        return None
    return max(each[0]["t"] for each in bounds), min(each[-1]["t"] for each in bounds)


def round_times(turn_steps: Mapping[str, Sequence[Line]], cell: Cell) -> list[float]:
    """Seconds of every measured round of every worker, but for those into which an evaluation fell."""
    times = []
    for lines in turn_steps.values():
        for start, end in itertools.pairwise(boundaries(lines, cell)):
            if not paused_s(turn_steps, start["t"], end["t"]):
                times.append(end["t"] - start["t"])
    return times


def paused_s(turn_steps: Mapping[str, Sequence[Line]], since: float, until: float) -> float:
    """For how long, between two moments, everything stood still for an evaluation."""
    looks = (line for lines in turn_steps.values() for line in lines if "accuracy" in line)
    return sum(max(0.0, min(until, look["until"]) - max(since, look["t"])) for look in looks)


def wan_bytes(turn_steps: Mapping[str, Sequence[Line]], cell: Cell) -> dict[str, tuple[float, float]]:
    """Bytes up and down a round, by party: what its namespace has counted in the measured rounds."""
    found = {}
    for site in cell.sites:
        bounds = boundaries(turn_steps.get(f"{site}/0", ()), cell)
        if len(bounds) > 1:
            first, last, rounds = bounds[0], bounds[-1], len(bounds) - 1
            up, down = (last[key] - first[key] for key in ("sent", "received"))
            found[site] = up / rounds, down / rounds
    return found


def samples_per_s(turn_steps: Mapping[str, Sequence[Line]], cell: Cell) -> float | None:
    """Of all workers together."""
    rates = []
    for lines in turn_steps.values():
        bounds = boundaries(lines, cell)
        if len(bounds) > 1:
            begin, end = bounds[0], bounds[-1]
            seconds = end["t"] - begin["t"] - paused_s(turn_steps, begin["t"], end["t"])
            rates.append((end["step"] - begin["step"]) * cell.workload.batch / seconds)
    return sum(rates) if rates else None


@dataclass(frozen=True, slots=True)
class Reached:
    """When the target was reached: seconds since the first step began without evaluations, and bytes over the WAN."""

    accuracy: float
    seconds: float
    wan_bytes: float


def reached(turn_steps: Mapping[str, Sequence[Line]], cell: Cell) -> Reached | None:
    """The first evaluation that reached the workload's target; None where none did.

    The clock starts with the first step of whoever begins last: by then all have the first weights, whose way counts
    for no system. It stands still during an evaluation, as all do.
    """
    target = cell.workload.target_accuracy
    first = cell.worker_names[0]
    if target is None or not turn_steps.get(first):
        return None
    start = max(lines[0]["t"] for lines in turn_steps.values())
    for line in turn_steps[first]:
        if line.get("accuracy", -1.0) >= target:
            seconds = line["t"] - start - paused_s(turn_steps, start, line["t"])
            return Reached(line["accuracy"], seconds, _crossed(turn_steps, cell, line["t"]))
    return None


def best_accuracy(turn_steps: Mapping[str, Sequence[Line]]) -> float | None:
    """The best that was seen."""
    seen = [line["accuracy"] for lines in turn_steps.values() for line in lines if "accuracy" in line]
    return max(seen, default=None)


def _crossed(turn_steps: Mapping[str, Sequence[Line]], cell: Cell, until: float) -> float:
    """All bytes over the WAN from the beginning. What a hub in a site of its own sends is seen where it arrives."""
    total = 0.0
    for site in cell.sites:
        lines = [line for line in turn_steps.get(f"{site}/0", ()) if line["t"] <= until]
        if lines:
            total += lines[-1]["sent"] - lines[0]["sent"]
            if cell.hub == "own site":
                total += lines[-1]["received"] - lines[0]["received"]
    return total


def percentile(values: Sequence[float], share: float) -> float:
    """The least value that is not below this share of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def result_of(cell: Cell, turns: Sequence[Turn], ways: Sequence[Way], **facts: Any) -> Result:
    """The line of a cell. `ways`: of its parties to the hub; `facts`: commit and versions."""
    good = [turn for turn in turns if turn.state == OK]
    result = Result.of(cell, load=turns[0].load if turns else None, **facts)
    result.floor_s = round_s(cell.workload.size_bytes, ways) if ways else None
    failures = [turn.state for turn in turns if turn.state != OK]
    if not good:
        result.state = failures[0] if failures else "it was not run"
        result.accuracy = max((a for t in turns if (a := best_accuracy(t.steps)) is not None), default=None)
        return result
    told = [
        line["note"] for turn in good for lines in turn.steps.values() for line in lines if "note" in line
    ]
    told += [turn.note for turn in good if turn.note]
    result.note = "; ".join(dict.fromkeys([*told, *(f"one turn failed: {failure}" for failure in failures)]))
    times = [each for turn in good for each in round_times(turn.steps, cell)]
    result.turns = [_told(turn, cell) for turn in turns]
    result.rounds = sum(len(boundaries(lines, cell)) - 1 for t in good for lines in [t.steps[min(t.steps)]])
    if times:
        result.round_s_median, result.round_s_p95 = statistics.median(times), percentile(times, 0.95)
        result.step_s_mean = statistics.fmean(times) / cell.every
        result.ratio_to_floor = result.round_s_median / result.floor_s if result.floor_s else None
    _take_bytes(result, cell, good)
    rates = [rate for turn in good if (rate := samples_per_s(turn.steps, cell)) is not None]
    result.samples_per_s = statistics.fmean(rates) if rates else None
    _take_accuracy(result, cell, good)
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


def _told(turn: Turn, cell: Cell) -> dict[str, Any]:
    times = round_times(turn.steps, cell)
    median = statistics.median(times) if times else None
    return {"at": turn.at, "load": turn.load, "state": turn.state, "round_s_median": median}


def _take_bytes(result: Result, cell: Cell, turns: Sequence[Turn]) -> None:
    if cell.where == "loopback":
        return
    counted = [each for turn in turns if (each := wan_bytes(turn.steps, cell))]
    if not counted:
        return
    every = [pair for each in counted for pair in each.values()]
    result.wan_bytes_up = statistics.fmean(up for up, _ in every)
    result.wan_bytes_down = statistics.fmean(down for _, down in every)


def _take_accuracy(result: Result, cell: Cell, turns: Sequence[Turn]) -> None:
    result.accuracy = max((a for t in turns if (a := best_accuracy(t.steps)) is not None), default=None)
    found = [each for turn in turns if (each := reached(turn.steps, cell)) is not None]
    if found:
        result.accuracy = statistics.fmean(each.accuracy for each in found)
        result.to_accuracy_s = statistics.fmean(each.seconds for each in found)
        result.to_accuracy_wan_bytes = statistics.fmean(each.wan_bytes for each in found)
