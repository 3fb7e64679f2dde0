"""Several trees for each holder, so that all links work at once.

*Exactly*: a packing of trees is a linear program (`program.py`) with a column for each tree that there could be. Few
columns are needed, and they are made one by one (column generation, Ford and Fulkerson 1958): each solution gives the
resources prices, and the cheapest tree at these prices improves the solution, or nothing does. By Edmonds' theorem of
disjoint branchings (1973) its optimum is what cuts allow. The linear program over flows, with trees extracted from its
solution (ForestColl, arXiv 2402.06787), has the same optimum, and a variable for each pair of a link and a member.

*Greedily* (`growing.py`): what the exact way begins with, and all that there is where links are many, or without scipy.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from geomx.overlay.arborescence import cheapest, shallower
from geomx.overlay.contract import Links, depth_of
from geomx.overlay.growing import grown
from geomx.overlay.program import Floats, Program, Shares, available
from geomx.overlay.rounding import rounded

MOST_LINKS = 200  # for the exact way
CLOSE = 1.01  # to the optimum
MOST_ASKED = 16_000  # for the price of a link, at each depth


@dataclass(frozen=True, slots=True)
class Demand:
    """What one holder's slices have in one direction."""

    holder: int  # its number as a node
    up: bool
    size_bytes: float
    slices: int


Edge = tuple[int, int]
Tree = tuple[int, ...]  # as `Route.up` or `Route.down`
Dealt = list[tuple[Tree, int]]  # with slices


def packed(links: Links, demands: Sequence[Demand], most: int) -> Iterator[list[list[Dealt]]]:
    """Trees for each demand, with their shares: some packings for each bound on depth, the least first.

    Of one bound they have fewer and fewer trees: where there are few slices, these can be dealt more exactly.

    Args:
        links: Of the network.
        demands: What is to be carried.
        most: So many trees of a demand at most.
    """
    nodes = range(links.nodes)
    edges = {
        (i, j) for i in nodes for j in nodes if i != j and links.rates[i][j] and min(i, j) < links.members
    }
    solvable = available()
    exact = solvable and len(edges) <= MOST_LINKS
    network = _Network(links, demands, edges)
    each, deepest, best = max(1, 2 * most // len(demands)), 1, False
    while network.caps and deepest < links.members and not best:
        deepest += max(1, deepest // 2) if exact else 2 * deepest
        trees = grown(links, [(one.holder, one.up, one.size_bytes) for one in demands], each, deepest)
        if trees is None:
            continue
        alone = _Network(links, demands, _crossed(demands, trees))
        alone.add(trees)
        packings = alone.shares(alone.program.solve() if solvable else alone.program.even(), most)
        best = max(map(depth_of, chain(*trees))) < deepest
        if exact:
            network.add(trees)
            weights, best = network.improve(deepest)
            packings += network.shares(weights, most)
        yield packings


def _crossed(demands: Sequence[Demand], trees: Sequence[Sequence[Tree]]) -> set[Edge]:
    pairs = (
        (demand, pair)
        for demand, some in zip(demands, trees, strict=True)
        for tree in some
        for pair in enumerate(tree)
    )
    return {pair if demand.up else pair[::-1] for demand, pair in pairs}


class _Network:
    """What trees use of it, and those that are known."""

    def __init__(self, links: Links, demands: Sequence[Demand], edges: Collection[Edge]) -> None:
        self._members, self._demands, self._edges = links.members, demands, sorted(edges)
        self._place = {edge: place for place, edge in enumerate(self._edges)}
        self.caps: list[float] = []
        bounds = [self._resources(rates) for rates in (links.leaving, links.entering)]
        self._resources_of: list[list[int]] = []
        for i, j in self._edges:
            uses = [bound[node] for bound, node in zip(bounds, (i, j), strict=True) if node in bound]
            if links.rates[i][j] < min(links.leaving[i], links.entering[j]):
                uses.append(len(self.caps))
                self.caps.append(links.rates[i][j])
            self._resources_of.append(uses)
        self._trees: dict[tuple[int, Tree], int] = {}  # with their columns
        sizes, caps = np.array([demand.size_bytes for demand in demands]), np.array(self.caps)
        self.program = Program(caps / caps.max(initial=0), sizes / sizes.sum())

    def _resources(self, rates: Sequence[float]) -> dict[int, int]:
        found = {}
        for node, rate in enumerate(rates):
            if rate < math.inf:
                found[node] = len(self.caps)
                self.caps.append(rate)
        return found

    def add(self, trees: Sequence[Sequence[Tree]]) -> None:
        """Add some of each demand to those known before."""
        for demand, some in enumerate(trees):
            for tree in some:
                self._add(demand, tree)

    def improve(self, deepest: int) -> tuple[Shares, bool]:
        """Make trees until none that is not deeper makes it better. Returns whether no deeper one would, either."""
        bound, program = 0.0, self.program
        weights = program.solve()
        for _ in range(MOST_ASKED // (len(self._edges) * len(self._demands))):
            prices = program.prices
            costs = [float(sum(prices[one] for one in uses)) for uses in self._resources_of]
            known, least = len(self._trees), 0.0
            for place, demand in enumerate(self._demands):
                tree, cost = self._cheapest(demand, costs, deepest)
                least += cost * float(program.demands[place])
                if tree is not None:
                    self._add(place, tree)
            bound = max(bound, least)
            if len(self._trees) == known or program.total <= bound * CLOSE:
                break
            weights = program.solve()
        return weights, program.total <= bound * CLOSE

    def shares(self, weights: Shares, most: int) -> list[list[Dealt]]:
        """The trees of each demand in a solution; and with fewer of them."""
        trees = {column: (demand, tree) for (demand, tree), column in self._trees.items()}
        packings, slices = [], [demand.slices for demand in self._demands]
        for some in self.program.fewer(weights, most) if available() else [weights]:
            found: list[Dealt] = [[] for _ in self._demands]
            for column, count in rounded(self.program, some, slices).items():
                demand, tree = trees[column]
                found[demand].append((tree, count))
            packings.append(found)
        return packings

    def _add(self, demand: int, tree: Tree) -> None:
        if (demand, tree) in self._trees:
            return
        uses: Floats = np.zeros(len(self.caps))
        for member, parent in enumerate(tree):
            edge = (member, parent) if self._demands[demand].up else (parent, member)
            for resource in self._resources_of[self._place[edge]]:
                uses[resource] += 1
        self._trees[demand, tree] = self.program.add(demand, uses)

    def _cheapest(self, demand: Demand, costs: Sequence[float], deepest: int) -> tuple[Tree | None, float]:
        """A tree of low cost that is not too deep, and the least cost of any."""
        m, edges = self._members, list[tuple[int, int, float]]()
        for (i, j), cost in zip(self._edges, costs, strict=True):
            if max(i, j) < m or demand.holder in (i, j):
                parent, child = (j, i) if demand.up else (i, j)
                edges.append((min(parent, m), min(child, m), cost))  # the holder is m
        chosen = cheapest(m + 1, m, edges)
        if chosen is None:
            return None, 0.0
        least = sum(edges[place][2] for place in chosen[:m])
        if not shallower(m, edges, chosen, deepest):
            return None, least
        parents = (edges[place][0] for place in chosen[:m])
        return tuple(demand.holder if parent == m else parent for parent in parents), least
