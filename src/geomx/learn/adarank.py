"""AdaRank: a weighted sum of features, each chosen for the queries that are ranked worst so far.

    P(q) ~ exp(-NDCG(q, s)),     f = the feature, or its negative, with the largest sum_q P(q) NDCG(q, f)
    s <- s + alpha f,            alpha = ln(sum_q P(q) (1 + NDCG(q, f)) / sum_q P(q) (1 - NDCG(q, f))) / 2

A query lies with one worker. What travels: how large features are, once; then, for each choice, 2 features + 1 sums
over a worker's queries, which tell how well each feature ranks them. Source: Xu and Li, SIGIR 2007.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.agreement import begin
from geomx.learn.over import Floats, Over
from geomx.learn.trees.objectives.pairs import gains, ideal_gain, ranks
from geomx.train.calls.run_calls import RunCalls


class AdaRank(BaseEstimator):  # type: ignore[misc]
    """See the module's text.

    Args:
        n_estimators: How many choices.

    Attributes:
        coef_: Of shape (features,).
    """

    def __init__(self, n_estimators: int = 50) -> None:
        self.n_estimators = n_estimators

    def fit(self, X: Any, y: Any, groups: Any, run: RunCalls | None = None) -> Self:  # noqa: N803
        """Train on the queries of all workers; see `LambdaMART.fit`."""
        over = Over(run)
        x, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        if len(np.asarray(groups)) != len(targets):
            raise ValueError(f"{len(np.asarray(groups))} groups for {len(targets)} rows")
        begin(over, self)
        _, query = np.unique(np.asarray(groups), return_inverse=True)
        sums, rows = over.total(x.sum(0), np.array([len(x)], np.int64))
        spread = np.sqrt(over.total(((x - sums / rows) ** 2).sum(0))[0] / rows)
        scaled = x / np.where(spread > 0.0, spread, 1.0)
        weak = np.hstack([scaled, -scaled])
        gain, ideal = gains(targets), ideal_gain(targets, query)
        counts = ideal > 0.0  # in others every order is right
        quality = np.stack([_ndcg(column, gain, ideal, query)[counts] for column in weak.T], axis=1)
        chosen = np.zeros(weak.shape[1])
        for _ in range(self.n_estimators):
            now = _ndcg(weak @ chosen, gain, ideal, query)[counts]
            weight = np.exp(-now)
            each, all_of = over.total(weight @ quality, np.atleast_1d(weight.sum()))
            best = int(each.argmax())
            up, down = float(all_of[0]) + float(each[best]), float(all_of[0]) - float(each[best])
            if not down > 0.0:  # it ranks all queries as they should be
                chosen[best] += 1.0
                break
            chosen[best] += 0.5 * np.log(up / down)
        features = x.shape[1]
        self.coef_ = (chosen[:features] - chosen[features:]) / np.where(spread > 0.0, spread, 1.0)
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """A score for each row: of one query, the higher comes first."""
        check_is_fitted(self)
        found: Floats = validate_data(self, X, dtype=np.float64, reset=False) @ self.coef_
        return found


def _ndcg(scores: Floats, gain: Floats, ideal: Floats, query: Any) -> Floats:
    """Of each query."""
    found = np.bincount(query, gain / np.log2(ranks(scores, query) + 2.0), len(ideal))
    return np.asarray(found / np.maximum(ideal, 1e-12), np.float64)
