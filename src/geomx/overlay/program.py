"""The linear program of packing trees, whose columns may come one by one; solved by HiGHS, which scipy has.

    minimise T,  where  Σ_c w_c a_rc ≤ T cap_r  for each resource r,  Σ_{c of k} w_c = d_k  for each demand k,  w ≥ 0

A column c is a tree, w_c the bytes that take it, and a_rc how often it uses a resource.
"""

from __future__ import annotations

from collections.abc import Collection
from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Shares = dict[int, float]  # of columns

TINY = 1e-9


def available() -> bool:
    """Whether scipy is there."""
    return find_spec("scipy") is not None


class Program:
    """See the module's text.

    Attributes:
        caps: Of the resources.
        demands: What each has to carry.
        uses: Of each column, how often it uses each resource.
        of: Each column's demand.
        total: T, after `solve`.
        prices: What a unit of each resource is worth, after `solve`: p ≥ 0, with p · cap = 1.
    """

    def __init__(self, caps: Floats, demands: Floats) -> None:
        """Begin without columns. Both should be near 1."""
        self.caps, self.demands = caps, demands
        self.uses: list[Floats] = []
        self.of: list[int] = []
        self.total, self.prices = float("inf"), np.zeros(len(caps))

    def add(self, demand: int, uses: Floats) -> int:
        """Add a tree, with how often it uses each resource. Returns its number."""
        self.uses.append(uses)
        self.of.append(demand)
        return len(self.of) - 1

    def even(self) -> Shares:
        """Equal parts of its demand for each column: a solution, if not the best."""
        counts = np.bincount(self.of)
        return {column: float(self.demands[of] / counts[of]) for column, of in enumerate(self.of)}

    def solve(self, columns: Collection[int] | None = None) -> Shares:
        """Find the best weights; few are above 0. With `columns`, for these alone."""
        from scipy.optimize import linprog  # noqa: PLC0415

        some = sorted(range(len(self.of)) if columns is None else columns)
        uses = np.column_stack([*(self.uses[column] for column in some), -self.caps])
        of = np.zeros((len(self.demands), len(some) + 1))
        of[[self.of[column] for column in some], np.arange(len(some))] = 1
        costs = np.zeros(len(some) + 1)
        costs[-1] = 1
        result = linprog(costs, uses, np.zeros(len(self.caps)), of, self.demands, method="highs-ds")
        if columns is None:
            self.total, self.prices = float(result.fun), np.maximum(-result.ineqlin.marginals, 0)
        return {
            column: float(weight) for column, weight in zip(some, result.x[:-1], strict=True) if weight > TINY
        }

    def fewer(self, weights: Shares, most: int) -> list[Shares]:
        """The weights of a solution, with so many columns of each demand at most; with half as many; and so on.

        Of the columns that are too many the half with the least weight is left out, again and again.
        """
        found = []
        while most:
            while excess := self._excess(weights, most):
                weights = self.solve(weights.keys() - excess)
            found.append(weights)
            most = int(np.bincount([self.of[column] for column in weights]).max()) // 2
        return found

    def _excess(self, weights: Shares, most: int) -> set[int]:
        """Of each demand the half of the columns that are too many."""
        least = set[int]()
        for demand in range(len(self.demands)):
            columns = [column for column in weights if self.of[column] == demand]
            columns.sort(key=lambda column: (weights[column], column))
            least.update(columns[: max(0, len(columns) - most + 1) // 2])
        return least
