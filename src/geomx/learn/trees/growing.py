"""Grows trees, level by level, from histograms that are added up over all workers.

    gain = score(left) + score(right) - score(node) - gamma,     score = sum_k T(G_k)^2 / (H + lambda)
    T(G) = sign(G) max(0, |G| - alpha),     a leaf's value = -T(G) / (H + lambda)

Of two children the histogram of the lighter one is made, and the other's is the rest of their parent's. Where a node
is cut by some drawn features, both are made, of these alone. Nodes that no cut can follow have none: their sums are
their parents'. Rows without a value go where the gain is larger. What travels: once a level, for all trees that grow
at once, sums of gradients by feature and code of these nodes, features x codes x (outputs + 1) whole numbers; they tell
sums over a worker's rows of a leaf and code, of a single row where there is one alone. Sources: Chen and Guestrin, KDD
2016; Ke et al., NIPS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from geomx.learn.over import Floats, Ints, Over
from geomx.learn.trees.bins import Bins
from geomx.learn.trees.loops import Codes, Cut, Rows, Terms, Whole, best_cut, histograms, parted, soft

LEAF = -1
Chooses = Callable[[int], Ints]  # of a node, by number: the features that it may be cut by
Conceal = Callable[[list[Ints]], list[Ints]]  # of histograms of one tree that leave together


@dataclass
class Tree:
    """Nodes by number, the root first. A leaf has the feature `LEAF`.

    Attributes:
        feature: By which a node is cut.
        threshold: Values up to it go left.
        code: The same for codes.
        missing_left: Whether rows without a value do.
        left: The left child; the right one is the next.
        value: Of a leaf, of shape (nodes, outputs).
        gain: Of a cut.
    """

    feature: Ints
    threshold: Floats
    code: Ints
    missing_left: Ints
    left: Ints
    value: Floats
    gain: Floats

    def leaf_of(self, x: Floats) -> Ints:
        """The leaf of each row [rows, features], by number."""
        at = np.zeros(len(x), np.int64)
        inner = np.flatnonzero(self.feature[at] != LEAF)
        while len(inner):
            nodes = at[inner]
            values = x[inner, self.feature[nodes]]
            goes_left = np.where(
                np.isnan(values), self.missing_left[nodes] > 0, values <= self.threshold[nodes]
            )
            at[inner] = self.left[nodes] + ~goes_left
            inner = inner[self.feature[at[inner]] != LEAF]
        return at


@dataclass
class Planted:
    """What a tree grows from.

    Attributes:
        values: Of each row its gradients and its weight (second derivative), as whole numbers, [rows, outputs + 1].
        chooses: By which features a node may be cut; None: by all.
    """

    values: Whole
    chooses: Chooses | None = None


def grow(
    over: Over,
    codes: Codes,
    bins: Bins,
    planted: Sequence[Planted],
    units: Floats,
    terms: Terms,
    rows: int,
    conceal: Conceal = list,
) -> list[tuple[Tree, Ints]]:
    """Trees for gradients and weights of rows, all at once.

    Args:
        over: The workers.
        codes: Of this worker's rows, [rows, features].
        bins: What they mean.
        planted: Of each tree, what it grows from.
        units: Of the values, [outputs + 1].
        terms: How far they grow.
        rows: How many all workers have.
        conceal: What becomes of a tree's histograms before they leave this worker.

    Returns:
        Each tree, the same on all workers, and the leaf of each row.
    """
    growing = [_Growing(each, codes, bins, units, terms, rows) for each in planted]
    asked = [each.roots() for each in growing]
    while any(map(len, asked)):
        sums = over.total(*(own for each in asked for own in conceal(each)))
        for tree, own in zip(growing, asked, strict=True):
            tree.take(sums[: len(own)])
            sums = sums[len(own) :]
        asked = [each.cut() for each in growing]
    return [(each.tree(), each.leaf_of()) for each in growing]


@dataclass
class _Node:
    """A leaf so far. `sums`: its histogram over all workers, of the features in `by` if these are chosen.

    `count`: about how many rows all have in it, `total`: the sums over these, [channels].
    """

    number: int
    depth: int
    rows: Rows
    count: float
    total: Ints
    by: Ints | None = None
    sums: Ints | None = None
    best: Cut | None = None


@dataclass
class _Asked:
    """A node whose histogram is made. `other`: a node that has the rest of `whole`."""

    node: _Node
    other: _Node | None = None
    whole: Ints | None = None


class _Growing:
    """A tree while it grows: what it asks of all workers, and what follows from that."""

    def __init__(
        self, planted: Planted, codes: Codes, bins: Bins, units: Floats, terms: Terms, rows: int
    ) -> None:
        self._values, self._chooses = planted.values, planted.chooses
        self._codes, self._bins, self._units, self._terms, self._all_rows = codes, bins, units, terms, rows
        self._places = np.array([len(cuts) + 1 for cuts in bins.cuts], np.int64)
        self._nodes: list[_Node] = []
        self._cuts: dict[int, tuple[Cut, int]] = {}  # by node: its cut, and its left child
        self._asked: list[_Asked] = []
        self._frontier: list[_Node] = []

    def roots(self) -> list[Ints]:
        """The histogram of all of this worker's rows."""
        everything = np.arange(len(self._codes), dtype=np.int32)
        total = np.zeros(len(self._units), np.int64)  # until it is known
        return self._ask([_Asked(self._add(0, everything, float(self._all_rows), total))])

    def take(self, sums: Sequence[Ints]) -> None:
        """Those that were asked for, over all workers: find the best cut of each node."""
        self._frontier = []
        for found, asked in zip(sums, self._asked, strict=True):
            node, other = asked.node, asked.other
            node.sums = found
            if node.number == 0:
                node.total = found[0].sum(0)
            if other is not None and asked.whole is not None:
                other.sums = asked.whole - found
            self._frontier += [each for each in (node, other) if each is not None and self._may_be_cut(each)]
        for node in self._frontier:
            assert node.sums is not None
            places = self._places if node.by is None else self._places[node.by]
            node.best = best_cut(node.sums, places, self._units, self._terms, node.count)

    def cut(self) -> list[Ints]:
        """Cut those that gain most, as long as there may be more leaves: what is to be added up for their children."""
        room = self._terms.leaves - (len(self._nodes) - len(self._cuts))
        can = [(node.best.gain, node) for node in self._frontier if node.best is not None]
        can = sorted(can, key=lambda each: (-each[0], each[1].number))[: max(0, room)]
        asked = list[_Asked]()
        is_full = room <= len(can)
        for _, node in sorted(can, key=lambda each: each[1].number):
            left, right = self._halved(node)
            wanted = [] if is_full else [child for child in (left, right) if self._may_be_cut(child)]
            if self._chooses is not None:
                asked += map(_Asked, wanted)
            elif wanted:
                light, heavy = (left, right) if left.total[-1] <= right.total[-1] else (right, left)
                asked.append(_Asked(light, heavy, node.sums))
            node.sums, node.rows = None, node.rows[:0]
        self._frontier = []
        return self._ask(asked)

    def _ask(self, asked: list[_Asked]) -> list[Ints]:
        self._asked = asked
        found = []
        for node in (each.node for each in asked):
            codes, values, rows = self._codes, self._values, node.rows
            if self._chooses is not None:
                node.by = self._chooses(node.number)
                codes, values = codes[rows[:, None], node.by], values[rows]
                rows = np.arange(len(rows), dtype=np.int32)
            found.append(histograms(codes, values, rows, self._bins.count))
        return found

    def _halved(self, node: _Node) -> tuple[_Node, _Node]:
        """Make two leaves of one."""
        assert node.best is not None
        assert node.sums is not None
        cut, own = node.best, node.sums[node.best.feature]
        left = own[: cut.code + 1].sum(0) + (own[-1] if cut.missing_left else 0)
        feature = cut.feature if node.by is None else int(node.by[cut.feature])
        self._cuts[node.number] = cut._replace(feature=feature), len(self._nodes)
        rows = parted(self._codes, feature, cut, self._bins.missing, node.rows)
        share = float(left[-1]) / max(float(node.total[-1]), 1.0)
        counts = share * node.count, (1.0 - share) * node.count
        first, second = (
            self._add(node.depth + 1, *each)
            for each in zip(rows, counts, (left, node.total - left), strict=True)
        )
        return first, second

    def _add(self, depth: int, rows: Rows, count: float, total: Ints) -> _Node:
        node = _Node(len(self._nodes), depth, rows, count, total)
        self._nodes.append(node)
        return node

    def _may_be_cut(self, node: _Node) -> bool:
        terms, weight = self._terms, float(node.total[-1] * self._units[-1])
        if node.depth >= terms.depth or weight <= 0.0:
            return False
        return weight >= 2.0 * terms.least_weight and node.count >= 2.0 * terms.least_rows

    def leaf_of(self) -> Ints:
        """Of each of this worker's rows."""
        found = np.zeros(len(self._codes), np.int64)
        for node in self._nodes:
            if node.number not in self._cuts:
                found[node.rows] = node.number
        return found

    def tree(self) -> Tree:
        """What has grown."""
        count = len(self._nodes)
        made = Tree(
            np.full(count, LEAF), np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64),
            np.zeros(count, np.int64), np.zeros((count, len(self._units) - 1)), np.zeros(count),
        )  # fmt: skip
        for number, (cut, left) in self._cuts.items():
            cuts = self._bins.cuts[cut.feature]
            made.feature[number], made.code[number], made.left[number] = cut.feature, cut.code, left
            made.missing_left[number], made.gain[number] = int(cut.missing_left), cut.gain
            # behind the last cut: all that have a value
            made.threshold[number] = cuts[cut.code] if cut.code < len(cuts) else np.inf
        for node in self._nodes:
            total = node.total * self._units
            shrunk = max(float(total[-1]) + self._terms.shrinks, 1e-300)
            made.value[node.number] = -soft(total[:-1], self._terms.sparse) / shrunk
        return made
