"""Draws README.md's pictures, each for a light and a dark page: `python docs/pictures/draw.py`.

overview-*.svg   data centers, their servers, and which edges are slow
price-*.svg      loss over bytes, from the rows of docs/data/adam.jsonl (matplotlib comes with `.[benchmarks]`)
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

HERE = Path(__file__).parent
ROWS = HERE.parent / "data" / "adam.jsonl"


@dataclass(frozen=True, slots=True)
class Theme:
    """Colours. `fill` and `edge` of worker, local server and global server."""

    name: str
    text: str
    dim: str
    site: str
    slow: str
    worker: tuple[str, str]
    local: tuple[str, str]
    root: tuple[str, str]


THEMES = (
    Theme(
        "light", "#1f2328", "#59636e", "#f6f8fa", "#bc4c00",
        ("#dafbe1", "#1a7f37"), ("#ddf4ff", "#0969da"), ("#fff8c5", "#9a6700"),
    ),
    Theme(
        "dark", "#e6edf3", "#9198a1", "#161b22", "#f0883e",
        ("#12261e", "#3fb950"), ("#0f2740", "#58a6ff"), ("#2e2111", "#d29922"),
    ),
)  # fmt: skip

# -- the overview --------------------------------------------------------------------------------------------------

WIDTH, HEIGHT = 860, 330
SITES = (("Paris", 40), ("Tokyo", 500))
SITE_WIDTH, SITE_TOP, SITE_HEIGHT = 320, 150, 155


def overview(theme: Theme) -> str:
    """Two data centers below one global server, in SVG."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
        "<title>Workers in two data centers train one model through local servers and a global server</title>",
    ]
    for name, left in SITES:
        parts += _site(theme, name, left)
    parts.append(_label(theme.slow, WIDTH / 2, 104, "WAN: slow, lossy, unequal", 14, "middle", bold=True))
    parts.append(_label(theme.dim, WIDTH / 2, 122, "compressed, overlapped, less often", 12, "middle"))
    parts += _box(theme, theme.root, WIDTH / 2 - 95, 14, 190, 52, "global server", "holds the model")
    return "\n".join([*parts, "</svg>", ""])


def _site(theme: Theme, name: str, left: float) -> Iterator[str]:
    middle = left + SITE_WIDTH / 2
    yield (
        f'<rect x="{left}" y="{SITE_TOP}" width="{SITE_WIDTH}" height="{SITE_HEIGHT}" rx="12" fill="{theme.site}" '
        f'stroke="{theme.dim}" stroke-dasharray="5 5"/>'
    )
    yield _label(theme.dim, left + 14, SITE_TOP + 24, name, 14, "start", bold=True)
    inward = 1 if middle < WIDTH / 2 else -1
    yield _line(theme.slow, WIDTH / 2 - 60 * inward, 68, middle, SITE_TOP + 14, 3, "9 6")
    for place in (middle - 76, middle + 76):
        yield _line(theme.dim, middle, SITE_TOP + 64, place, SITE_TOP + 98, 1.6)
        yield from _box(theme, theme.worker, place - 62, SITE_TOP + 96, 124, 42, "worker", "your loop")
    yield from _box(
        theme, theme.local, middle - 85, SITE_TOP + 14, 170, 52, "local server", "adds, sends once"
    )


def _box(
    theme: Theme,
    colours: tuple[str, str],
    x: float,
    y: float,
    width: float,
    height: float,
    name: str,
    does: str,
) -> Iterator[str]:
    fill, edge = colours
    yield (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="8" fill="{fill}" stroke="{edge}" '
        'stroke-width="1.5"/>'
    )
    yield _label(theme.text, x + width / 2, y + height / 2 - 3, name, 15, "middle", bold=True)
    yield _label(theme.dim, x + width / 2, y + height / 2 + 14, does, 12, "middle")


def _line(
    colour: str, x: float, y: float, to_x: float, to_y: float, width: float, dashes: str = "none"
) -> str:
    return (
        f'<line x1="{x:g}" y1="{y:g}" x2="{to_x:g}" y2="{to_y:g}" stroke="{colour}" stroke-width="{width:g}" '
        f'stroke-dasharray="{dashes}"/>'
    )


def _label(colour: str, x: float, y: float, text: str, size: int, anchor: str, *, bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}>{text}</text>'


# -- the price of bytes ----------------------------------------------------------------------------------------------

TASK = {"model": "gpt-1m", "optimizer": "AdamW", "shape": "2x1", "steps": 240}
SHOWN = {  # setting -> how it is called; where its name stands, in points from its dot
    "dense": ("dense", (0, 9)),
    "fp16": ("fp16", (0, 9)),
    "int8": ("int8", (6, -17)),
    "int4": ("int4", (-6, -17)),
    "period 5": ("mean every 5 steps", (-20, 11)),
    "Bi-Sparse 1 %": ("Bi-Sparse 1 %", (-12, -18)),
    "top-k 1 %": ("top-k 1 %", (34, 5)),
    "slow-link": ('preset = "slow-link"', (60, 10)),
}


def best_rows() -> dict[str, tuple[float, float]]:
    """By setting, at the best of its learning rates: megabytes up without the first weights, validation loss."""
    rows = [json.loads(line) for line in ROWS.read_text().splitlines()]
    found: dict[str, dict[float, list[tuple[float, float]]]] = {}
    for row in rows:
        if row["setting"] in SHOWN and all(row[key] == value for key, value in TASK.items()):
            dense_mb = 4e-6 * row["parameters"] * 2 * row["steps"]
            told = dense_mb / row["fewer_up"], row["validation_loss"]
            found.setdefault(row["setting"], {}).setdefault(row["lr"], []).append(told)
    means = {
        setting: [tuple(map(fmean, zip(*of_rate, strict=True))) for of_rate in by_rate.values()]
        for setting, by_rate in found.items()
    }
    return {setting: min(each, key=lambda pair: pair[1]) for setting, each in means.items()}


def price(theme: Theme, path: Path) -> None:
    """Validation loss over bytes sent up."""
    pyplot.rcParams.update({"svg.fonttype": "none", "svg.hashsalt": "geomx", "font.size": 11})
    figure, axes = pyplot.subplots(figsize=(8.6, 3.3))
    for setting, (megabytes, loss) in best_rows().items():
        name, offset = SHOWN[setting]
        is_preset = setting == "slow-link"
        colour = theme.slow if is_preset else theme.local[1]
        axes.scatter([megabytes], [loss], s=90 if is_preset else 45, color=colour, zorder=3)
        axes.annotate(
            name,
            (megabytes, loss),
            xytext=offset,
            textcoords="offset points",
            ha="center",
            color=colour if is_preset else theme.text,
            fontweight="bold" if is_preset else "normal",
        )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axes.set_ylim(2.05, 3.15)
    axes.set_xlabel("megabytes sent to the global server in 240 steps (less is better)", color=theme.dim)
    axes.set_ylabel("validation loss", color=theme.dim)
    axes.grid(color=theme.dim, alpha=0.25, linewidth=0.6)
    axes.tick_params(colors=theme.dim, which="both")
    for spine in axes.spines.values():
        spine.set_visible(False)
    figure.tight_layout()
    figure.savefig(path, transparent=True, metadata={"Date": None})
    pyplot.close(figure)


def main() -> None:
    for theme in THEMES:
        (HERE / f"overview-{theme.name}.svg").write_text(overview(theme))
        price(theme, HERE / f"price-{theme.name}.svg")


if __name__ == "__main__":
    main()
