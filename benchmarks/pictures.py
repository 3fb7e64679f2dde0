"""The plots of the page, as SVG and PNG."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.ticker import LogFormatter

from benchmarks.cells import Result
from benchmarks.sweep import Row
from benchmarks.systems.adapters import SYSTEMS
from benchmarks.tables import TARGETS, mean, median, title

Points = list[tuple[float, float, str]]
GRID = "#e6e6e6"
LINE_PX, CHARACTER_PX = 13.0, 5.6  # of the labels at points
plt.style.use(Path(__file__).with_name("plots.mplstyle"))


def save(axis: Axes, path: Path) -> None:
    """As `path`.svg."""
    path.parent.mkdir(parents=True, exist_ok=True)
    axis.figure.savefig(
        path.with_name(f"{path.name}.svg"), metadata={"Date": None}
    )  # names have dots in them
    plt.close(axis.figure)


def label(result: Result) -> str:
    return title(result) + (" · in A" if result.hub == "A" else "")


def rounds(name: str, results: list[Result], path: Path) -> None:
    """Seconds a step of each system of a sitting, with the floor as a line."""
    timed = sorted((r for r in results if r.step_s is not None), key=lambda r: r.step_s, reverse=True)
    if not timed:
        return
    axis = plt.figure(figsize=(8.5, 1.2 + 0.34 * len(timed)), layout="constrained").subplots()
    values, colours = [r.step_s for r in timed], [SYSTEMS[r.system].colour for r in timed]
    axis.barh([label(r) for r in timed], values, color=colours, height=0.7)
    uncrossed = {"facecolor": "white", "edgecolor": "none", "pad": 0}  # by the floor's line
    for place, value in enumerate(values):
        axis.text(value, place, f" {value:#.3g}", va="center", fontsize=9, bbox=uncrossed)
    floor = max((r.floor_s for r in timed if r.floor_s), default=0.0)
    if floor:
        axis.axvline(floor, color="black", linewidth=1, linestyle="--")
        above = axis.get_xaxis_transform()  # data from left to right, and 1 is the top
        axis.text(floor, 1.01, f"floor {floor:.3g} s", transform=above, fontsize=9, ha="center", va="bottom")
    axis.set_title(name, pad=20)
    axis.set(xlabel="seconds a step", xlim=(0, 1.12 * max([*values, floor])))
    axis.margins(y=0.02)
    save(axis, path)


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
    axis, target = plt.figure(figsize=(8.5, 5.5), layout="constrained").subplots(), TARGETS[-1]
    found = [
        (median(rows, target, "s"), median(rows, target, "wan_bytes"), name) for name, rows in seeds.items()
    ]
    points = [(seconds, 1e-6 * moved, name) for seconds, moved, name in found if seconds and moved]
    for x, y, _ in points:
        axis.scatter(x, y, s=50, color=SYSTEMS["geomx"].colour, zorder=3)
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
    _name(axis, points, (0.85, 2.2))
    save(axis, path)


def learned(model: str, seeds: dict[str, list[Row]], path: Path) -> None:
    """Accuracy on one model against WAN bytes: upper left is better."""
    axis = plt.figure(figsize=(8.5, 6.5)).subplots()
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
    _name(axis, points, (0.7, 3.5))
    save(axis, path)


def _name(axis: Axes, points: Points, room: tuple[float, float]) -> None:
    """Write a name beside each point: where it would cover another one, above or below, with a line to the point."""
    axis.set_xlim(room[0] * min(points)[0], room[1] * max(points)[0])
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
