"""Grows trees from histograms that are added up over all workers: level by level, or by the best leaves.

    gain = score(left) + score(right) - score(node) - gamma,     score = sum_k T(G_k)^2 / (H + lambda)
    T(G) = sign(G) max(0, |G| - alpha),     a leaf's value = -T(G) / (H + lambda)

Of two children the histogram of the lighter one is made, and the other's is the rest of their parent's. Where a node
is cut by some drawn features, both are made, of these alone. Nodes that no cut can follow have none: their sums are
their parents'. Rows without a value go where the gain is larger. By the best leaves: in each call all are cut that gain
at least 0.6 of what the best does: a third of the calls that one leaf at a time would take, for trees as good. What
travels: in each call, for all trees that grow at once, sums of gradients by feature and code of such nodes, features x
codes x (outputs + 1) whole numbers; they tell sums over a worker's rows of a leaf and code, of a single row where there
is one alone. Sources: Chen and Guestrin, KDD 2016; Ke et al., NIPS 2017, which cuts one leaf at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from geomx.learn.over import Floats, Ints, Over
from geomx.learn.trees.bins import Bins, Coded
from geomx.learn.trees.loops import Cut, Rows, Terms, Whole, best_cut, histograms, parted, soft

LEAF = -1
ROOM_BYTES = 1 << 26  # of histograms in one call
NEARLY = 0.6  # as much as the best leaf gains those that are cut with it
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
    coded: Coded,
    bins: Bins,
    planted: Sequence[Planted],
    units: Floats,
    terms: Terms,
    rows: int,
    conceal: Conceal = list,
) -> list[tuple[Tree, list[tuple[int, Rows]]]]:
    """Trees for gradients and weights of rows, all at once.

    Args:
        over: The workers.
        coded: This worker's rows.
        bins: What codes mean.
        planted: Of each tree, what it grows from.
        units: Of the values, [outputs + 1].
        terms: How far they grow.
        rows: How many all workers have.
        conceal: What becomes of a tree's histograms before they leave this worker.

    Returns:
        Each tree, the same on all workers, and of each leaf its number and this worker's rows.
    """
    growing = [_Growing(each, coded, bins, units, terms, rows) for each in planted]
    asked = [each.roots() for each in growing]
    while any(asked):
        every = [(tree, node) for tree, nodes in zip(growing, asked, strict=True) for node in nodes]
        while every:
            own = list[Ints]()
            while len(own) < len(every) and sum(each.nbytes for each in own) < ROOM_BYTES:
                tree, node = every[len(own)]
                own.append(tree.histogram(node))
            some, every = every[: len(own)], every[len(own) :]
            leaving = list[Ints]()
            for tree in growing:  # nodes of one tree share no row
                leaving += conceal([each for each, (of, _) in zip(own, some, strict=True) if of is tree])
            for sums, (tree, node) in zip(over.total(np.stack(leaving))[0], some, strict=True):
                tree.take(sums, node)
        asked = [each.cut() for each in growing]
    return [(each.tree(), each.leaves()) for each in growing]


@dataclass(eq=False)
class _Node:
    """`count`: about how many rows all have in it, `total`: the sums over these, [channels].

    `sums`: its histogram over all workers, as far as it is needed yet; `best`: how it may be cut; `left`: once it is,
    the number of its left half.
    """

    number: int
    depth: int
    rows: Rows
    count: float
    total: Ints
    sums: Ints | None = None
    best: Cut | None = None
    left: int = LEAF


@dataclass
class _Asked:
    """A node whose histogram is made. `other`: a node that has the rest of `whole`. `by`: of these features alone."""

    node: _Node
    other: _Node | None = None
    whole: Ints | None = None
    by: Ints | None = None


class _Growing:
    """A tree while it grows: what it asks of all workers, and what follows from that."""

    def __init__(
        self, planted: Planted, coded: Coded, bins: Bins, units: Floats, terms: Terms, rows: int
    ) -> None:
        self._values, self._chooses = planted.values, planted.chooses
        self._coded, self._bins, self._units, self._terms = coded, bins, units, terms
        self._places = np.array([len(cuts) + 1 for cuts in bins.cuts], np.int64)
        self._nodes: list[_Node] = []
        self._cuts = 0
        everything = np.arange(len(coded.by_row), dtype=np.int32)
        self._add(0, everything, float(rows), np.zeros(len(units), np.int64))  # `total` follows

    def roots(self) -> list[_Asked]:
        """The histogram of all rows."""
        return [self._ask(self._nodes[0])]

    def histogram(self, asked: _Asked) -> Ints:
        """Of this worker's rows of a node."""
        codes, values, rows = self._coded.by_row, self._values, asked.node.rows
        if asked.by is not None:
            codes, values = codes[rows[:, None], asked.by], values[rows]
            rows = np.arange(len(rows), dtype=np.int32)
        return histograms(codes, values, rows, self._bins.count)

    def take(self, sums: Ints, asked: _Asked) -> None:
        """What was asked for, over all workers: find the best cut."""
        if asked.node.number == 0:
            asked.node.total = sums.sum(axis=(0, 1)) // len(
                sums
            )  # all features say so; with noise, the mean does
        self._look(asked.node, sums, asked.by)
        if asked.other is not None and asked.whole is not None:
            self._look(asked.other, asked.whole - sums, None)

    def _look(self, node: _Node, sums: Ints, by: Ints | None) -> None:
        if not self._may_be_cut(node):
            return
        places = self._places if by is None else self._places[by]
        node.best = best_cut(sums, places, self._units, self._terms, node.count)
        if node.best is not None and by is not None:
            node.sums = sums[node.best.feature].copy()  # all that its halves need
            node.best = node.best._replace(feature=int(by[node.best.feature]))
        elif node.best is not None:
            node.sums = sums

    def cut(self) -> list[_Asked]:
        """Cut leaves: what is to be added up for their halves; nothing: the tree has grown."""
        while True:
            room = self._terms.leaves - (len(self._nodes) - self._cuts)
            can = [node for node in self._nodes if node.best is not None and node.left == LEAF]
            can = sorted(can, key=lambda node: (-_gain(node), node.number))[: max(0, room)]
            if self._terms.leafwise:
                can = [node for node in can if _gain(node) >= NEARLY * _gain(can[0])]
            if not can:
                return []
            asked = []
            for node in sorted(can, key=lambda node: node.number):
                asked += self._halve(node, asks=room > len(can))
            if asked:
                return asked

    def _halve(self, node: _Node, asks: bool) -> list[_Asked]:
        """Make two leaves of one, and ask for what tells their cuts."""
        assert node.best is not None
        assert node.sums is not None
        cut, whole = node.best, node.sums
        own = whole if self._chooses is not None else whole[cut.feature]
        sums = own[: cut.code + 1].sum(0) + (own[-1] if cut.missing_left else 0)
        rows = parted(self._coded.by_feature[cut.feature], cut, self._bins.missing, node.rows)
        share = float(sums[-1]) / max(float(node.total[-1]), 1.0)
        left = self._add(node.depth + 1, rows[0], share * node.count, sums)
        right = self._add(node.depth + 1, rows[1], (1.0 - share) * node.count, node.total - sums)
        node.left, node.sums, node.rows = left.number, None, node.rows[:0]
        self._cuts += 1
        wanted = [half for half in (left, right) if asks and self._may_be_cut(half)]
        if self._chooses is not None or not wanted:
            return [self._ask(half) for half in wanted]
        light, heavy = (left, right) if left.total[-1] <= right.total[-1] else (right, left)
        return [_Asked(light, heavy, whole)]

    def _ask(self, node: _Node) -> _Asked:
        return _Asked(node, by=None if self._chooses is None else self._chooses(node.number))

    def _add(self, depth: int, rows: Rows, count: float, total: Ints) -> _Node:
        node = _Node(len(self._nodes), depth, rows, count, total)
        self._nodes.append(node)
        return node

    def _may_be_cut(self, node: _Node) -> bool:
        terms, weight = self._terms, float(node.total[-1] * self._units[-1])
        if node.depth >= terms.depth or weight <= 0.0:
            return False
        return weight >= 2.0 * terms.least_weight and node.count >= 2.0 * terms.least_rows

    def leaves(self) -> list[tuple[int, Rows]]:
        """Their numbers, and this worker's rows of each."""
        return [(node.number, node.rows) for node in self._nodes if len(node.rows)]

    def tree(self) -> Tree:
        """What has grown."""
        count = len(self._nodes)
        made = Tree(
            np.full(count, LEAF), np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64),
            np.zeros(count, np.int64), np.zeros((count, len(self._units) - 1)), np.zeros(count),
        )  # fmt: skip
        for node in self._nodes:
            number, cut = node.number, node.best
            if cut is None or node.left == LEAF:
                continue
            cuts = self._bins.cuts[cut.feature]
            made.feature[number], made.code[number], made.left[number] = cut.feature, cut.code, node.left
            made.missing_left[number], made.gain[number] = int(cut.missing_left), cut.gain
            # behind the last cut: all that have a value
            made.threshold[number] = cuts[cut.code] if cut.code < len(cuts) else np.inf
        for node in self._nodes:
            total = node.total * self._units
            shrunk = max(float(total[-1]) + self._terms.shrinks, 1e-300)
            if float(total[-1]) >= self._terms.least_told:
                made.value[node.number] = -soft(total[:-1], self._terms.sparse) / shrunk
        return made


def _gain(node: _Node) -> float:
    return node.best.gain if node.best is not None else 0.0
