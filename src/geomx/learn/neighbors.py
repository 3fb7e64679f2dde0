"""k nearest neighbours, whose rows stay where they are.

    each worker finds the k nearest of its own rows to every query; of all of these the k nearest count

Queries travel to all workers, and back come k distances and k labels of each query from every worker: those tell how
far a query is from a worker's rows, and what these are. Distances are Euclidean; of several that are equally far, the
first in the order of the run counts. The same answers as one machine's. Source: Cover and Hart, IEEE Trans. Inf. Theory
13 (1967).
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics.pairwise import euclidean_distances
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.agreement import begin
from geomx.learn.over import Floats, Over, classes_of
from geomx.train.calls.run_calls import RunCalls

DISTANCES_AT_ONCE = 1 << 24


class _Neighbors(BaseEstimator):  # type: ignore[misc]
    """Rows and targets of this worker, and who else has some."""

    n_neighbors: int
    _x: Floats
    _targets: npt.NDArray[Any]
    _over: Over

    def _keep(self, X: Any, y: Any, run: RunCalls | None, numeric: bool) -> tuple[Over, npt.NDArray[Any]]:  # noqa: N803
        over = Over(run)
        x, targets = validate_data(self, X, y, dtype=np.float64, y_numeric=numeric)
        begin(over, self)
        _, self.n_samples_fit_ = over.place(len(x))
        if self.n_samples_fit_ < self.n_neighbors:
            raise ValueError(f"n_neighbors={self.n_neighbors} of {self.n_samples_fit_} rows")
        self._mean = over.total(x.sum(0))[0] / self.n_samples_fit_
        self._over, self._x = (
            over,
            x - self._mean,
        )  # distances of small numbers are exact where large ones' are not
        return over, targets

    def _nearest(self, X: Any) -> tuple[Floats, npt.NDArray[Any]]:  # noqa: N803
        """Of this worker's queries: distances and targets of shape (queries, k), the nearest first."""
        check_is_fitted(self)
        own = validate_data(self, X, dtype=np.float64, reset=False, ensure_min_samples=0) - self._mean
        first, _ = self._over.place(len(own))
        queries = self._over.joined(own)
        distances, targets = [], []
        each = max(1, DISTANCES_AT_ONCE // max(1, len(self._x)))
        for start in range(0, len(queries), each):
            found = self._of_mine(queries[start : start + each])
            distances.append(found[0])
            targets.append(found[1])
        if not len(queries):
            return np.empty((0, self.n_neighbors)), np.empty((0, self.n_neighbors), self._targets.dtype)
        # Of every worker the same queries: joined, a worker's answers lie behind the other's.
        count = min(self.n_neighbors, self.n_samples_fit_)
        far = self._over.joined(np.concatenate(distances) if distances else np.empty((0, count)))
        what = self._over.joined(np.concatenate(targets) if targets else np.empty((0, count)))
        workers = len(far) // max(len(queries), 1)
        far = far.reshape(workers, len(queries), -1).transpose(1, 0, 2).reshape(len(queries), -1)
        what = what.reshape(workers, len(queries), -1).transpose(1, 0, 2).reshape(len(queries), -1)
        order = np.argsort(far, axis=1, kind="stable")[:, : self.n_neighbors]
        mine = slice(first, first + len(own))
        return np.take_along_axis(far, order, 1)[mine], np.take_along_axis(what, order, 1)[mine]

    def _of_mine(self, queries: Floats) -> tuple[Floats, npt.NDArray[Any]]:
        """Of this worker's rows; where it has fewer than k, the rest is infinitely far."""
        count = self.n_neighbors
        far = np.full((len(queries), count), np.inf)
        what = np.zeros((len(queries), count), self._targets.dtype)
        if len(self._x):
            distances = euclidean_distances(queries, self._x)
            order = np.argsort(distances, axis=1, kind="stable")[:, :count]
            far[:, : order.shape[1]] = np.take_along_axis(distances, order, 1)
            what[:, : order.shape[1]] = self._targets[order]
        return far, what


class KNeighborsClassifier(ClassifierMixin, _Neighbors):  # type: ignore[misc]
    """See the module's text. In a run, every worker makes each call of `predict`, with queries of its own, or none.

    Args:
        n_neighbors: k.

    Attributes:
        classes_: The labels, in order.
        n_samples_fit_: How many rows all workers have.
    """

    def __init__(self, n_neighbors: int = 5) -> None:
        self.n_neighbors = n_neighbors

    def fit(self, X: Any, y: Any, run: RunCalls | None = None) -> Self:  # noqa: N803
        """Keep this worker's rows; see `LogisticRegression.fit`."""
        over, labels = self._keep(X, y, run, numeric=False)
        check_classification_targets(labels)
        self.classes_ = classes_of(over, labels)
        self._targets = np.searchsorted(self.classes_, labels).astype(np.int64)
        return self

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """The share of each class among the k nearest, of shape (rows, classes)."""
        _, places = self._nearest(X)
        counts = np.zeros((len(places), len(self.classes_)))
        np.add.at(counts, (np.arange(len(places))[:, None], places), 1.0)
        return counts / self.n_neighbors

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """The most frequent class among the k nearest; of several the first."""
        places = self.predict_proba(X).argmax(axis=1)
        found: npt.NDArray[Any] = self.classes_[places]
        return found


class KNeighborsRegressor(RegressorMixin, _Neighbors):  # type: ignore[misc]
    """See the module's text, and `KNeighborsClassifier`.

    Args:
        n_neighbors: k.
    """

    def __init__(self, n_neighbors: int = 5) -> None:
        self.n_neighbors = n_neighbors

    def fit(self, X: Any, y: Any, run: RunCalls | None = None) -> Self:  # noqa: N803
        """Keep this worker's rows; see `LogisticRegression.fit`."""
        _, targets = self._keep(X, y, run, numeric=True)
        self._targets = targets.astype(np.float64)
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """The mean of the k nearest."""
        found: Floats = self._nearest(X)[1].mean(axis=1)
        return found
