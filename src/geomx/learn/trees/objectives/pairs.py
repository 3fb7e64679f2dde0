"""Pairs of one query, for ranking: which row is to come before which. A query lies with one worker."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from geomx.learn.over import Floats, Ints

MOST_RELEVANT = 50  # of which 2^y is still a number to add


class Pairs(NamedTuple):
    """Places of rows: `more[i]` is more relevant than `less[i]`. `query`: the number of each row's query."""

    more: Ints
    less: Ints
    query: Ints


def pairs_of(targets: npt.NDArray[Any], groups: npt.NDArray[Any]) -> Pairs:
    """All pairs, query by query."""
    _, query = np.unique(groups, return_inverse=True)
    order = np.argsort(query, kind="stable")
    bounds = np.flatnonzero(np.diff(query[order])) + 1
    more, less = [np.empty(0, np.int64)], [np.empty(0, np.int64)]
    for rows in np.split(order, bounds):
        first, second = np.nonzero(targets[rows][:, None] > targets[rows][None, :])
        more.append(rows[first])
        less.append(rows[second])
    return Pairs(np.concatenate(more), np.concatenate(less), query)


def ranks(scores: Floats, query: Ints) -> Ints:
    """The place of each row within its query, from 0, by falling score; of equal ones as they stand."""
    order = np.lexsort((np.arange(len(scores)), -scores, query))
    sorted_query = query[order]
    starts = np.flatnonzero(np.r_[True, sorted_query[1:] != sorted_query[:-1]])
    found = np.empty(len(scores), np.int64)
    found[order] = np.arange(len(scores)) - np.repeat(starts, np.diff(np.r_[starts, len(scores)]))
    return found


def ideal_gain(targets: npt.NDArray[Any], query: Ints) -> Floats:
    """The largest discounted cumulative gain of each query: sum_r (2^y - 1) / log2(r + 2)."""
    places = ranks(targets.astype(np.float64), query)
    return np.asarray(np.bincount(query, gains(targets) / np.log2(places + 2.0)), np.float64)


def gains(targets: npt.NDArray[Any]) -> Floats:
    """2^y - 1. Raises `ValueError` for what no relevance is."""
    if targets.size and not (targets.min() >= 0 and targets.max() <= MOST_RELEVANT):
        raise ValueError(
            f"y from {targets.min():g} to {targets.max():g}: how relevant, from 0 to {MOST_RELEVANT}"
        )
    return np.exp2(targets.astype(np.float64)) - 1.0
