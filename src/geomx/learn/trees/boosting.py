"""Gradient boosting: each tree is a Newton step of the loss, shrunk.

    s  <-  s + rate * tree,     tree: grown on g and h of the loss at s (`growing.py`)

`GBDT...` are Friedman's machines; `XGB...` add XGBoost's terms: lambda, alpha and gamma, and a default direction for
rows without a value. What travels: see `bins.py`, once, and `growing.py`, for each tree.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, RegressorMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.agreement import begin
from geomx.learn.classes import Probable
from geomx.learn.over import Floats, Over, classes_of
from geomx.learn.privacy import Noise, histograms_of, reach_of
from geomx.learn.trees import bins as binning
from geomx.learn.trees.bins import Bins
from geomx.learn.trees.fixed import unit_for, whole
from geomx.learn.trees.growing import Conceal, Planted, Tree, grow
from geomx.learn.trees.loops import Terms, add_to_rows
from geomx.learn.trees.objectives.contract import Objective
from geomx.learn.trees.objectives.lambdas import Lambdas
from geomx.learn.trees.objectives.logistic import Logistic
from geomx.learn.trees.objectives.pairs import pairs_of
from geomx.learn.trees.objectives.preference import Preference
from geomx.learn.trees.objectives.softmax import Softmax
from geomx.learn.trees.objectives.squared import Squared
from geomx.train.calls.run_calls import RunCalls

DEEPEST = 1 << 30


@dataclass(eq=False, repr=False)
class Boosted(BaseEstimator):  # type: ignore[misc]
    """Trees that are added up.

    Args:
        n_estimators: How many rounds; each makes a tree for every output.
        learning_rate: How much of each step is taken.
        max_leaves: Of a tree, at most.
        max_depth: Of a tree, at most; None: as deep as leaves allow.
        min_child_weight: The sum of second derivatives of a leaf, at least; with noise more.
        min_samples_leaf: Rows of a leaf, at least; see `Terms.least_rows`.
        max_bins: How many codes a feature has, at most 255.
        noise: Of histograms before they leave a worker, beside what one row moves; see `privacy.py`. It needs `bins`
            in `fit`, such as `Bins.even(...)`, and is for classes alone. 0: none.

    Attributes:
        bins_: What codes mean; give it to another `fit` to have the same.
        trees_: Of each round, one for each output.
        start_: The scores that rows begin with.
        privacy_: With noise, `privacy_.epsilon(delta)` tells what this fit has spent; several on the same rows add up.
    """

    reg_lambda, reg_alpha, gamma = 0.0, 0.0, 0.0
    _leafwise = True

    n_estimators: int = 100
    _: KW_ONLY
    learning_rate: float = 0.1
    max_leaves: int = 31
    max_depth: int | None = None
    min_child_weight: float = 1e-3
    min_samples_leaf: int = 20
    max_bins: int = 255
    noise: float = 0.0

    def _boost(
        self, over: Over, x: Floats, targets: npt.NDArray[Any], objective: Objective, bins: Bins | None
    ) -> None:
        begin(over, self, bins=bins)
        conceal = self._concealing(objective, bins)
        self.bins_ = binning.given(over, x, self.max_bins, bins)
        coded = self.bins_.codes(x)
        terms = self._terms(objective)
        self.start_ = np.zeros(objective.outputs) if self.noise else objective.start(over, targets)
        scores, rows = np.tile(self.start_, (len(x), 1)), sum(over.each(len(x)))
        self.trees_: list[list[Tree]] = []
        for _ in range(self.n_estimators):
            gradients, weights = objective.gradients(scores, targets)
            bounds = objective.bounds or tuple(
                over.most(float(np.abs(each).max(initial=0.0))) for each in (gradients, weights)
            )
            units = np.array([unit_for(bound) for bound in bounds])
            planted = []
            for output in range(objective.outputs):
                values = np.empty((len(x), 2), np.int32)
                values[:, 0] = whole(gradients[:, output], units[0])
                values[:, 1] = whole(weights[:, output], units[1])
                planted.append(Planted(values))
            made = grow(over, coded, self.bins_, planted, units, terms, rows, conceal)
            for output, (tree, leaves) in enumerate(made):
                column = scores[:, output]
                for leaf, own in leaves:
                    add_to_rows(column, own, self.learning_rate * float(tree.value[leaf, 0]))
            self.trees_.append([tree for tree, _ in made])

    def _terms(self, objective: Objective) -> Terms:
        """With noise, a leaf has to weigh more than twice the noise of its gradient, or cuts would follow the noise."""
        least = self.min_child_weight
        if self.noise and objective.bounds is not None:
            reach = reach_of(len(self.bins_.cuts)) * objective.bounds[0]
            least = max(least, 2.0 * self.privacy_.deviation(reach, 2) * self.bins_.count**0.5)
        depth = DEEPEST if self.max_depth is None else self.max_depth
        return Terms(
            self.max_leaves, depth, self.reg_lambda, self.reg_alpha, self.gamma, least, self.min_samples_leaf,
            least if self.noise else -np.inf, self._leafwise,
        )  # fmt: skip

    def _concealing(self, objective: Objective, bins: Bins | None) -> Conceal:
        if not self.noise:
            return list
        if bins is None or objective.bounds is None:
            raise ValueError(
                "noise: give bins that tell nothing of rows, as Bins.even(low, high, count) makes them; it is for "
                "classes alone, whose gradients have known bounds"
            )
        self.privacy_ = Noise(self.noise)
        most = np.array([whole(np.array(bound), unit_for(bound)) for bound in objective.bounds], np.int64)
        return partial(histograms_of, self.privacy_, bounds=most)

    def _scores(self, X: Any) -> Floats:  # noqa: N803
        """[rows, outputs]."""
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, reset=False, ensure_all_finite="allow-nan")
        scores = np.tile(self.start_, (len(x), 1))
        for trees in self.trees_:
            for output, tree in enumerate(trees):
                scores[:, output] += self.learning_rate * tree.value[tree.leaf_of(x), 0]
        return scores

    def _checked(self, X: Any, y: Any, numeric: bool) -> tuple[Floats, npt.NDArray[Any]]:  # noqa: N803
        found: tuple[Floats, npt.NDArray[Any]] = validate_data(
            self, X, y, dtype=np.float64, y_numeric=numeric, ensure_all_finite="allow-nan"
        )
        return found

    @property
    def feature_importances_(self) -> Floats:
        """The share of each feature in what all cuts have gained."""
        found = np.zeros(self.n_features_in_)
        for tree in (tree for trees in self.trees_ for tree in trees):
            inner = tree.feature >= 0
            np.add.at(found, tree.feature[inner], tree.gain[inner])
        shares: Floats = found / max(found.sum(), 1e-300)
        return shares

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class GBDTRegressor(RegressorMixin, Boosted):  # type: ignore[misc]
    """Numbers, by squared error. See `Boosted`."""

    def fit(self, X: Any, y: Any, run: RunCalls | None = None, bins: Bins | None = None) -> Self:  # noqa: N803
        """Train on the rows of all workers.

        Args:
            X: This worker's rows, of shape (rows, features); NaN where there is no value.
            y: Their targets.
            run: The run, in which every worker makes this call; None: these are all rows.
            bins: What codes mean; None: that is found from the rows of all.

        Returns:
            Itself, the same on all workers.

        Raises:
            Disagreement: Workers have different numbers of features.
            ValueError: What scikit-learn finds wrong with the rows.
        """
        x, targets = self._checked(X, y, numeric=True)
        self._boost(Over(run), x, targets.astype(np.float64), Squared(), bins)
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """A number for each row."""
        found: Floats = self._scores(X)[:, 0]
        return found


class GBDTClassifier(Probable, Boosted):
    """Classes, by logistic loss. See `Boosted`; `classes_` are the labels, in order."""

    def fit(self, X: Any, y: Any, run: RunCalls | None = None, bins: Bins | None = None) -> Self:  # noqa: N803
        """Train on the rows of all workers; see `GBDTRegressor.fit`."""
        over = Over(run)
        x, labels = self._checked(X, y, numeric=False)
        check_classification_targets(labels)
        self.classes_ = classes_of(over, labels)
        if len(self.classes_) < 2:
            raise ValueError(f"needs samples of at least 2 classes; found 1 class: {self.classes_[0]!r}")
        places = np.searchsorted(self.classes_, labels)
        objective: Objective = Logistic() if len(self.classes_) == 2 else Softmax(len(self.classes_))
        self._boost(over, x, places, objective, bins)
        return self


@dataclass(eq=False, repr=False)
class _Regularized(Boosted):
    """XGBoost's terms, and trees that grow level by level.

    Args:
        n_estimators: As of `Boosted`, and so are the others.
        reg_lambda: How much leaves' values are shrunk.
        reg_alpha: How much of a leaf's gradient counts as nothing.
        gamma: What a cut has to gain.
    """

    _leafwise = False

    _: KW_ONLY
    learning_rate: float = 0.3
    max_leaves: int = 64
    max_depth: int | None = 6
    min_child_weight: float = 1.0
    min_samples_leaf: int = 0
    reg_lambda: float = 1.0
    reg_alpha: float = 0.0
    gamma: float = 0.0


class XGBRegressor(_Regularized, GBDTRegressor):
    """Numbers, with XGBoost's terms."""


