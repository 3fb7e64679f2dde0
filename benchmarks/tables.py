"""The tables of the page, in Markdown."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from benchmarks.cells import Result
from benchmarks.learned import Learned
from benchmarks.unequal import TARGETS, Unequal

TITLES = {
    "raw": "raw sockets",
    "geomx": "geomx",
    "ddp": "PyTorch DDP",
    "mxnet": "MXNet",
    "hivemind": "hivemind",
    "torchft": "torchft",
    "flower": "Flower",
    "simulated": "geomx, simulated",
}
NOTHING = "–"
STANDS = {"none": NOTHING, "own site": "own site", "A": "party A"}  # by hub


def title(result: Result) -> str:
    """A system and its configuration, as people say it."""
    if result.system == "raw":
        return "raw sockets (floor, measured)"
    return f"{TITLES[result.system]}, {result.config}"


def markdown(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """A table; all columns but the first are numbers, set to the right. Names are not broken into lines."""
    lines = ["| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    unbroken = ((name.replace(" ", "\N{NO-BREAK SPACE}"), *numbers) for name, *numbers in rows)
    return lines + ["| " + " | ".join(row) + " |" for row in unbroken]


def rounds(results: Sequence[Result]) -> list[str]:
    """The systems of one sitting, the fastest first."""
    columns = (
        "system",
        "servers in",
        "seconds a step",
        "p95 of a round",
        "× floor",
        "× raw",
        "× geomx",
        "MB up",
        "MB down",
        "samples/s",
        "CPU s a round",
        "MB, all nodes",
    )
    base = next((r.step_s for r in results if (r.system, r.config) == ("geomx", "dense")), None)
    good = sorted((r for r in results if r.is_ok), key=lambda r: r.step_s or float("inf"))
    lines = markdown(columns, (_round(result, base) for result in good))
    return lines + missing(results)


def _round(result: Result, base: float | None) -> list[str]:
    raw = result.round_s_median and result.raw_floor_s and result.round_s_median / result.raw_floor_s
    moves = result.system != "raw"
    cpu_s = sum(result.cpu_s.values()) / result.rounds if result.cpu_s and result.rounds else None
    together = cpu_s is not None and cpu_s > 0.0  # else the workers were not at work at the same time
    return [
        title(result),
        STANDS[result.hub],
        seconds(result.step_s),
        seconds(result.round_s_p95),
        ratio(result.ratio_to_floor),
        ratio(raw),
        ratio(result.step_s / base if base and result.step_s and moves else None),
        number(result.wan_bytes_up, 1e6),
        number(result.wan_bytes_down, 1e6),
        number(result.samples_per_s if moves else None),
        seconds(cpu_s if together else None),
        number(sum(result.rss_mb.values()) or None),
    ]


def missing(results: Sequence[Result]) -> list[str]:
    """Who has no figures, and why."""
    lines = [
        f"- {title(result)}{place(result)}: {result.state.rstrip('.')}"
        for result in results
        if not result.is_ok
    ]
    lines += [
        f"- {title(result)}{place(result)}: {result.note}"
        for result in results
        if result.is_ok and result.note
    ]
    return ["", "Not measured, or not wholly:", "", *lines] if lines else []


def place(result: Result) -> str:
    """Where the servers stand, where there are any."""
    return {"none": "", "own site": ", servers in a site of their own", "A": ", servers in party A"}[
        result.hub
    ]


def accuracy(results: Sequence[Result]) -> list[str]:
    """Time and bytes to the target, the fastest first, beside the baseline that GeoMX measures itself by."""
    columns = (
        "system",
        "servers in",
        "seconds",
        "MB over the WAN",
        "accuracy then",
        "× as fast as MXNet dist_sync",
        "× fewer bytes",
    )
    reached = [result for result in results if result.to_accuracy_s is not None]
    reached.sort(key=lambda result: result.to_accuracy_s or 0.0)
    base = next((r for r in reached if (r.system, r.config) == ("mxnet", "dist_sync")), None)
    rows = [
        [
            title(result),
            STANDS[result.hub],
            number(result.to_accuracy_s),
            number(result.to_accuracy_wan_bytes, 1e6),
            f"{result.accuracy:.1%}" if result.accuracy is not None else NOTHING,
            quotient(base and base.to_accuracy_s, result.to_accuracy_s),
            quotient(base and base.to_accuracy_wan_bytes, result.to_accuracy_wan_bytes),
        ]
        for result in reached
    ]
    return markdown(columns, rows) + missing([result for result in results if result.to_accuracy_s is None])


def scale(results: Sequence[Result]) -> list[str]:
    """Seconds a round and the global server's CPU, by the number of parties."""
    columns = (
        "parties",
        "geomx",
        "simulated",
        "difference",
        "raw sockets",
        "CPU s a round of the global server",
    )
    rows = []
    for parties in sorted({result.parties for result in results}):
        here = {result.system: result for result in results if result.parties == parties and result.is_ok}
        real, virtual, raw = (here.get(name) for name in ("geomx", "simulated", "raw"))
        apart = None
        if real and virtual and real.round_s_median and virtual.round_s_median:
            apart = f"{real.round_s_median / virtual.round_s_median - 1:+.0%}"
        cpu_s = real.cpu_s.get("global/0") if real and real.rounds else None
        rows.append(
            [
                f"{parties:,}",
                seconds(real.round_s_median if real else None),
                seconds(virtual.round_s_median if virtual else None),
                apart or NOTHING,
                seconds(raw.round_s_median if raw else None),
                seconds(cpu_s / real.rounds if cpu_s is not None and real else None),
            ]
        )
    return markdown(columns, rows) + missing(results)


