"""What linear estimators share: rows checked alike on all workers, and a column of ones for the intercept."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.agreement import begin
from geomx.learn.over import Floats, Over


class Linear(BaseEstimator):  # type: ignore[misc]
    """`coef_` and `intercept_` of a linear function of the features."""

    coef_: Floats
    intercept_: Any
    fit_intercept: bool

    def _rows(self, over: Over, X: Any, y: Any, numeric: bool) -> tuple[Floats, npt.NDArray[Any]]:  # noqa: N803
        """Rows with a one behind them, and their targets, as all workers have them."""
        found, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=numeric, ensure_min_samples=1)
        begin(over, self)
        ones = np.ones((len(found), 1)) if self.fit_intercept else np.zeros((len(found), 0))
        return np.hstack([found, ones]), targets

    def _take(self, w: Floats) -> None:
        """Parameters of shape (outputs, features and maybe one more)."""
        self.coef_ = w[:, :-1] if self.fit_intercept else w
        self.intercept_ = w[:, -1] if self.fit_intercept else np.zeros(len(w))

    def _scores(self, X: Any) -> Floats:  # noqa: N803
        """[rows, outputs]."""
        check_is_fitted(self)
        found = validate_data(self, X, dtype=np.float64, reset=False)
        scores: Floats = found @ np.atleast_2d(self.coef_).T + self.intercept_
        return scores
