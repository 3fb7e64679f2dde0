"""From the steps that workers wrote down to the figures of one turn, and from turns to the figures of a cell.

A round is `every` steps; those of the warm-up are left out, and so is, for every worker, a round into which an
evaluation fell. Times are pooled over workers.
"""

import itertools
import json
import math
import statistics
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.cells import OK, Cell, Result
from benchmarks.grounds import Way, round_s
from benchmarks.training import record_path

Line = dict[str, Any]
Steps = dict[str, list[Line]]  # by worker


@dataclass(frozen=True, slots=True)
class Turn:
    """What one turn of a cell came to. Times in seconds of the monotonic clock.

    `note`: what readers of its figures must know.
    """

    at: str
    load: float
    state: str = OK
    steps: Steps = field(default_factory=dict)
    cpu_s: dict[str, float] = field(default_factory=dict)
    rss_mb: dict[str, float] = field(default_factory=dict)
    note: str = ""


def read_steps(folder: Path, workers: Iterable[str]) -> Steps:
    """What the workers have written down so far; a line that is not whole is left out."""
    found: Steps = {}
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


def boundaries(steps: Steps, cell: Cell) -> Steps:
    """The steps at which the measured rounds begin and end, of each worker of whom a round was measured."""
    found = {}
    numbers = range(cell.warmup * cell.every, cell.steps + 1, cell.every)
    for name, lines in steps.items():
        ends = {line["step"]: line for line in lines if "accuracy" not in line}
        found[name] = [ends[number] for number in numbers if number in ends]
    return {name: bounds for name, bounds in found.items() if len(bounds) > 1}


def measured_span(steps: Steps, cell: Cell) -> tuple[float, float] | None:
    """From when all workers have warmed up until the first has ended; None where nothing was measured."""
    bounds = boundaries(steps, cell)
    if not bounds or len(bounds) < len(steps):
        return None
    return max(each[0]["t"] for each in bounds.values()), min(each[-1]["t"] for each in bounds.values())


def round_times(steps: Steps, cell: Cell) -> list[float]:
    """Seconds of every measured round of every worker, but for those into which an evaluation fell."""
    rounds = [pair for bounds in boundaries(steps, cell).values() for pair in itertools.pairwise(bounds)]
    spans = [(start["t"], end["t"]) for start, end in rounds]
    return [end - start for start, end in spans if not paused_s(steps, start, end)]


def wan_bytes(steps: Steps, cell: Cell, way: str) -> list[float]:
    """Bytes a round, `sent` or `received`, of each party: what its namespace has counted in the measured rounds."""
    bounds = boundaries(steps, cell)
    firsts = [bounds[name] for site in cell.sites if (name := f"{site}/0") in bounds]
    return [(each[-1][way] - each[0][way]) / (len(each) - 1) for each in firsts]


def samples_per_s(steps: Steps, cell: Cell) -> float | None:
    """Of all workers together."""
    rates = []
    for begin, *_, end in boundaries(steps, cell).values():
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
    for line in steps.get(cell.worker_names[0], ()):
        if cell.target_accuracy is not None and line.get("accuracy", -1.0) >= cell.target_accuracy:
            start = max(lines[0]["t"] for lines in steps.values())
            seconds = line["t"] - start - paused_s(steps, start, line["t"])
            return Reached(line["accuracy"], seconds, _crossed(steps, cell, line["t"]))
    return None


def _crossed(steps: Steps, cell: Cell, until: float) -> float:
    """All bytes over the WAN from the beginning. What a hub in a site of its own sends is seen where it arrives."""
    ways = ("sent", "received") if cell.hub == "own site" else ("sent",)
    firsts = [[line for line in steps.get(f"{site}/0", ()) if line["t"] <= until] for site in cell.sites]
    return sum(lines[-1][way] - lines[0][way] for lines in firsts if lines for way in ways)


def percentile(values: Iterable[float], share: float) -> float:
    """The least value that is not below this share of them."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None where none is."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def ratio_to_floor(result: Result, ways: Iterable[Way]) -> float | None:
    """Its median round over the floor of its own bytes: a codec's are those that a party has sent or received.

    Who moves more than the dense parameters is held against these. None: no round was measured, or there is no floor.
    """
    moved = max(result.wan_bytes_up or 0.0, result.wan_bytes_down or 0.0) or result.size_bytes
    floor_s = round_s(min(moved, result.size_bytes), ways)
    return result.round_s_median / floor_s if result.round_s_median and floor_s else None


def result_of(cell: Cell, turns: list[Turn], ways: Iterable[Way]) -> Result:
    """The line of a cell. `ways`: of its parties to the hub."""
    good = [turn for turn in turns if turn.state == OK]
    failures = [turn.state for turn in turns if turn.state != OK]
    result = Result.of(cell, load=turns[0].load, floor_s=round_s(cell.size_bytes, ways) or None)
    seen = [look["accuracy"] for turn in good or turns for look in looks(turn.steps)]
    result.accuracy = max(seen, default=None)
    if not good:
        result.state = failures[0]
        return result
    told = [line["note"] for t in good for lines in t.steps.values() for line in lines if "note" in line]
    told += [turn.note for turn in good if turn.note] + [f"one turn failed: {why}" for why in failures]
    result.note = "; ".join(dict.fromkeys(told))
    pooled: list[float] = []
    for turn in turns:
        times = round_times(turn.steps, cell)
        pooled += times if turn.state == OK else []
        figures = {"state": turn.state, "round_s_median": statistics.median(times) if times else None}
        result.turns.append({"at": turn.at, "load": turn.load, **figures})
    if pooled:
        result.round_s_median, result.round_s_p95 = statistics.median(pooled), percentile(pooled, 0.95)
    if cell.where != "loopback":
        result.wan_bytes_up = mean(each for turn in good for each in wan_bytes(turn.steps, cell, "sent"))
        result.wan_bytes_down = mean(
            each for turn in good for each in wan_bytes(turn.steps, cell, "received")
        )
    result.samples_per_s = mean(samples_per_s(turn.steps, cell) for turn in good)
    if found := [each for turn in good if (each := reached(turn.steps, cell)) is not None]:
        means = (statistics.fmean(values) for values in zip(*found, strict=True))
        result.accuracy, result.to_accuracy_s, result.to_accuracy_wan_bytes = means
    cpu_s, rss_mb = Counter[str](), Counter[str]()
    for turn in good:
        first = boundaries(turn.steps, cell).get(min(turn.steps), [])
        result.rounds += max(len(first) - 1, 0)
        # CPU seconds are of the time that all workers were measured in, which had but a share of the first's rounds.
        begin, end = measured_span(turn.steps, cell) or (0.0, 0.0)
        share = (first[-1]["t"] - first[0]["t"]) / (end - begin) if end > begin else 1.0
        cpu_s.update({node: seconds * share for node, seconds in turn.cpu_s.items()})
        rss_mb |= Counter(turn.rss_mb)
    result.cpu_s, result.rss_mb = dict(cpu_s), dict(rss_mb)
    return result
