"""RankSVM: a linear score by which, within a query, what is more relevant comes first.

    min_w  |w|^2 / 2 + C sum_{i, j of one query, y_i > y_j} max(0, 1 - w (x_i - x_j))^2

A query's rows lie with one worker. What travels: see `newton.py`; pairs stay at home. Sources: Joachims, KDD 2002;
Chapelle and Keerthi, Information Retrieval 13 (2010).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np

from geomx.learn.linear.base import Linear
from geomx.learn.linear.newton import Curve, Sums, minimize
from geomx.learn.over import Floats, Ints, Over
from geomx.learn.trees.objectives.pairs import pairs_of
from geomx.train.calls.run_calls import RunCalls

PAIRS_AT_ONCE = 1 << 16


class RankSVM(Linear):
    """See the module's text.

    Args:
        C: How much pairs count beside the weights' size.
        tol: It ends where no element of the gradient is larger, as a share of the largest at first.
        max_iter: At most so many steps.

    Attributes:
        coef_: Of shape (features,).
        n_iter_: How many steps were taken.
    """

    fit_intercept = False

    def __init__(self, C: float = 1.0, *, tol: float = 1e-12, max_iter: int = 100) -> None:  # noqa: N803
        self.C, self.tol, self.max_iter = C, tol, max_iter

    def fit(self, X: Any, y: Any, groups: Any, run: RunCalls | None = None) -> Self:  # noqa: N803
        """Train on the queries of all workers.

        Args:
            X: This worker's rows, of shape (rows, features).
            y: How relevant each is; only the order within a query counts.
            groups: The query of each row.
            run: The run, in which every worker makes this call; None: these are all rows.

        Returns:
            Itself, the same on all workers.

        Raises:
            Disagreement: Workers have different numbers of features.
            ValueError: `groups` has another length than `y`.
        """
        over = Over(run, goes_on=True)
        x, targets = self._rows(over, X, y, numeric=True)
        queries = np.asarray(groups)
        if len(queries) != len(targets):
            raise ValueError(f"{len(queries)} groups for {len(targets)} rows")
        more, less, _ = pairs_of(targets, queries)
        size = x.shape[1]
        w, self.n_iter_ = minimize(
            over, _pairs(x, more, less, self.C), np.eye(size), np.zeros(size), self.tol, self.max_iter
        )
        self.coef_, self.intercept_ = w, 0.0
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """A score for each row: of one query, the higher comes first."""
        found: Floats = self._scores(X)[:, 0]
        return found


def _pairs(x: Floats, more: Ints, less: Ints, cost: float) -> Sums:
    def sums(w: Floats) -> tuple[float, Floats, Curve]:
        scores = x @ w
        slack = 1.0 - scores[more] + scores[less]
        at = np.flatnonzero(slack > 0.0)
        left = slack[at]
        pull = np.bincount(more[at], left, len(x)) - np.bincount(less[at], left, len(x))

        def curve() -> Floats:
            hessian = np.zeros((len(w), len(w)))
            for some in np.array_split(at, len(at) // PAIRS_AT_ONCE + 1):
                apart = x[more[some]] - x[less[some]]
                hessian += 2.0 * cost * (apart.T @ apart)
            return hessian

        return cost * float(left @ left), -2.0 * cost * (pull @ x), curve

    return sums
