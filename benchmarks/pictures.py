"""The plots of the page, as SVG and PNG."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from benchmarks.cells import Result
from benchmarks.learned import Learned
from benchmarks.tables import title
from benchmarks.unequal import TARGETS, Unequal

COLOURS = {
    "raw": "#8a8a8a",
    "geomx": "#c8442f",
    "ddp": "#3f6fb5",
    "mxnet": "#4d9a5f",
    "hivemind": "#c99a2e",
    "torchft": "#7b5ea7",
    "flower": "#3a9aa8",
    "simulated": "#e39a8c",
}
UNCROSSED = {"facecolor": "white", "edgecolor": "none", "pad": 0}  # by the floor's line
STYLE: dict[str, Any] = {
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "svg.hashsalt": "geomx",
    "svg.fonttype": "none",
    "savefig.bbox": "tight",
}
mpl.rcParams.update(STYLE)  # type: ignore[arg-type]  # it lists every key that there is


def save(figure: Figure, path: Path) -> None:
    """As `path`.svg and `path`.png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})  # names have dots in them
    figure.savefig(path.with_name(f"{path.name}.png"), dpi=110)
    plt.close(figure)


def rounds(name: str, results: Sequence[Result], path: Path) -> None:
    """Seconds a step of each system of a sitting, with the floor as a line."""
    timed = [result for result in results if result.step_s is not None]
    if not timed:
        return
    figure, axis = plt.subplots(figsize=(8.5, 1.2 + 0.34 * len(timed)), layout="constrained")
    _bars(axis, name, sorted(timed, key=lambda result: result.step_s or 0.0, reverse=True))
    save(figure, path)


def _bars(axis: Axes, name: str, results: Sequence[Result]) -> None:
    values = [result.step_s or 0.0 for result in results]
    labels = [_label(result) for result in results]
    axis.barh(labels, values, color=[COLOURS[result.system] for result in results], height=0.7)
    for place, value in enumerate(values):
        axis.text(value, place, f" {value:#.3g}", va="center", fontsize=9, bbox=UNCROSSED)
    floors = [result.floor_s for result in results if result.floor_s]
    if floors:
        axis.axvline(max(floors), color="black", linewidth=1, linestyle="--")
        above = axis.get_xaxis_transform()  # data from left to right, and 1 is the top
        text = f"floor {max(floors):.3g} s"
        axis.text(max(floors), 1.01, text, transform=above, fontsize=9, ha="center", va="bottom")
    axis.set_title(name, pad=20)
    axis.set_xlabel("seconds a step")
    axis.set_xlim(0, 1.12 * max([*values, *floors]))
    axis.margins(y=0.02)


def _label(result: Result) -> str:
    return title(result) + {"A": " · in A", "own site": "", "none": ""}[result.hub]


LABEL_SIZE, LINE_PX, CHARACTER_PX = 8.0, 13.0, 5.6  # of the labels at points


def _name(figure: Figure, axis: Axes, points: Sequence[tuple[float, float, str]]) -> None:
    """Write a name beside each point: where it would cover another one, above or below, with a line to the point."""
    figure.canvas.draw()  # from here on it is known where points lie
    places = [axis.transData.transform((x, y)) for x, y, _ in points]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in places]
    for x, y, text in sorted(points, key=lambda point: -point[1]):
        left, middle = axis.transData.transform((x, y))
        width = CHARACTER_PX * len(text)
        for shift in sorted((LINE_PX * step for step in range(-12, 13)), key=abs):
            box = (left + 10, middle + shift - LINE_PX / 2, left + 10 + width, middle + shift + LINE_PX / 2)
            if not any(_overlap(box, other) for other in taken):
                break
        taken.append(box)
        points_up = shift * 72 / figure.dpi
        axis.annotate(
            text,
            (x, y),
            xytext=(7, points_up),
            textcoords="offset points",
            fontsize=LABEL_SIZE,
            va="center",
            arrowprops={"arrowstyle": "-", "color": "#b0b0b0", "linewidth": 0.6, "relpos": (0.0, 0.5)}
            if shift
            else None,
        )


def _overlap(a: tuple[float, float, float, float], b: tuple[float, float, float, float]) -> bool:
    return a[0] < b[2] and b[0] < a[2] and a[1] < b[3] and b[1] < a[3]


