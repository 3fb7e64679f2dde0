"""Random forests: trees on rows that are drawn with replacement, each cut by the best of some features.

    a row counts as often as Poisson(1) says, a node is cut by the best of m features;   the mean of all trees

Draws belong to rows and nodes, so they are the same wherever rows lie. Classes are cut by Gini's impurity, numbers by
variance: both are squared error, of one-hot targets or of the numbers. What travels: see `bins.py` and `growing.py`,
with one output for each class. Sources: Breiman, Machine Learning 45 (2001); Chamandy et al. (2012) for the draws.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.stats import poisson
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.agreement import begin
from geomx.learn.over import Floats, Ints, Over, classes_of, uniform
from geomx.learn.trees import bins as binning
from geomx.learn.trees.bins import Bins
from geomx.learn.trees.fixed import mean_of, unit_for, whole
from geomx.learn.trees.growing import Planted, Tree, grow
from geomx.learn.trees.loops import Terms
from geomx.train.calls.run_calls import RunCalls

MOST_TIMES = 16  # that a row is drawn
AT_ONCE = 16  # trees that grow together


class _Forest(BaseEstimator):  # type: ignore[misc]
    """Trees whose mean counts.

    Args:
        n_estimators: How many trees.
        max_features: By how many features a node may be cut, as a share; None: the square root for classes, a third
            for numbers.
        max_leaves: Of a tree, at most.
        max_depth: Of a tree, at most.
        min_samples_leaf: Rows of a leaf, at least, as often as they are drawn.
        max_bins: How many codes a feature has, at most 255.
        random_state: The seed, the same on all workers.

    Attributes:
        bins_: What codes mean.
        trees_: The trees.
    """

    def __init__(
        self,
        n_estimators: int = 100,
        *,
        max_features: float | None = None,
        max_leaves: int = 1024,
        max_depth: int = 16,
        min_samples_leaf: int = 1,
        max_bins: int = 255,
        random_state: int = 0,
    ) -> None:
        self.n_estimators, self.max_features, self.max_leaves = n_estimators, max_features, max_leaves
        self.max_depth, self.min_samples_leaf, self.max_bins = max_depth, min_samples_leaf, max_bins
        self.random_state = random_state

    def _grow(
        self, over: Over, x: Floats, outputs: Floats, bound: float, few: int, bins: Bins | None
    ) -> None:
        """`outputs`: targets [rows, outputs], none larger than `bound`; `few`: by how many features a node is cut."""
        begin(over, self, bins=bins)
        self.bins_ = binning.given(over, x, self.max_bins, bins)
        coded = self.bins_.codes(x)
        first, all_rows = over.place(len(x))
        rows = np.arange(first, first + len(x), dtype=np.int64)
        terms = Terms(self.max_leaves, self.max_depth, least_weight=float(self.min_samples_leaf))
        features = np.arange(x.shape[1], dtype=np.int64)
        reach = poisson.cdf(np.arange(MOST_TIMES), 1.0)
        units = np.array([unit_for(MOST_TIMES * bound)] * outputs.shape[1] + [1.0])
        self.trees_: list[Tree] = []

        def planted(number: int) -> Planted:
            times = np.searchsorted(reach, uniform(rows, self.random_state, number)).astype(np.float64)
            gradients = [whole(-times * column, unit) for column, unit in zip(outputs.T, units, strict=False)]
            values = np.ascontiguousarray(np.stack([*gradients, times.astype(np.int32)], axis=1))

            def chooses(node: int) -> Ints:
                draws = uniform(features + node * len(features), self.random_state, (1 << 20) + number)
                return np.sort(np.argsort(draws, kind="stable")[:few])

            return Planted(values, chooses if few < len(features) else None)

        for start in range(0, self.n_estimators, AT_ONCE):
            some = [planted(number) for number in range(start, min(start + AT_ONCE, self.n_estimators))]
            grown = grow(over, coded, self.bins_, some, units, terms, all_rows)
            self.trees_ += [tree for tree, _ in grown]

    def _means(self, X: Any) -> Floats:  # noqa: N803
        """[rows, outputs]."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite="allow-nan")
        total = sum(tree.value[tree.leaf_of(x)] for tree in self.trees_)
        found: Floats = np.asarray(total) / len(self.trees_)
        return found

    def _few(self, features: int, usual: float) -> int:
        share = usual / features if self.max_features is None else self.max_features
        return min(features, max(1, round(share * features)))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class RandomForestClassifier(ClassifierMixin, _Forest):  # type: ignore[misc]
    """Classes. See `_Forest`; `classes_` are the labels, in order."""

    def fit(self, X: Any, y: Any, run: RunCalls | None = None, bins: Bins | None = None) -> Self:  # noqa: N803
        """Train on the rows of all workers; see `GBDTRegressor.fit`."""
        over = Over(run)
        x, labels = validate_data(self, X, y, dtype=np.float64, ensure_all_finite="allow-nan")
        check_classification_targets(labels)
        self.classes_ = classes_of(over, labels)
        places = np.searchsorted(self.classes_, labels)
        self._grow(
            over, x, np.eye(len(self.classes_))[places], 1.0, self._few(x.shape[1], x.shape[1] ** 0.5), bins
        )
        return self

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """The mean share of each class in the leaves, of shape (rows, classes)."""
        return self._means(X)

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """The most probable class of each row."""
        places = self._means(X).argmax(axis=1)
        found: npt.NDArray[Any] = self.classes_[places]
        return found


class RandomForestRegressor(RegressorMixin, _Forest):  # type: ignore[misc]
    """Numbers. See `_Forest`."""

    def fit(self, X: Any, y: Any, run: RunCalls | None = None, bins: Bins | None = None) -> Self:  # noqa: N803
        """Train on the rows of all workers; see `GBDTRegressor.fit`."""
        over = Over(run)
        x, targets = validate_data(
            self, X, y, dtype=np.float64, y_numeric=True, ensure_all_finite="allow-nan"
        )
        mean, _ = mean_of(over, targets.astype(np.float64))
        apart = targets.astype(np.float64) - mean
        bound = over.most(float(np.abs(apart).max(initial=0.0)))
        self._grow(over, x, apart[:, None], bound, self._few(x.shape[1], x.shape[1] / 3), bins)
        for tree in self.trees_:
            tree.value += mean
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """The mean of the trees."""
        found: Floats = self._means(X)[:, 0]
        return found
