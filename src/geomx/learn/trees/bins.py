"""Features as whole numbers below 255, by cuts that all workers share.

    code(x) = how many cuts are less than x;   code(missing) = one more than any of these

Cuts lie between values so that about equally many rows have each code, and where there are many values, three at least.
What travels: 256 quantiles of each feature of every worker's rows, which tell how its values are distributed, then how
many rows are at most each of them.
Source: Chen and Guestrin, KDD 2016 (weighted quantiles, merged).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from geomx.learn.over import Floats, Over

MOST_CUTS = 254
QUANTILES = 256
LEAST_ROWS = 3  # of a code, on the average


class Coded(NamedTuple):
    """Codes of rows, as both loops over them like them: [rows, features] and [features, rows]."""

    by_row: npt.NDArray[np.uint8]
    by_feature: npt.NDArray[np.uint8]


class Bins:
    """`cuts`: of each feature, in order, at most 254.

    Attributes:
        cuts: As given.
        missing: The code of what is missing, the last.
        count: How many codes there are.
    """

    def __init__(self, cuts: list[Floats]) -> None:
        self.cuts = cuts
        self.missing = max(map(len, cuts), default=0) + 1
        self.count = self.missing + 1

    @staticmethod
    def even(low: Sequence[float], high: Sequence[float], count: int) -> Bins:
        """Cuts that follow from each feature's range alone: `count` codes, equally wide. Raises `ValueError`."""
        if not 2 <= count <= MOST_CUTS + 1:
            raise ValueError(f"count={count}: 2 to {MOST_CUTS + 1}")
        if wrong := [place for place, (a, b) in enumerate(zip(low, high, strict=True)) if not a < b]:
            raise ValueError(f"low and high of features {wrong}: low is to be below high")
        return Bins([np.linspace(a, b, count + 1)[1:-1] for a, b in zip(low, high, strict=True)])

    def codes(self, x: Floats) -> Coded:
        """Of rows [rows, features]."""
        found = np.empty(x.shape[::-1], np.uint8)
        for feature, cuts in enumerate(self.cuts):
            column = x[:, feature]
            found[feature] = np.searchsorted(cuts, column)
            found[feature, np.isnan(column)] = self.missing
        return Coded(np.ascontiguousarray(found.T), found)


def given(over: Over, x: Floats, most: int, bins: Bins | None) -> Bins:
    """Those that are given, or of the rows of all workers. Raises `ValueError` where they are of other features."""
    if bins is None:
        return find(over, x, most)
    if not isinstance(bins, Bins):
        raise TypeError(
            f"bins={bins!r}: a Bins, such as Bins.even(low, high, count); for their number give max_bins"
        )
    if len(bins.cuts) != x.shape[1]:
        raise ValueError(f"bins of {len(bins.cuts)} features for rows of {x.shape[1]}")
    return bins


def find(over: Over, x: Floats, most: int = MOST_CUTS + 1) -> Bins:
    """Cuts of the rows of all workers, into `most` codes at most."""
    features = x.shape[1]
    columns = [np.sort(x[~np.isnan(x[:, feature]), feature]) for feature in range(features)]
    own = np.full((1, features, QUANTILES), np.nan)
    for feature, column in enumerate(columns):
        some = _quantiles(column)
        own[0, feature, : len(some)] = some
    offered = over.joined(own)
    candidates = [
        np.unique(offered[:, feature][~np.isnan(offered[:, feature])]) for feature in range(features)
    ]
    widest = max(map(len, candidates), default=0)
    below = np.zeros((features, widest + 1), np.int64)
    for feature, column in enumerate(columns):
        found = np.searchsorted(column, candidates[feature], side="right")
        below[feature, : len(found)] = found
        below[feature, -1] = len(column)
    (below,) = over.total(below)
    return Bins([
        _cuts(each, counts[: len(each)], counts[-1], most)
        for each, counts in zip(candidates, below, strict=True)
    ])  # fmt: skip


def _quantiles(column: Floats) -> Floats:
    """Different values of a sorted column, all where they are few."""
    unique = np.unique(column)
    if len(unique) <= QUANTILES:
        return unique
    return np.unique(column[np.linspace(0, len(column) - 1, QUANTILES).astype(np.int64)])


def _cuts(values: Floats, at_most: npt.NDArray[np.int64], rows: int, most: int) -> Floats:
    """`at_most`: how many rows have each value or less. Between every two values, or so that shares are alike."""
    if len(values) < 2:
        return np.empty(0)
    most = max(2, min(most, int(rows) // LEAST_ROWS))
    between = (values[:-1] + values[1:]) / 2
    if len(values) <= most:
        return between
    wanted = rows * np.arange(1, most) / most
    chosen = np.unique(np.searchsorted(at_most, wanted))
    found: Floats = between[chosen[chosen < len(between)]]
    return found
