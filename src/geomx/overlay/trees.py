"""Several trees for each holder, at what the network's cuts allow: see `packing.py`.

Trees of different depths are compared: a slice passes one edge after another, so deep ones must win more than that.
Slices are dealt to the trees in proportion to their shares, so that all links work all the time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import accumulate

from geomx.overlay.contract import Links, Load, Route, Routes, star
from geomx.overlay.packing import Dealt, Demand, packed
from geomx.overlay.tables import GAIN, MOST_EVERY, best, check_range, dealt

MOST_TREES = 64


class Trees:
    """See the module's text."""

    def __init__(self, *, trees: int = 8, gain: float = GAIN, every: int = 1) -> None:
        """Set it up.

        Args:
            trees: So many for each holder and direction at most.
            gain: The star is kept unless this part of a round's time can be saved.
            every: Another table is made after so many turns.
        """
        check_range("trees", trees, 1, MOST_TREES)
        check_range("gain", gain, 0, 1)
        check_range("every", every, 1, MOST_EVERY)
        self.trees, self.gain, self.every_turns = trees, gain, every

    def plan(self, links: Links, loads: Sequence[Load], number: int, current: Routes | None = None) -> Routes:
        """See `Planner`. The same for every number."""
        if not loads:
            return star(links, loads)
        return best(links, loads, self._tables(links, loads), self.gain, current)

    def _tables(self, links: Links, loads: Sequence[Load]) -> Iterator[Routes]:
        """Deeper and deeper ones."""
        holders = sorted({load.holder for load in loads})
        demands = []
        for holder in holders:
            some = [load for load in loads if load.holder == holder]
            for up in (True, False):
                size_bytes = sum(load.up_bytes if up else load.down_bytes for load in some) or 1
                demands.append(Demand(links.members + holder, up, size_bytes, len(some)))
        for packings in packed(links, demands, self.trees):
            for packing in packings:
                yield dealt(loads, _routes(links, holders, packing))


def _routes(
    links: Links, holders: Sequence[int], packing: Sequence[Dealt]
) -> dict[int, list[tuple[Route, int]]]:
    pairs = zip(holders, packing[::2], packing[1::2], strict=True)
    return {holder: _paired(links.members + holder, up, down) for holder, up, down in pairs}


def _paired(holder: int, up: Dealt, down: Dealt) -> list[tuple[Route, int]]:
    """Each route has a tree of either kind: the shares laid beside each other, the large ones first."""
    kinds = [sorted(kind, key=lambda tree: (-tree[1], tree[0])) for kind in (up, down)]
    ends = [list(accumulate(count for _, count in kind)) for kind in kinds]
    routes, at, i, j = [], 0, 0, 0
    while i < len(ends[0]) and j < len(ends[1]):
        end = min(ends[0][i], ends[1][j])
        routes.append((Route(holder, kinds[0][i][0], kinds[1][j][0]), end - at))
        at = end
        i, j = i + (ends[0][i] == end), j + (ends[1][j] == end)
    return routes