class XGBClassifier(_Regularized, GBDTClassifier):
    """Classes, with XGBoost's terms."""


class _Ranking(Boosted):
    """Scores by which, within a query, what is more relevant comes first. A query's rows lie with one worker."""

    def _objective(self, targets: npt.NDArray[Any], groups: npt.NDArray[Any]) -> Objective:
        raise NotImplementedError

    def fit(self, X: Any, y: Any, groups: Any, run: RunCalls | None = None, bins: Bins | None = None) -> Self:  # noqa: N803
        """Train on the queries of all workers; see `GBDTRegressor.fit`.

        Args:
            X: This worker's rows.
            y: How relevant each is: 0, 1, 2, ...
            groups: The query of each row.
            run: As there.
            bins: As there.

        Returns:
            Itself.

        Raises:
            ValueError: `groups` has another length than `y`.
        """
        x, targets = self._checked(X, y, numeric=True)
        queries = np.asarray(groups)
        if len(queries) != len(targets):
            raise ValueError(f"{len(queries)} groups for {len(targets)} rows")
        self._boost(Over(run), x, targets, self._objective(targets, queries), bins)
        return self

    def predict(self, X: Any) -> Floats:  # noqa: N803
        """A score for each row."""
        found: Floats = self._scores(X)[:, 0]
        return found


class LambdaMART(_Ranking):
    """Ranking by NDCG; see `objectives/lambdas.py` and `Boosted`."""

    def _objective(self, targets: npt.NDArray[Any], groups: npt.NDArray[Any]) -> Objective:
        return Lambdas(pairs_of(targets, groups), targets)


class GBRank(_Ranking):
    """Ranking by pairs that are to be apart by 1; see `objectives/preference.py` and `Boosted`."""

    def _objective(self, targets: npt.NDArray[Any], groups: npt.NDArray[Any]) -> Objective:
        return Preference(pairs_of(targets, groups), 1.0)
