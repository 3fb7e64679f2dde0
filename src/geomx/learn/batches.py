"""Batches of the rows of all workers: the same ones wherever rows lie.

    an epoch's order    rows' numbers, sorted by a random number of each, which follows from seed, epoch and number
    batch t             the next B of them; each worker has some of these, or none

So the mean over a batch is one machine's, and parties whose rows are unlike draw no step to their side. What travels:
how many rows each worker has, once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np

from geomx.learn.over import Ints, Over, uniform


class Batch(NamedTuple):
    """This worker's part of a batch.

    `rows`: places among its own rows; `at`: places in the batch; `size`: how many rows all have in it.
    """

    rows: Ints
    at: Ints
    size: int


def batches(run: Any, rows: int, size: int, epochs: int, seed: int) -> Iterator[Batch]:
    """For this worker, which has so many rows: its part of each batch of `size`."""
    first, of_all = Over(run).place(rows)
    numbers = np.arange(of_all)
    for epoch in range(epochs):
        order = np.argsort(uniform(numbers, seed, epoch), kind="stable")
        for start in range(0, of_all, size):
            chosen = order[start : start + size]
            at = np.flatnonzero((chosen >= first) & (chosen < first + rows))
            yield Batch(chosen[at] - first, at, len(chosen))
