"""RankBoost: a weighted sum of thresholds on features, boosted on pairs.

    D(i, j) ~ exp(s_j - s_i) over pairs of one query with y_i > y_j,     pi_i = sum_j D(i, j) - sum_j D(j, i)
    h = [x_f > t] with the largest |r|,  r = sum_i pi_i h(x_i),     s <- s + alpha h,  alpha = ln((1 + r) / (1 - r)) / 2

So the best threshold follows from sums of pi by feature and code, as a tree's first cut does. A query lies with one
worker. What travels: see `trees/bins.py`, once; then, for each threshold, features x codes sums of pi, which tell how
the ranks of a worker's rows of a code are wrong. Source: Freund, Iyer, Schapire and Singer, JMLR 4 (2003).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.agreement import begin
from geomx.learn.over import Floats, Over
from geomx.learn.trees import bins as binning
from geomx.learn.trees.bins import Bins
from geomx.learn.trees.fixed import unit_for, whole
from geomx.learn.trees.loops import histograms
from geomx.learn.trees.objectives.pairs import pairs_of
from geomx.train.calls.run_calls import RunCalls

LARGEST = 1.0 - 1e-6  # r, where a threshold orders all pairs


class RankBoost(BaseEstimator):  # type: ignore[misc]
    """See the module's text.

    Args:
        n_estimators: How many thresholds.
        max_bins: Between how many codes of a feature they lie, at most 255.

    Attributes:
        bins_: What codes mean.
        thresholds_: Of each: feature, threshold and alpha, of shape (n_estimators, 3).
    """

    def __init__(self, n_estimators: int = 100, *, max_bins: int = 255) -> None:
        self.n_estimators, self.max_bins = n_estimators, max_bins

    def fit(self, X: Any, y: Any, groups: Any, run: RunCalls | None = None, bins: Bins | None = None) -> Self:  # noqa: N803
        """Train on the queries of all workers; see `LambdaMART.fit`."""
        over = Over(run)
        x, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=True)
        queries = np.asarray(groups)
        if len(queries) != len(targets):
            raise ValueError(f"{len(queries)} groups for {len(targets)} rows")
        begin(over, self, bins=bins)
        more, less, _ = pairs_of(targets, queries)
        self.bins_ = binning.given(over, x, self.max_bins, bins)
        coded = self.bins_.codes(x)
        rows, scores = np.arange(len(x), dtype=np.int32), np.zeros(len(x))
        found: list[tuple[float, float, float]] = []
        for _ in range(self.n_estimators):
            own = np.exp(np.clip(scores[less] - scores[more], -500.0, 500.0))
            everything = float(over.total(np.atleast_1d(own.sum()))[0][0])
            share = own / max(everything, 1e-300)
            pull = np.bincount(more, share, len(x)) - np.bincount(less, share, len(x))
            unit = unit_for(over.most(float(np.abs(pull).max(initial=0.0))))
            values = whole(np.asarray(pull, np.float64), unit)[:, None]
            sums = over.total(histograms(coded.by_row, values, rows, self.bins_.count))[0][:, :, 0] * unit
            right = sums.sum(1, keepdims=True) - np.cumsum(sums, axis=1)  # of rows above each cut
            for feature, cuts in enumerate(self.bins_.cuts):
                right[feature, len(cuts) :] = 0.0  # there is no such cut
            at = int(np.abs(right).argmax())
            r = float(np.clip(right.reshape(-1)[at], -LARGEST, LARGEST))
            feature, code = (int(each) for each in np.unravel_index(at, right.shape))
            if r == 0.0:
                break
            alpha = 0.5 * np.log((1.0 + r) / (1.0 - r))
            found.append((feature, float(self.bins_.cuts[feature][code]), float(alpha)))
            scores += alpha * (coded.by_feature[feature] > code)
        self.thresholds_ = np.array(found).reshape(-1, 3)
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """A score for each row: of one query, the higher comes first."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False)
        features = self.thresholds_[:, 0].astype(np.int64)
        found: Floats = (x[:, features] > self.thresholds_[:, 1]) @ self.thresholds_[:, 2]
        return found
