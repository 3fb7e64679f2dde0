"""NetStorm's network (arXiv 2404.11352): nine sites, thirteen links both ways, whose rates change."""

import random
from collections.abc import Mapping

from geomx.simulate.graph import Direction, Graph, GraphLink
from geomx.simulate.simulator import Simulator

_TEXT = "1-2, 1-3, 2-3, 2-5, 3-4, 4-5, 4-6, 5-7, 6-7, 6-8, 6-9, 7-8, 8-9"
_LINKS = [tuple(link.split("-")) for link in _TEXT.split(", ")]
SITES = tuple("123456789")
DIRECTIONS: tuple[Direction, ...] = tuple(
    (site, one if site == other else other) for site in SITES for one, other in _LINKS if site in (one, other)
)
FIRST_MBPS = 150.0
REDRAWN_EVERY_S = 180.0


class Draws:
    """Rates as NetStorm's authors draw them: whole Mbit/s from 20 to 155, for each direction."""

    def __init__(self) -> None:
        self._chance = random.Random(1)

    def __call__(self) -> dict[Direction, float]:
        return {direction: float(self._chance.randint(20, 155)) for direction in DIRECTIONS}


def static(nodes: Mapping[str, str], delay_ms: float = 0.0) -> Graph:
    """The network with its first draw.

    Args:
        nodes: the site, "1" to "9", of each node.
        delay_ms: of each link, one way; the paper gives none.
    """
    return Graph({direction: GraphLink(rate, delay_ms) for direction, rate in Draws()().items()}, nodes)


def changing(nodes: Mapping[str, str], delay_ms: float = 0.0) -> Graph:
    """The network before the first draw; `redraw` changes it. See `static`."""
    return Graph({direction: GraphLink(FIRST_MBPS, delay_ms) for direction in DIRECTIONS}, nodes)


def redraw(simulator: Simulator) -> None:
    """Let the rates of a simulator's `changing` network be drawn anew each 180 s."""
    draws = Draws()

    def draw(turn: int) -> None:
        for (one, other), rate_mbps in draws().items():
            simulator.traffic.change(one, other, rate_mbps)
        simulator.at((turn + 1) * REDRAWN_EVERY_S, lambda: draw(turn + 1))

    simulator.at(REDRAWN_EVERY_S, lambda: draw(1))
