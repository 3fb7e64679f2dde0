"""Logistic regression, of two classes or more.

    min_W  C sum_i (log sum_k exp(w_k x_i) - w_{y_i} x_i) + 1/2 sum_k |w_k|^2       (the intercepts are not shrunk)

What travels: see `newton.py`, with d = features + 1 of two classes, and K times as much of K. The same minimum as
scikit-learn's `LogisticRegression`, and as one machine's to rounding. Source: McCullagh and Nelder, Generalized Linear
Models (1989); Boehning, Ann. Inst. Stat. Math. 44 (1992) for several classes.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logsumexp, softmax
from sklearn.utils.multiclass import check_classification_targets

from geomx.learn.classes import Probable
from geomx.learn.linear.base import Linear
from geomx.learn.linear.newton import Curve, Sums, minimize
from geomx.learn.over import Floats, Over, classes_of
from geomx.train.calls.run_calls import RunCalls


class LogisticRegression(Probable, Linear):
    """See the module's text.

    Args:
        C: How much rows count beside the weights' size; greater than 0.
        fit_intercept: Whether classes have an intercept.
        tol: It ends where no element of the gradient is larger, as a share of the largest at first.
        max_iter: At most so many steps.

    Attributes:
        classes_: The labels, in order.
        coef_: Of shape (1, features) of two classes, (classes, features) of more.
        intercept_: Of shape (1,) or (classes,).
        n_iter_: How many steps were taken.
    """

    def __init__(
        self,
        C: float = 1.0,  # noqa: N803
        *,
        fit_intercept: bool = True,
        tol: float = 1e-12,
        max_iter: int = 100,
    ) -> None:
        self.C, self.fit_intercept, self.tol, self.max_iter = C, fit_intercept, tol, max_iter

    def fit(self, X: Any, y: Any, run: RunCalls | None = None) -> Self:  # noqa: N803
        """Train on the rows of all workers.

        Args:
            X: This worker's rows, of shape (rows, features).
            y: Their labels.
            run: The run, in which every worker makes this call; None: these are all rows.

        Returns:
            Itself, the same on all workers.

        Raises:
            Disagreement: Workers have different numbers of features.
            ValueError: There is one class alone, or what scikit-learn finds wrong with the rows.
        """
        over = Over(run, goes_on=True)
        x, labels = self._rows(over, X, y, numeric=False)
        check_classification_targets(labels)
        self.classes_ = classes_of(over, labels)
        if len(self.classes_) < 2:
            raise ValueError(f"needs samples of at least 2 classes; found 1 class: {self.classes_[0]!r}")
        places = np.searchsorted(self.classes_, labels)
        outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        ridge = np.eye(outputs * x.shape[1])
        if self.fit_intercept:  # rows say nothing of the sum of the intercepts of several classes: it is 0
            at = np.arange(1, outputs + 1) * x.shape[1] - 1
            ridge[np.ix_(at, at)] = float(outputs > 1)
        sums = _of_two(x, places, self.C) if outputs == 1 else _of_several(x, places, outputs, self.C)
        w, self.n_iter_ = minimize(over, sums, ridge, np.zeros(len(ridge)), self.tol, self.max_iter)
        self._take(w.reshape(outputs, -1))
        return self


def _of_two(x: Floats, places: npt.NDArray[np.intp], cost: float) -> Sums:
    signs = 2.0 * places - 1.0

    def sums(w: Floats) -> tuple[float, Floats, Curve]:
        margins = signs * (x @ w)
        chance = expit(-margins)
        value = float(np.logaddexp(0.0, -margins).sum())
        weights = cost * chance * (1.0 - chance)
        return cost * value, -cost * (x.T @ (signs * chance)), lambda: (x * weights[:, None]).T @ x

    return sums


def _of_several(x: Floats, places: npt.NDArray[np.intp], outputs: int, cost: float) -> Sums:
    rows, columns = x.shape

    def sums(w: Floats) -> tuple[float, Floats, Curve]:
        scores = x @ w.reshape(outputs, columns).T
        value = float((logsumexp(scores, axis=1) - scores[np.arange(rows), places]).sum()) if rows else 0.0
        chances = softmax(scores, axis=1)
        left = chances.copy()
        left[np.arange(rows), places] -= 1.0

        def curve() -> Floats:
            hessian = np.zeros((outputs, columns, outputs, columns))
            for one in range(outputs):
                for other in range(one, outputs):
                    weights = chances[:, one] * ((one == other) - chances[:, other])
                    block = cost * ((x * weights[:, None]).T @ x)
                    hessian[one, :, other] = block
                    hessian[other, :, one] = block.T
            size = outputs * columns
            return hessian.reshape(size, size)

        return cost * value, cost * (left.T @ x).reshape(-1), curve

    return sums
