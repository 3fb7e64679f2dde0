"""The inner loops of trees: compiled where there is a C compiler, the same bits without.

histograms    sums of whole numbers by feature and code
parted        the rows on either side of a cut
best_cut      the cut that gains most
"""

from __future__ import annotations

import ctypes
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from geomx.codecs.pack.library import Signatures, load
from geomx.learn.over import Floats, Ints
from geomx.learn.trees.fixed import BITS

Codes = npt.NDArray[np.uint8]
Whole = npt.NDArray[np.int32]
Rows = npt.NDArray[np.int32]
LIBRARY = Path(__file__).with_name("kernels.so")
LEAST = 1 << 20  # codes of rows for which threads are worth it
ROUNDING = 1e-12  # of a node's score: what gains less gains nothing


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
        least_told: H of a node that has a value, at least; of others it is 0.
        leafwise: The leaves that gain most are cut; else all of a level.
    """

    leaves: int = 31
    depth: int = 6
    shrinks: float = 0.0
    sparse: float = 0.0
    least_gain: float = 0.0
    least_weight: float = 1e-3
    least_rows: float = 0.0
    least_told: float = -np.inf
    leafwise: bool = False


class Cut(NamedTuple):
    """Rows with at most a code of a feature go left. `feature`: its place in what was looked at."""

    gain: float
    feature: int
    code: int
    missing_left: bool


_POINTER, _LONG, _REAL = ctypes.c_void_p, ctypes.c_int64, ctypes.c_double
_HISTOGRAMS = (_POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER, _LONG, _LONG, _POINTER)
_SIGNATURES: Signatures = {
    "add_histograms": (None, _HISTOGRAMS),
    "add_pairs": (ctypes.c_int, _HISTOGRAMS),
    "part_rows": (_LONG, (_POINTER, _POINTER, _LONG, _LONG, _LONG, ctypes.c_int, _POINTER, _POINTER)),
    "add_to_rows": (None, (_POINTER, _LONG, _POINTER, _LONG, _REAL)),
    "best_cut": (_REAL, (_POINTER, _LONG, _LONG, _LONG, *[_POINTER] * 7)),
}
_library = load(LIBRARY, _SIGNATURES)


def histograms(codes: Codes, values: Whole, rows: Rows, bins: int) -> Ints:
    """Of some rows, by as many threads as PyTorch has.

    Args:
        codes: [all rows, features].
        values: [all rows, channels], below 2^`BITS`.
        rows: Which of them.
        bins: How many codes there are.

    Returns:
        int64 [features, bins, channels].
    """
    features, channels = codes.shape[1], values.shape[1]
    sums = np.zeros((features, bins, channels), np.int64)
    if _library is None:
        for feature in range(features):
            at = codes[rows, feature]
            for channel in range(channels):
                np.add.at(sums[feature, :, channel], at, values[rows, channel].astype(np.int64))
        return sums
    codes, values, rows = map(np.ascontiguousarray, (codes, values, rows))
    threads = min(torch.get_num_threads(), features) if len(rows) * features >= LEAST else 1
    add, how = (_library.add_pairs, BITS) if channels == 2 else (_library.add_histograms, channels)

    def some(first: int, stop: int) -> None:
        if add(codes.ctypes.data + first, features, stop - first, values.ctypes.data, how, rows.ctypes.data,
               len(rows), bins, sums[first:].ctypes.data):  # fmt: skip
            raise MemoryError(f"no room for {features} histograms of {bins} codes")

    bounds = [features * thread // threads for thread in range(threads + 1)]
    if threads == 1:
        some(0, features)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(some, bounds[:-1], bounds[1:]))
    return sums


def parted(column: Codes, cut: Cut, missing: int, rows: Rows) -> tuple[Rows, Rows]:
    """The rows on the left of a cut, and those on the right, in their order.

    `column`: the codes of the cut's feature; `missing`: the code of what is missing.
    """
    if _library is None:
        own = column[rows]
        is_left = (own <= cut.code) | ((own == missing) & cut.missing_left)
        return rows[is_left], rows[~is_left]
    column = np.ascontiguousarray(column)
    left, right = np.empty(len(rows) + 1, np.int32), np.empty(len(rows) + 1, np.int32)
    lefts = _library.part_rows(
        column.ctypes.data, rows.ctypes.data, len(rows), cut.code, missing,
        int(cut.missing_left), left.ctypes.data, right.ctypes.data,
    )  # fmt: skip
    return left[:lefts], right[: len(rows) - lefts]


def add_to_rows(numbers: Floats, rows: Rows, value: float) -> None:
    """To the numbers of some rows, [all rows], in place."""
    if _library is None:
        numbers[rows] += value
        return
    stride = numbers.strides[0] // numbers.itemsize
    _library.add_to_rows(numbers.ctypes.data, stride, rows.ctypes.data, len(rows), value)


def best_cut(sums: Ints, places: Ints, units: Floats, terms: Terms, count: float) -> Cut | None:
    """The cut of a node that gains most; of equal ones the first, those that send missing rows right before others.

    Args:
        sums: [features, bins, channels] over all workers; the last bin is what is missing, the last channel weighs.
        places: Behind how many codes each feature may be cut, [features].
        units: Of the channels.
        terms: What a cut has to be.
        count: How many rows the node has.

    Returns:
        None: none gains anything.
    """
    if _library is None:
        return _best_cut(sums, places, units, terms, count)
    features, bins, channels = sums.shape
    sums, places = np.ascontiguousarray(sums), np.ascontiguousarray(places)
    own = np.array(
        [terms.shrinks, terms.sparse, terms.least_gain, terms.least_weight, terms.least_rows, count]
    )
    room, found = np.empty((3, channels), np.int64), np.zeros(3, np.int64)
    gain = _library.best_cut(
        sums.ctypes.data, features, bins, channels, places.ctypes.data, units.ctypes.data, own.ctypes.data,
        *(each.ctypes.data for each in room), found.ctypes.data,
    )  # fmt: skip
    return Cut(gain, int(found[0]), int(found[1]), bool(found[2])) if gain > 0.0 else None


def _best_cut(sums: Ints, places: Ints, units: Floats, terms: Terms, count: float) -> Cut | None:
    all_of = sums[0].sum(0)
    whole, weight = _score(all_of, units, terms)
    up_to, missing = np.cumsum(sums[:, :-1], axis=1), sums[:, -1:]
    left = np.stack([up_to, up_to + missing])  # missing go right, missing go left
    score_left, weight_left = _score(left, units, terms)
    score_right, weight_right = _score(all_of - left, units, terms)
    gain = score_left + score_right - whole - terms.least_gain
    lighter = np.minimum(weight_left, weight_right)
    allowed = (lighter >= terms.least_weight) & (lighter > 0.0)
    if terms.least_rows:
        allowed &= lighter * count >= terms.least_rows * weight
    allowed &= np.arange(up_to.shape[1]) < places[:, None]
    allowed &= np.stack([np.ones(len(sums), bool), missing.any(axis=(1, 2))])[:, :, None]
    gain = np.where(allowed & (gain > ROUNDING * whole), gain, -np.inf)
    at = int(gain.argmax())
    missing_left, feature, code = np.unravel_index(at, gain.shape)
    best = float(gain.reshape(-1)[at])
    return Cut(best, int(feature), int(code), bool(missing_left)) if best > 0.0 else None


def _score(sums: Ints, units: Floats, terms: Terms) -> tuple[Floats, Any]:
    top = np.zeros(sums.shape[:-1])
    for channel, unit in enumerate(units[:-1]):  # one after the other, as the compiled loop adds
        top = top + soft(sums[..., channel] * unit, terms.sparse) ** 2
    weight = sums[..., -1] * units[-1]
    return top / np.maximum(weight + terms.shrinks, 1e-300), weight


def soft(values: Any, sparse: float) -> Any:
    """T: what is left of each, `sparse` nearer to 0."""
    return values if sparse == 0.0 else np.sign(values) * np.maximum(np.abs(values) - sparse, 0.0)