def fallback(results: Sequence[Result]) -> list[str]:
    """The lab's links beside those that geomx imitates itself."""
    columns = ("network", "parties", "in the lab", "in the process", "difference")
    rows = []
    for place in dict.fromkeys((result.network, result.parties, result.parameters) for result in results):
        network, parties, parameters = place
        pair = [r for r in results if (r.network, r.parties, r.parameters) == place]
        here = {result.where: result.round_s_median for result in pair if result.is_ok}
        lab, own = here.get("lab"), here.get("loopback")
        apart = f"{own / lab - 1:+.0%}" if lab and own else NOTHING
        row = [f"{network}, {parameters:,} parameters", str(parties), seconds(lab), seconds(own), apart]
        rows.append(row)
    return markdown(columns, rows) + missing(results)


def learned(results: Sequence[Learned]) -> list[str]:
    """Accuracy beside the dense run with the same optimizer, and bytes."""
    columns = (
        "codecs",
        "accuracy",
        "least",
        "most",
        "points from dense",
        "MB up",
        "MB down",
        "times smaller",
    )
    base = {each.optimizer: each for each in results if each.config.startswith("dense")}
    rows = []
    for each in results:
        dense = base.get(each.optimizer)
        apart = f"{100 * (each.accuracy - dense.accuracy):+.2f}" if dense else NOTHING
        smaller = NOTHING
        if dense:
            smaller = f"{(dense.bytes_up + dense.bytes_down) / (each.bytes_up + each.bytes_down):.3g}"
        shares = (each.accuracy, min(each.accuracies), max(each.accuracies))
        moved = (number(each.bytes_up, 1e6), number(each.bytes_down, 1e6))
        rows.append([each.config, *(f"{share:.2%}" for share in shares), apart, *moved, smaller])
    return markdown(columns, rows)


def unequal(results: Sequence[Unequal]) -> list[str]:
    """Of one scenario, the fastest to the last target first; × is beside FSA's time."""
    first = next((each for each in results if each.algorithm == "FSA"), None)
    columns = ["policy"]
    for target in TARGETS:
        columns += [f"s to {target:.0%}", "× FSA", "MB"]
    rows = []
    for each in sorted(results, key=_last):
        row = [each.algorithm]
        for target in TARGETS:
            reached, base = each.reached[target], first.reached[target] if first else None
            if reached is None:
                row += [NOTHING] * 3
                continue
            faster = ratio(base.seconds / reached.seconds) if base else NOTHING
            row += [seconds(reached.seconds), faster, number(reached.wan_bytes, 1e6)]
        rows.append(row)
    return markdown(columns, rows)


def _last(each: Unequal) -> tuple[float, ...]:
    found = (each.reached[target] for target in reversed(TARGETS))
    return tuple(reached.seconds if reached else math.inf for reached in found)


def seconds(value: float | None) -> str:
    """To three figures."""
    return NOTHING if value is None else f"{value:#.3g}" if value < 100 else f"{value:,.0f}"


def number(value: float | None, unit: float = 1.0) -> str:
    """To three figures, in units of `unit`."""
    if value is None:
        return NOTHING
    return f"{value / unit:,.0f}" if value / unit >= 100 else f"{value / unit:.3g}"


def ratio(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def quotient(above: float | None, below: float | None) -> str:
    """To three figures."""
    return number(above / below if above and below else None)
