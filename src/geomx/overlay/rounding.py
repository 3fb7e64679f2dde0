"""Shares of trees in whole slices, which are of equal size."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from geomx.overlay.program import TINY, Floats, Program, Shares

MOST_MOVES, HIGH = 64, 100


def rounded(program: Program, weights: Shares, slices: Sequence[int]) -> dict[int, int]:
    """Weights in slices: so many of each demand.

    The remainders go to the largest; then one slice after another changes its column while that lowers the greatest
    load, or how many are as great: a sum of high powers of loads.
    """
    columns = list(weights)
    of = np.array([program.of[column] for column in columns])
    parts = np.array(list(weights.values()))
    parts /= np.bincount(of, parts)[of]
    counts = _whole(parts * np.array(slices)[of], of, slices)
    uses = np.array([program.uses[column] for column in columns])
    loads = uses / program.caps * (program.demands / slices)[of][:, None]
    loads /= (counts @ loads).max() or 1.0
    moves = [(i, j) for i in range(len(of)) for j in range(len(of)) if i != j and of[i] == of[j]]
    changes = np.array([loads[j] - loads[i] for i, j in moves]).reshape(len(moves), len(program.caps))
    sources = np.array([i for i, _ in moves], int)
    for _ in range(MOST_MOVES if moves else 0):
        load = counts @ loads
        sums = ((load + changes).clip(0, 1e3) ** HIGH).sum(1)
        sums[counts[sources] == 0] = np.inf
        best = int(sums.argmin())
        if sums[best] >= (load**HIGH).sum() * (1 - TINY):
            break
        counts[moves[best][0]] -= 1
        counts[moves[best][1]] += 1
    return {column: int(count) for column, count in zip(columns, counts, strict=True) if count}


def _whole(wanted: Floats, of: NDArray[np.int64], slices: Sequence[int]) -> NDArray[np.int64]:
    """The nearest whole numbers with the same sums."""
    counts = np.floor(wanted).astype(np.int64)
    for demand, count in enumerate(slices):
        some = np.flatnonzero(of == demand)
        left = int(count - counts[some].sum())
        counts[some[np.argsort(counts[some] - wanted[some], kind="stable")[:left]]] += 1
    return counts
