"""A planner for tests: trees as they are drawn, others for each share of the slices, and soon others again."""

from __future__ import annotations

import random
from collections.abc import Sequence

from geomx.overlay.contract import Links, Load, Route, Routes

ROUTES = 3  # of each holder


class Shuffled:
    """See the module's text. `every`: a new table after so many turns."""

    def __init__(self, *, every: int = 3) -> None:
        self.every_turns = every

    def plan(self, links: Links, loads: Sequence[Load], number: int, current: Routes | None = None) -> Routes:
        chance = random.Random(f"shuffled {number}")
        routes = [
            Route(holder, _tree(links, holder, chance, True), _tree(links, holder, chance, False))
            for holder in range(links.members, links.nodes)
            for _ in range(ROUTES)
        ]
        return Routes(tuple(routes), tuple(ROUTES * load.holder + chance.randrange(ROUTES) for load in loads))


def _tree(links: Links, holder: int, chance: random.Random, up: bool) -> tuple[int, ...]:
    order, there = list(range(links.members)), [holder]
    chance.shuffle(order)
    parents = [holder] * links.members
    for member in order:
        fitting = [each for each in there if links.rates[member if up else each][each if up else member] > 0]
        parents[member] = chance.choice(fitting or [holder])
        there.append(member)
    return tuple(parents)
