"""Support vectors: classes and numbers, linear or by random features of a Gaussian kernel.

    SVC    min_w  |w|^2 / 2 + C sum_i max(0, 1 - y_i w x_i)^2                   one class against the rest
    SVR    min_w  |w|^2 / 2 + C sum_i max(0, |y_i - w x_i| - epsilon)^2

with the intercept among w, as the weight of a feature that is 1. With `kernel="rbf"` the features are cosines whose
products approximate exp(-gamma |x - z|^2); every worker draws the same. What travels: see `newton.py`, once for each
class. The same minimum as scikit-learn's `LinearSVC` and `LinearSVR` with squared losses. Sources: Chapelle, Neural
Computation 19 (2007); Rahimi and Recht, NIPS 2007.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Any, Literal, Self

import numpy as np
from sklearn.base import RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.classes import Scored
from geomx.learn.linear.base import Linear
from geomx.learn.linear.newton import Curve, Sums, minimize
from geomx.learn.over import Floats, Over, classes_of
from geomx.train.calls.run_calls import RunCalls

Kernel = Literal["linear", "rbf"]


@dataclass(eq=False, repr=False)
class _Vectors(Linear):
    """Parameters and features of both."""

    _: KW_ONLY
    kernel: Kernel = "linear"
    gamma: float = 1.0
    components: int = 500
    fit_intercept: bool = True
    random_state: int = 0
    tol: float = 1e-12
    max_iter: int = 100

    def _features(self, x: Floats) -> Floats:
        """Of rows without the ones."""
        if self.kernel == "linear":
            return x
        if self.kernel != "rbf":
            raise ValueError(f"kernel={self.kernel!r}: linear or rbf")
        rng = np.random.default_rng(self.random_state)
        directions = rng.standard_normal((x.shape[1], self.components)) * np.sqrt(2.0 * self.gamma)
        phases = rng.uniform(0.0, 2.0 * np.pi, self.components)
        found: Floats = np.sqrt(2.0 / self.components) * np.cos(x @ directions + phases)
        return found

    def _mapped(self, x: Floats) -> Floats:
        """Rows with their ones, as features with these."""
        if self.kernel == "linear":
            return x
        columns = x.shape[1] - self.fit_intercept
        return np.hstack([self._features(x[:, :columns]), x[:, columns:]])

    def _scores(self, X: Any) -> Floats:  # noqa: N803
        check_is_fitted(self)
        x = self._features(validate_data(self, X, dtype=np.float64, reset=False))
        scores: Floats = x @ self.coef_.T + self.intercept_
        return scores

    def _solve(self, over: Over, sums: Sums, size: int) -> tuple[Floats, int]:
        return minimize(over, sums, np.eye(size), np.zeros(size), self.tol, self.max_iter)


@dataclass(eq=False, repr=False)
class SVC(Scored, _Vectors):
    """See the module's text.

    Args:
        C: How much rows count beside the weights' size.
        kernel: "linear", or "rbf" by `components` random features with `gamma`.
        gamma: Of the kernel.
        components: How many random features.
        fit_intercept: Whether there is a feature that is 1.
        random_state: The seed of the features, the same on all workers.
        tol: It ends where no element of the gradient is larger, as a share of the largest at first.
        max_iter: At most so many steps of each class.

    Attributes:
        classes_: The labels, in order.
        coef_: Of shape (1, features) of two classes, (classes, features) of more.
        intercept_: Of shape (1,) or (classes,).
        n_iter_: How many steps were taken, of the class that took most.
    """

    C: float = 1.0

    def fit(self, X: Any, y: Any, run: RunCalls | None = None) -> Self:  # noqa: N803
        """Train on the rows of all workers; see `LogisticRegression.fit`."""
        over = Over(run)  # classes one after the other, of the same rows
        x, labels = self._rows(over, X, y, numeric=False)
        check_classification_targets(labels)
        x = self._mapped(x)
        self.classes_ = classes_of(over, labels)
        if len(self.classes_) < 2:
            raise ValueError(f"needs samples of at least 2 classes; found 1 class: {self.classes_[0]!r}")
        positive = self.classes_[1:] if len(self.classes_) == 2 else self.classes_
        found = [
            self._solve(over, _hinge(x, np.where(labels == each, 1.0, -1.0), self.C), x.shape[1])
            for each in positive
        ]
        self.n_iter_ = max(steps for _, steps in found)
        self._take(np.stack([w for w, _ in found]))
        return self


@dataclass(eq=False, repr=False)
class SVR(RegressorMixin, _Vectors):  # type: ignore[misc]
    """See the module's text. Arguments and attributes as of `SVC`, of one output.

    Args:
        C: How much rows count beside the weights' size.
        epsilon: How far a prediction may be off at no cost.
        kernel: "linear" or "rbf".
        gamma: Of the kernel.
        components: How many random features.
        fit_intercept: Whether there is a feature that is 1.
        random_state: The seed of the features.
        tol: It ends where no element of the gradient is larger, as a share of the largest at first.
        max_iter: At most so many steps.
    """

    C: float = 1.0
    epsilon: float = 0.0

    def fit(self, X: Any, y: Any, run: RunCalls | None = None) -> Self:  # noqa: N803
        """Train on the rows of all workers; see `LogisticRegression.fit`."""
        over = Over(run, goes_on=True)
        x, targets = self._rows(over, X, y, numeric=True)
        x = self._mapped(x)
        w, self.n_iter_ = self._solve(
            over, _tube(x, targets.astype(np.float64), self.C, self.epsilon), x.shape[1]
        )
        self._take(w[None])
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """A number for each row."""
        found: Floats = self._scores(X)[:, 0]
        return found


def _hinge(x: Floats, signs: Floats, cost: float) -> Sums:
    def sums(w: Floats) -> tuple[float, Floats, Curve]:
        slack = 1.0 - signs * (x @ w)
        at = slack > 0.0
        some, left = x[at], slack[at]
        gradient = -2.0 * cost * (some.T @ (signs[at] * left))
        return cost * float(left @ left), gradient, lambda: 2.0 * cost * (some.T @ some)

    return sums


def _tube(x: Floats, targets: Floats, cost: float, epsilon: float) -> Sums:
    def sums(w: Floats) -> tuple[float, Floats, Curve]:
        off = x @ w - targets
        at = np.abs(off) > epsilon
        some, left = x[at], off[at] - epsilon * np.sign(off[at])
        return cost * float(left @ left), 2.0 * cost * (some.T @ left), lambda: 2.0 * cost * (some.T @ some)

    return sums
