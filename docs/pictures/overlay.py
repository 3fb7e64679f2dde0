"""Draws docs/overlay.md's picture, the star and the ways of a table of trees: `python docs/pictures/overlay.py`.

The table is what `geomx check --overlay --hub-mbps 100` draws of `trees trees=4` for four parties, each with a link of
100 Mbit/s.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import cos, hypot, pi, sin
from pathlib import Path

from geomx.config import Run
from geomx.launch.overlay_tables import links_of, loads_of
from geomx.overlay import overlays
from geomx.overlay.contract import Route, star

HERE = Path(__file__).parent
PARTIES = ("paris", "london", "tokyo", "austin")
PANEL, TOP, RADIUS, NODE = 230, 46, 78, 24
SUMS, UPDATES, TEXT, DIM, BACK = "#0969da", "#bc4c00", "#1f2328", "#59636e", "#ffffff"
MODEL_BYTES = 1e8


def main() -> None:
    tables = "".join(f'[[party]]\nname = "{name}"\nworkers = 1\n' for name in PARTIES)
    text = f'run.overlay = "trees"\nwan.link = {{ rate_mbps = 100, delay_ms = 15 }}\n{tables}'
    nodes, links = links_of(Run.parse(text, "run.toml"), hub_mbps=100.0)
    loads = loads_of(links, MODEL_BYTES, MODEL_BYTES)
    routes = overlays.make("trees trees=4").plan(links, loads, 1)
    panels = [("star: all bytes", star(links, loads).routes[0])]
    for number, route in enumerate(routes.routes):
        share = routes.of.count(number) / len(routes.of)
        panels.append((f"way {number + 1}: {share:.0%} of the bytes", route))
    (HERE / "overlay.svg").write_text(picture(["global", *nodes[: links.members]], panels), encoding="utf-8")


def picture(names: Sequence[str], panels: Sequence[tuple[str, Route]]) -> str:
    """One panel beside the other."""
    width, height = PANEL * len(panels), TOP + 2 * RADIUS + 3 * NODE + 26
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img" '
        'font-family="-apple-system, Segoe UI, Helvetica, Arial, sans-serif">',
        "<title>A star, and the trees by which parties add and pass on for each other</title>",
        f'<rect width="{width}" height="{height}" fill="{BACK}"/>',
        "<defs>" + "".join(_head(name, colour) for name, colour in (("s", SUMS), ("u", UPDATES))) + "</defs>",
    ]
    for place, (title, route) in enumerate(panels):
        parts += _panel(names, title, route, PANEL * place)
    legend = f'<tspan fill="{SUMS}">— sums, up</tspan>   <tspan fill="{UPDATES}">- - updates, down</tspan>'
    parts.append(f'<text x="12" y="{height - 10}" font-size="13" xml:space="preserve">{legend}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _panel(names: Sequence[str], title: str, route: Route, left: float) -> Iterator[str]:
    centre, middle = left + PANEL / 2, TOP + RADIUS + NODE
    angles = [2 * pi * place / len(names) - pi / 2 for place in range(len(names))]
    places = [(centre + 1.08 * RADIUS * cos(angle), middle + RADIUS * sin(angle)) for angle in angles]
    style = f'font-size="14" font-weight="600" text-anchor="middle" fill="{TEXT}"'
    yield f'<text x="{centre}" y="22" {style}>{title}</text>'

    def at(node: int) -> tuple[float, float]:
        return places[0] if node == route.holder else places[node + 1]

    for member in range(len(names) - 1):
        yield _arrow(at(member), at(route.up[member]), SUMS, "s", 3, "")
        yield _arrow(at(route.down[member]), at(member), UPDATES, "u", 9, "5 4")
    for name, (x, y) in zip(names, places, strict=True):
        fill = "#fff8c5" if name == "global" else "#ddf4ff"
        yield f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{NODE}" fill="{fill}" stroke="{DIM}"/>'
        yield f'<text x="{x:.1f}" y="{y + 4:.1f}" font-size="11" text-anchor="middle" fill="{TEXT}">{name}</text>'


def _arrow(
    start: tuple[float, float], stop: tuple[float, float], colour: str, head: str, aside: float, dash: str
) -> str:
    """Between the rims of two nodes, so far to the right of the straight line."""
    (x, y), (to_x, to_y) = start, stop
    length = hypot(to_x - x, to_y - y)
    along, across = ((to_x - x) / length, (to_y - y) / length), (-(to_y - y) / length, (to_x - x) / length)
    x, y = x + NODE * along[0] + aside * across[0], y + NODE * along[1] + aside * across[1]
    to_x, to_y = (
        to_x - (NODE + 6) * along[0] + aside * across[0],
        to_y - (NODE + 6) * along[1] + aside * across[1],
    )
    return (
        f'<line x1="{x:.1f}" y1="{y:.1f}" x2="{to_x:.1f}" y2="{to_y:.1f}" stroke="{colour}" stroke-width="2" '
        f'stroke-dasharray="{dash}" marker-end="url(#{head})"/>'
    )


def _head(name: str, colour: str) -> str:
    return (
        f'<marker id="{name}" markerWidth="8" markerHeight="8" refX="4" refY="4" orient="auto" '
        f'markerUnits="userSpaceOnUse"><path d="M0,0 L8,4 L0,8 z" fill="{colour}"/></marker>'
    )


if __name__ == "__main__":
    main()
