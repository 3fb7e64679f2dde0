"""Grows trees from histograms that are added up over all workers: level by level, or always the best leaf.

    gain = score(left) + score(right) - score(node) - gamma,     score = sum_k T(G_k)^2 / (H + lambda)
    T(G) = sign(G) max(0, |G| - alpha),     a leaf's value = -T(G) / (H + lambda)

Of two children the histogram of the lighter one is made, and the other's is the rest of their parent's. Where a node
is cut by some drawn features, both are made, of these alone. Nodes that no cut can follow have none: their sums are
their parents'. Rows without a value go where the gain is larger. Where always the best leaf is cut, one call is for
all leaves that are likely to be: the tree is the same, and fewer calls make it. What travels: in each call, for all
trees that grow at once, sums of gradients by feature and code of such nodes, features x codes x (outputs + 1) whole
numbers; they tell sums over a worker's rows of a leaf and code, of a single row where there is one alone. Sources: Chen
and Guestrin, KDD 2016; Ke et al., NIPS 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from geomx.learn.over import Floats, Ints, Over
from geomx.learn.trees.bins import Bins
from geomx.learn.trees.loops import Codes, Cut, Rows, Terms, Whole, best_cut, histograms, parted, soft

LEAF = -1
ROOM_BYTES = 1 << 26  # of histograms in one call
LIKELY = 0.5  # to be cut: what gains this share of the most
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
    while any(asked):
        # As many nodes in a call as there is room for; those of one tree, which share no row, leave together.
        every = [(tree, node) for tree, nodes in zip(growing, asked, strict=True) for node in nodes]
        start = 0
        while start < len(every):
            stop, room = start, ROOM_BYTES
            own: list[Ints] = []
            while stop < len(every) and (room > 0 or stop == start):
                tree = every[stop][0]
                own.append(tree.histogram(every[stop][1].node))
                room -= own[-1].nbytes
                stop += 1
            leaving: list[Ints] = []
            for tree in growing:
                leaving += conceal(
                    [each for each, (of, _) in zip(own, every[start:stop], strict=True) if of is tree]
                )
            for sums, (tree, node) in zip(over.total(*leaving), every[start:stop], strict=True):
                tree.take(sums, node)
            start = stop
        asked = [each.cut() for each in growing]
    return [(each.tree(), each.leaf_of()) for each in growing]


@dataclass(eq=False)
class _Node:
    """`count`: about how many rows all have in it, `total`: the sums over these, [channels].

    `sums`: its histogram over all workers, of the features in `by` if these are chosen. `number`: in the tree, once it
    is there. `halves`: what it is cut into, which may be known before the tree has it.
    """

    depth: int
    rows: Rows
    count: float
    total: Ints
    number: int = -1
    by: Ints | None = None
    sums: Ints | None = None
    best: Cut | None = None
    halves: tuple[_Node, _Node] | None = None


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
        self._codes, self._bins, self._units, self._terms = codes, bins, units, terms
        self._places = np.array([len(cuts) + 1 for cuts in bins.cuts], np.int64)
        everything, total = np.arange(len(codes), dtype=np.int32), np.zeros(len(units), np.int64)
        self._nodes: list[_Node] = []  # of the tree, by number
        self._open: list[_Node] = []  # its leaves that may be cut
        self._cuts = 0
        self._add(_Node(0, everything, float(rows), total))

    def roots(self) -> list[_Asked]:
        """The histogram of all rows."""
        return [_Asked(self._nodes[0])]

    def histogram(self, node: _Node) -> Ints:
        """Of this worker's rows of a node."""
        codes, values, rows = self._codes, self._values, node.rows
        if self._chooses is not None:
            node.by = self._chooses(node.number)
            codes, values = codes[rows[:, None], node.by], values[rows]
            rows = np.arange(len(rows), dtype=np.int32)
        return histograms(codes, values, rows, self._bins.count)

    def take(self, sums: Ints, asked: _Asked) -> None:
        """What was asked for, over all workers: find the best cut."""
        node, other = asked.node, asked.other
        node.sums = sums
        if node.number == 0:
            node.total = sums.sum(axis=(0, 1)) // len(sums)  # all features say so; with noise, the mean does
        if other is not None and asked.whole is not None:
            other.sums = asked.whole - sums
        for each in (node, other):
            if each is not None and self._may_be_cut(each) and each.sums is not None:
                places = self._places if each.by is None else self._places[each.by]
                each.best = best_cut(each.sums, places, self._units, self._terms, each.count)
            if each is not None and each.best is None:
                each.sums = None
            elif (
                each is not None
                and each.best is not None
                and self._chooses is not None
                and each.sums is not None
            ):
                each.sums = each.sums[
                    each.best.feature : each.best.feature + 1
                ].copy()  # all that halving needs
                feature = each.best.feature if each.by is None else int(each.by[each.best.feature])
                each.by, each.best = np.array([feature]), each.best._replace(feature=0)

    def cut(self) -> list[_Asked]:
        """Cut leaves: what is to be added up for their children; nothing: the tree has grown."""
        return self._cut_best() if self._terms.leafwise else self._cut_level()

    def _cut_level(self) -> list[_Asked]:
        """All leaves are cut, those that gain most first, as long as there may be more."""
        room = self._terms.leaves - self._leaves
        can = sorted((node for node in self._open if node.best), key=_first)[: max(0, room)]
        asked = []
        self._open = []
        for node in sorted(can, key=lambda node: node.number):
            asked += self._halve(node, asks=room > len(can))
            self._put(node)
        return asked

    def _cut_best(self) -> list[_Asked]:
        """Always the leaf that gains most is cut. Others are halved beforehand if they are likely to be."""
        while True:
            likely = sorted((node for node in self._open if node.best), key=_first)
            room = self._terms.leaves - self._leaves
            while room > 0 and likely and (likely[0].halves or room == 1):
                if not likely[0].halves:
                    self._halve(likely[0], asks=False)
                self._put(likely[0])
                likely = sorted((node for node in self._open if node.best), key=_first)
                room -= 1
            if room <= 0 or not likely:
                return []
            least = LIKELY * _gain(likely[0])
            asked = []
            for node in [node for node in likely[:room] if not node.halves and _gain(node) >= least]:
                asked += self._halve(node, asks=True)
            if asked:
                return asked

    def _halve(self, node: _Node, asks: bool) -> list[_Asked]:
        """Make two nodes of one, and ask for what tells their cuts."""
        assert node.best is not None
        assert node.sums is not None
        cut, own = node.best, node.sums[node.best.feature]
        sums = own[: cut.code + 1].sum(0) + (own[-1] if cut.missing_left else 0)
        feature = cut.feature if node.by is None else int(node.by[cut.feature])
        node.best = cut._replace(feature=feature)
        rows = parted(self._codes, feature, cut, self._bins.missing, node.rows)
        share = float(sums[-1]) / max(float(node.total[-1]), 1.0)
        left = _Node(node.depth + 1, rows[0], share * node.count, sums)
        right = _Node(node.depth + 1, rows[1], (1.0 - share) * node.count, node.total - sums)
        node.halves, whole, node.sums = (left, right), node.sums, None
        wanted = [child for child in node.halves if asks and self._may_be_cut(child)]
        if self._chooses is not None or not wanted:
            return [_Asked(child) for child in wanted]
        light, heavy = (left, right) if left.total[-1] <= right.total[-1] else (right, left)
        return [_Asked(light, heavy, whole)]

    def _put(self, node: _Node) -> None:
        """A leaf is a leaf no more, its halves are."""
        assert node.halves is not None
        if node in self._open:
            self._open.remove(node)
        for half in node.halves:
            self._add(half)
        node.rows = node.rows[:0]
        self._cuts += 1

    def _add(self, node: _Node) -> None:
        node.number = len(self._nodes)
        self._nodes.append(node)
        self._open.append(node)

    @property
    def _leaves(self) -> int:
        return len(self._nodes) - self._cuts

    def _may_be_cut(self, node: _Node) -> bool:
        terms, weight = self._terms, float(node.total[-1] * self._units[-1])
        if node.depth >= terms.depth or weight <= 0.0:
            return False
        return weight >= 2.0 * terms.least_weight and node.count >= 2.0 * terms.least_rows

    def leaf_of(self) -> Ints:
        """Of each of this worker's rows."""
        found = np.zeros(len(self._codes), np.int64)
        for node in self._nodes:
            found[node.rows] = node.number
        return found

    def tree(self) -> Tree:
        """What has grown."""
        count = len(self._nodes)
        made = Tree(
            np.full(count, LEAF), np.zeros(count), np.zeros(count, np.int64), np.zeros(count, np.int64),
            np.zeros(count, np.int64), np.zeros((count, len(self._units) - 1)), np.zeros(count),
        )  # fmt: skip
        inner = [node for node in self._nodes if node.halves is not None and node.halves[0].number > 0]
        for node in inner:
            assert node.best is not None
            assert node.halves is not None
            number, cut, left = node.number, node.best, node.halves[0].number
            cuts = self._bins.cuts[cut.feature]
            made.feature[number], made.code[number], made.left[number] = cut.feature, cut.code, left
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


def _first(node: _Node) -> tuple[float, int]:
    """What gains most comes first."""
    return -_gain(node), node.number