def accuracy(results: Sequence[Result], path: Path) -> None:
    """Time against bytes to the target, both logarithmic: lower left is better."""
    reached = [r for r in results if r.to_accuracy_s and r.to_accuracy_wan_bytes]
    if not reached:
        return
    figure, axis = plt.subplots(figsize=(8.5, 7.5))
    points = []
    for result in reached:
        x, y = result.to_accuracy_s or 0.0, 1e-6 * (result.to_accuracy_wan_bytes or 0.0)
        axis.scatter(
            x, y, s=60, color=COLOURS[result.system], marker="o" if result.hub != "A" else "s", zorder=3
        )
        points.append((x, y, _label(result)))
    axis.set_title("Time and bytes to the target accuracy (lower left is better)")
    _both_logarithmic(axis, [x for x, _, _ in points], "seconds")
    axis.margins(y=0.1)
    _name(figure, axis, points)
    save(figure, path)


def learned(model: str, results: Sequence[Learned], path: Path) -> None:
    """Accuracy on one model against WAN bytes: upper left is better."""
    figure, axis = plt.subplots(figsize=(8.5, 6.5))
    points = []
    for each in results:
        moved = 1e-6 * (each.bytes_up + each.bytes_down)
        accuracies = [100 * accuracy for accuracy in each.accuracies]
        mean = 100 * each.accuracy
        colour = COLOURS["geomx" if each.optimizer == "Adam" else "ddp"]
        spread = [[mean - min(accuracies)], [max(accuracies) - mean]]
        axis.errorbar([moved], [mean], yerr=spread, fmt="o", color=colour, capsize=3)
        points.append((moved, mean, each.config))
    axis.set(xscale="log", xlabel="MB over the WAN in a round, a party", ylabel="test accuracy, %")
    axis.set_title(f"{model}: red with Adam, blue with SGD")
    axis.grid(which="both", color="#e6e6e6")
    axis.margins(y=0.15)
    axis.set_xlim(0.7 * min(x for x, _, _ in points), 3.5 * max(x for x, _, _ in points))
    _name(figure, axis, points)
    save(figure, path)


def unequal(scenario: str, results: Sequence[Unequal], path: Path) -> None:
    """Time in one scenario against bytes to the last target: lower left is better."""
    target = TARGETS[-1]
    points = [
        (reached.seconds, 1e-6 * reached.wan_bytes, each.algorithm)
        for each in results
        if (reached := each.reached[target]) is not None
    ]
    if not points:
        return
    figure, axis = plt.subplots(figsize=(8.5, 5.5), layout="constrained")
    axis.scatter([x for x, _, _ in points], [y for _, y, _ in points], s=50, color=COLOURS["geomx"], zorder=3)
    axis.set_title(scenario)
    _both_logarithmic(axis, [x for x, _, _ in points], f"seconds to {target:.0%}")
    axis.margins(y=0.15)
    _name(figure, axis, points)
    save(figure, path)


def _both_logarithmic(axis: Axes, seconds: Sequence[float], label: str) -> None:
    axis.set(xscale="log", yscale="log", xlabel=label, ylabel="MB over the WAN")
    axis.grid(which="both", color="#e6e6e6", zorder=0)
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_formatter("{x:,.0f}")
        scale.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axis.set_xlim(0.85 * min(seconds), 2.2 * max(seconds))


def scale(results: Sequence[Result], path: Path) -> None:
    """Seconds a round, and CPU seconds of the global server, over the number of parties."""
    figure, (above, below) = plt.subplots(2, figsize=(8.5, 8.4), layout="constrained")
    for system, marker in (("raw", "v"), ("geomx", "o"), ("simulated", "x")):
        mine = sorted((r for r in results if r.system == system and r.is_ok), key=lambda r: r.parties)
        style = {"color": COLOURS[system], "marker": marker, "label": title(mine[0]) if mine else system}
        timed = [(r.parties, r.round_s_median) for r in mine if r.round_s_median is not None]
        if timed:
            above.plot(*zip(*timed, strict=True), **style)
        used = [
            (r.parties, r.cpu_s["global/0"] / r.rounds) for r in mine if r.rounds and r.cpu_s.get("global/0")
        ]
        if used:
            below.plot(*zip(*used, strict=True), **style)
    floor = next((r.floor_s for r in results if r.floor_s), None)
    if floor is not None:
        above.axhline(floor, color="black", linewidth=1, linestyle="--", label=f"floor, {floor:.3g} s")
    above.set(xscale="log", xlabel="parties", ylabel="seconds a round", title="Seconds a round")
    above.set_ylim(bottom=0)
    below.set(xscale="log", yscale="log", xlabel="parties", title="CPU seconds a round of the global server")
    counts = sorted({result.parties for result in results if result.is_ok})
    for axis in (above, below):
        axis.set_xticks(counts, [f"{count:,}" for count in counts])
        axis.minorticks_off()
        axis.grid(color="#e6e6e6")
        axis.legend(frameon=False)
    save(figure, path)
