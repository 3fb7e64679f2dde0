"""Features of mean 0 and deviation 1 over the rows of all workers; each site's own scaler would make other features.

    x' = (x - mean) / deviation

What travels: sums of each feature over a worker's rows, then of squares about the mean. The same as scikit-learn's.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.agreement import begin
from geomx.learn.over import Floats, Over
from geomx.train.calls.run_calls import RunCalls


class StandardScaler(OneToOneFeatureMixin, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """See the module's text.

    Attributes:
        mean_: Of each feature.
        scale_: The deviation of each, 1 where that is 0.
    """

    def fit(self, X: Any, y: Any = None, run: RunCalls | None = None) -> Self:  # noqa: N803
        """Measure the rows of all workers.

        Args:
            X: This worker's rows, of shape (rows, features).
            y: Nothing.
            run: The run, in which every worker makes this call; None: these are all rows.

        Returns:
            The scaler, the same on all workers.

        Raises:
            Disagreement: Workers have different numbers of features.
        """
        over = Over(run, goes_on=True)
        x = validate_data(self, X, dtype=np.float64)
        begin(over, self)
        sums, rows = over.total(x.sum(0), np.array([len(x)]))
        self.mean_ = sums / rows
        squares, rows = over.total(((x - self.mean_) ** 2).sum(0), np.array([len(x)]))
        deviation = np.sqrt(squares / rows)
        self.scale_ = np.where(deviation > 1e-12 * np.abs(self.mean_), deviation, 1.0)
        return self

    def transform(self, X: Any) -> Floats:  # noqa: N803
        """Rows with these features."""
        check_is_fitted(self)
        found: Floats = (validate_data(self, X, dtype=np.float64, reset=False) - self.mean_) / self.scale_
        return found

    def inverse_transform(self, X: Any) -> Floats:  # noqa: N803
        """The way back."""
        check_is_fitted(self)
        found: Floats = np.asarray(X, np.float64) * self.scale_ + self.mean_
        return found
