"""The plots of the page, as SVG and PNG."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogFormatter

from benchmarks.cells import Result
from benchmarks.sweep import Row
from benchmarks.systems.adapters import SYSTEMS
from benchmarks.tables import TARGETS, mean, median, title

Points = list[tuple[float, float, str]]
GRID = "#e6e6e6"
FLOOR: dict[str, Any] = {"color": "black", "linewidth": 1, "linestyle": "--"}
UNCROSSED = {"facecolor": "white", "edgecolor": "none", "pad": 0}  # by the floor's line
LINE_PX, CHARACTER_PX = 13.0, 5.6  # of the labels at points
plt.style.use(Path(__file__).with_name("plots.mplstyle"))


def save(figure: Figure, path: Path) -> None:
    """As `path`.svg and `path`.png."""
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path.with_name(f"{path.name}.svg"), metadata={"Date": None})  # names have dots in them
    figure.savefig(path.with_name(f"{path.name}.png"), dpi=110)
    plt.close(figure)


def label(result: Result) -> str:
    return title(result) + (" · in A" if result.hub == "A" else "")


def rounds(name: str, results: list[Result], path: Path) -> None:
    """Seconds a step of each system of a sitting, with the floor as a line."""
    timed = sorted((r for r in results if r.step_s is not None), key=lambda r: r.step_s, reverse=True)
    if not timed:
        return
    figure, axis = plt.subplots(figsize=(8.5, 1.2 + 0.34 * len(timed)), layout="constrained")
    values, colours = [r.step_s for r in timed], [SYSTEMS[r.system].colour for r in timed]
    axis.barh([label(r) for r in timed], values, color=colours, height=0.7)
    for place, value in enumerate(values):
        axis.text(value, place, f" {value:#.3g}", va="center", fontsize=9, bbox=UNCROSSED)
    floor = max((r.floor_s for r in timed if r.floor_s), default=0.0)
    if floor:
        axis.axvline(floor, **FLOOR)
        above = axis.get_xaxis_transform()  # data from left to right, and 1 is the top
        axis.text(floor, 1.01, f"floor {floor:.3g} s", transform=above, fontsize=9, ha="center", va="bottom")
    axis.set_title(name, pad=20)
    axis.set(xlabel="seconds a step", xlim=(0, 1.12 * max([*values, floor])))
    axis.margins(y=0.02)
    save(figure, path)


def accuracy(results: list[Result], path: Path) -> None:
    """Time against bytes to the target, both logarithmic: lower left is better."""
    axis = plt.figure(figsize=(8.5, 7.5)).subplots()
    points: Points = []
    for result in results:
        if result.to_accuracy_s and result.to_accuracy_wan_bytes:
            x, y = result.to_accuracy_s, 1e-6 * result.to_accuracy_wan_bytes
            marker, colour = "s" if result.hub == "A" else "o", SYSTEMS[result.system].colour
            axis.scatter(x, y, s=60, color=colour, marker=marker, zorder=3)
            points.append((x, y, label(result)))
    axis.set_title("Time and bytes to the target accuracy (lower left is better)")
    axis.margins(y=0.1)
    _time_and_bytes(axis, points, "seconds", path)


def unequal(scenario: str, seeds: dict[str, list[Row]], path: Path) -> None:
    """Time in one scenario against bytes to the last target: lower left is better."""
    axis = plt.figure(figsize=(8.5, 5.5), layout="constrained").subplots()
    target = TARGETS[-1]
    found = [
        (median(rows, target, "s"), median(rows, target, "wan_bytes"), name) for name, rows in seeds.items()
    ]
    points = [(seconds, 1e-6 * moved, name) for seconds, moved, name in found if seconds and moved]
    xs, ys = [x for x, _, _ in points], [y for _, y, _ in points]
    axis.scatter(xs, ys, s=50, color=SYSTEMS["geomx"].colour, zorder=3)
    axis.set_title(scenario)
    axis.margins(y=0.15)
    _time_and_bytes(axis, points, f"seconds to {target:.0%}", path)


def _time_and_bytes(axis: Axes, points: Points, across: str, path: Path) -> None:
    """Both logarithmic, with names; no picture without points."""
    if not points:
        plt.close(axis.figure)
        return
    axis.set(xscale="log", yscale="log", xlabel=across, ylabel="MB over the WAN")
    axis.grid(which="both", color=GRID, zorder=0)
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_formatter("{x:,.0f}")
        scale.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.5)))
    axis.set_xlim(0.85 * min(points)[0], 2.2 * max(points)[0])
    _name(axis, points)
    save(axis.figure, path)


def learned(model: str, seeds: dict[str, list[Row]], path: Path) -> None:
    """Accuracy on one model against WAN bytes: upper left is better."""
    figure, axis = plt.subplots(figsize=(8.5, 6.5))
    points: Points = []
    for config, rows in seeds.items():
        x, y = 1e-6 * mean(rows, "wan_bytes_up", "wan_bytes_down"), 100 * mean(rows, "accuracy")
        accuracies = [100 * row["accuracy"] for row in rows]
        colour = SYSTEMS["geomx" if rows[0]["optimizer"] == "Adam" else "ddp"].colour
        spread = [[y - min(accuracies)], [max(accuracies) - y]]
        axis.errorbar([x], [y], yerr=spread, fmt="o", color=colour, capsize=3)
        points.append((x, y, config))
    axis.set(xscale="log", xlabel="MB over the WAN in a round, a party", ylabel="test accuracy, %")
    axis.set_title(f"{model}: red with Adam, blue with SGD")
    axis.grid(which="both", color=GRID)
    axis.margins(y=0.15)
    axis.set_xlim(0.7 * min(points)[0], 3.5 * max(points)[0])
    _name(axis, points)
    save(figure, path)


def _name(axis: Axes, points: Points) -> None:
    """Write a name beside each point: where it would cover another one, above or below, with a line to the point."""
    axis.figure.canvas.draw()  # from here on it is known where points lie
    places = [axis.transData.transform((x, y)) for x, y, _ in points]
    taken = [(x - 5, y - 5, x + 5, y + 5) for x, y in places]
    line = {"arrowstyle": "-", "color": "#b0b0b0", "linewidth": 0.6, "relpos": (0.0, 0.5)}
    style: dict[str, Any] = {"textcoords": "offset points", "fontsize": 8.0, "va": "center"}
    for x, y, text in sorted(points, key=lambda point: -point[1]):
        left, middle = axis.transData.transform((x, y))
        right = left + 10 + CHARACTER_PX * len(text)
        for shift in sorted((LINE_PX * step for step in range(-12, 13)), key=abs):
            low, high = middle + shift - LINE_PX / 2, middle + shift + LINE_PX / 2
            if not any(left + 10 < x1 and x0 < right and low < y1 and y0 < high for x0, y0, x1, y1 in taken):
                break
        taken.append((left + 10, low, right, high))
        offset = (7, shift * 72 / axis.figure.dpi)
        axis.annotate(text, (x, y), xytext=offset, arrowprops=line if shift else None, **style)


def scale(results: list[Result], path: Path) -> None:
    """Seconds a round, and CPU seconds of the global server, over the number of parties."""
    figure, (above, below) = plt.subplots(2, figsize=(8.5, 8.4), layout="constrained")
    good = sorted((r for r in results if r.is_ok), key=lambda r: r.parties)
    for system, marker in (("raw", "v"), ("geomx", "o"), ("simulated", "x")):
        mine = [r for r in good if r.system == system]
        style = {
            "color": SYSTEMS[system].colour,
            "marker": marker,
            "label": title(mine[0]) if mine else system,
        }
        timed = [(r.parties, r.round_s_median) for r in mine if r.round_s_median is not None]
        used = [
            (r.parties, r.cpu_s["global/0"] / r.rounds) for r in mine if r.rounds and r.cpu_s.get("global/0")
        ]
        for axis, points in ((above, timed), (below, used)):
            if points:
                axis.plot(*zip(*points, strict=True), **style)
    floor = next((r.floor_s for r in results if r.floor_s), None)
    if floor is not None:
        above.axhline(floor, **FLOOR, label=f"floor, {floor:.3g} s")
    above.set(xscale="log", xlabel="parties", ylabel="seconds a round", title="Seconds a round")
    above.set_ylim(bottom=0)
    below.set(xscale="log", yscale="log", xlabel="parties", title="CPU seconds a round of the global server")
    counts = sorted({r.parties for r in good})
    for axis in (above, below):
        axis.set_xticks(counts, [f"{count:,}" for count in counts])
        axis.minorticks_off()
        axis.grid(color=GRID)
        axis.legend(frameon=False)
    save(figure, path)
