"""Grows one tree, level by level, from histograms that are added up over all workers.

    gain = score(left) + score(right) - score(node) - gamma,     score = sum_k T(G_k)^2 / (H + lambda)
    T(G) = sign(G) max(0, |G| - alpha),     a leaf's value = -T(G) / (H + lambda)

Of two children the histogram of the lighter one is made, and the other's is the rest of their parent's. Rows without a
value go where the gain is larger. What travels: once a level, of each lighter child, sums of gradients by feature and
code, features x 256 x (outputs + 1) numbers of 8 bytes; they tell sums over a worker's rows of a leaf and code, of a
single row where there is one alone. Sources: Chen and Guestrin, KDD 2016; Ke et al., NIPS 2017.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from geomx.learn.over import Floats, Ints, Over
from geomx.learn.trees.bins import Bins
from geomx.learn.trees.histograms import Codes, Whole, histograms

LEAF = -1
Chooses = Callable[[int], Ints]  # of a node, by number: the features that it may be cut by


@dataclass(frozen=True)
class Terms:
    """How far a tree grows.

    Attributes:
        leaves: At most so many.
        depth: At most so many cuts to a leaf.
        shrinks: lambda.
        sparse: alpha.
        least_gain: gamma.
        least_weight: H of a child, at least.
        least_rows: Rows of a child, at least; in proportion to H, as if the rows of a node weighed alike.
    """

    leaves: int = 31
    depth: int = 6
    shrinks: float = 0.0
    sparse: float = 0.0
    least_gain: float = 0.0
    least_weight: float = 1e-3
    least_rows: float = 0.0


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
class _Node:
    """One that may be cut. `sums`: its histogram over all workers, `count`: about how many rows it has there.

    `cut`: the best: its gain, feature and code, and whether rows without a value go left.
    """

    number: int
    depth: int
    rows: Ints
    sums: Ints
    count: float
    cut: tuple[float, int, int, bool] | None = None


def grow(
    over: Over,
    codes: Codes,
    bins: Bins,
    values: Whole,
    units: Floats,
    terms: Terms,
    chooses: Chooses | None = None,
) -> tuple[Tree, Ints]:
    """A tree for gradients and weights of rows.

    Args:
        over: The workers.
        codes: Of this worker's rows, [rows, features].
        bins: What they mean.
        values: Of each row its gradients and its weight (second derivative), as whole numbers, [rows, outputs + 1].
        units: Of these, [outputs + 1].
        terms: How far it grows.
        chooses: By which features a node may be cut; None: by all.

    Returns:
        The tree, the same on all workers, and the leaf of each row.
    """
    made = _Made(bins, units, terms)
    everything = np.arange(len(codes), dtype=np.int64)
    sums = over.total(histograms(codes, values, everything, bins.count))[0]
    leaf_of = np.zeros(len(codes), np.int64)
    count = float(sum(over.each(len(codes)))) if terms.least_rows else 0.0
    frontier = [made.node(0, 0, everything, sums, count, chooses)]
    while frontier:
        # Those that gain most are cut, as long as there may be more leaves.
        cut = sorted((node for node in frontier if node.cut), key=lambda node: (-node.cut[0], node.number))  # type: ignore[index]
        cut = sorted(cut[: max(0, terms.leaves - made.leaves)], key=lambda node: node.number)
        if not cut:
            break
        halves = [made.cut(node, codes) for node in cut]
        lighter = [int(made.weight_of(node, 1) < made.weight_of(node, 0)) for node in cut]
        own = [
            histograms(codes, values, rows[side], bins.count)
            for rows, side in zip(halves, lighter, strict=True)
        ]
        light = over.total(np.stack(own))[0]
        frontier = []
        for node, rows, side, sums in zip(cut, halves, lighter, light, strict=True):
            both = [sums, node.sums - sums] if side == 0 else [node.sums - sums, sums]
            for half in (0, 1):
                number = made.left[node.number] + half
                leaf_of[rows[half]] = number
                share = float(both[half][0, :, -1].sum() / max(node.sums[0, :, -1].sum(), 1))
                count = share * node.count
                frontier.append(made.node(number, node.depth + 1, rows[half], both[half], count, chooses))
    return made.tree(), leaf_of


class _Made:
    """A tree while it grows."""

    def __init__(self, bins: Bins, units: Floats, terms: Terms) -> None:
        self._bins, self._units, self._terms = bins, units, terms
        self.feature: list[int] = []
        self.code: list[int] = []
        self.missing_left: list[int] = []
        self.left: list[int] = []
        self.gain: list[float] = []
        self.value: list[Floats] = []
        self._add(1)

    @property
    def leaves(self) -> int:
        return sum(each == LEAF for each in self.feature)

    def node(
        self, number: int, depth: int, rows: Ints, sums: Ints, count: float, chooses: Chooses | None
    ) -> _Node:
        """One that is a leaf so far, with its value, and with the best cut that it may have."""
        node, terms = _Node(number, depth, rows, sums, count), self._terms
        whole = sums[0].sum(0) * self._units
        self.value[number] = -_soft(whole[:-1], terms.sparse) / max(whole[-1] + terms.shrinks, 1e-300)
        if depth < terms.depth:
            node.cut = self._best(sums, count, None if chooses is None else chooses(number))
        return node

    def _best(self, sums: Ints, count: float, features: Ints | None) -> tuple[float, int, int, bool] | None:
        terms = self._terms
        chosen = sums if features is None else sums[features]
        all_of = chosen[0].sum(0)
        up_to = np.cumsum(chosen[:, : self._bins.missing], axis=1)  # without those that are missing
        missing = chosen[:, self._bins.missing][:, None]
        left = np.stack([up_to, up_to + missing])  # missing go right, missing go left
        score_left, weight_left = self._score(left)
        score_right, weight_right = self._score(all_of - left)
        gain = score_left + score_right - self._score(all_of)[0] - terms.least_gain
        lighter = np.minimum(weight_left, weight_right)
        allowed = (lighter >= terms.least_weight) & (lighter > 0.0)
        if terms.least_rows:
            allowed &= lighter * count >= terms.least_rows * float(all_of[-1] * self._units[-1])
        allowed[1] &= np.asarray(missing.any(axis=(1, 2)))[:, None]
        gain = np.where(allowed, gain, -np.inf)
        for place in range(len(chosen)):
            feature = place if features is None else int(features[place])
            gain[:, place, len(self._bins.cuts[feature]) + 1 :] = -np.inf  # there is no such cut
        at = int(gain.argmax())
        best = float(gain.reshape(-1)[at])
        if not best > 0.0:
            return None
        goes_left, where, code = np.unravel_index(at, gain.shape)
        feature = int(where) if features is None else int(features[where])
        return best, feature, int(code), bool(goes_left)

    def _score(self, sums: Ints) -> tuple[Floats, Floats]:
        scaled = sums * self._units
        weight = scaled[..., -1]
        top = (_soft(scaled[..., :-1], self._terms.sparse) ** 2).sum(-1)
        return top / np.maximum(weight + self._terms.shrinks, 1e-300), weight

    def cut(self, node: _Node, codes: Codes) -> tuple[Ints, Ints]:
        """Make two leaves of one: the rows of each."""
        assert node.cut is not None
        gain, feature, code, goes_left = node.cut
        self.feature[node.number], self.code[node.number] = feature, code
        self.missing_left[node.number], self.gain[node.number] = int(goes_left), gain
        self.left[node.number] = len(self.feature)
        self._add(2)
        column = codes[node.rows, feature]
        is_left = column <= code
        if goes_left:
            is_left |= column == self._bins.missing
        return node.rows[is_left], node.rows[~is_left]

    def weight_of(self, node: _Node, side: int) -> int:
        """Of a child, in units: the same on all workers."""
        assert node.cut is not None
        _, feature, code, goes_left = node.cut
        sums = node.sums[feature, :, -1]
        left = int(sums[: code + 1].sum()) + (int(sums[self._bins.missing]) if goes_left else 0)
        return left if side == 0 else int(sums.sum()) - left

    def _add(self, count: int) -> None:
        for _ in range(count):
            self.feature.append(LEAF)
            self.code.append(0)
            self.missing_left.append(0)
            self.left.append(0)
            self.gain.append(0.0)
            self.value.append(np.zeros(1))

    def tree(self) -> Tree:
        threshold = [
            0.0 if feature == LEAF else float(np.append(self._bins.cuts[feature], np.inf)[code])
            for feature, code in zip(self.feature, self.code, strict=True)
        ]  # behind the last cut: all that have a value
        return Tree(
            np.array(self.feature), np.array(threshold), np.array(self.code), np.array(self.missing_left),
            np.array(self.left), np.stack(self.value), np.array(self.gain),
        )  # fmt: skip


def _soft(values: Floats, sparse: float) -> Floats:
    """T."""
    if sparse == 0.0:
        return values
    found: Floats = np.sign(values) * np.maximum(np.abs(values) - sparse, 0.0)
    return found
