"""FTRL-proximal on a table: logistic regression whose weights lie on the global servers, most of them at zero.

    p = 1 / (1 + e^{-w x}),     g = (p - y) x,     w <- as `geomx.tables.rules.FTRL` says, for the features of a batch

Of more than two classes, each has a column of weights, and p is softmax(w x).

A batch's pushes are applied together, so the weights are one machine's, to rounding. What travels: of the features that
a worker's part of a batch has, their numbers and weights down, sums of their gradients up; they tell which features
there are, and of a feature that one row has, that row's label. Source: McMahan et al., KDD 2013.
"""

from __future__ import annotations

import itertools
from typing import Any, Self

import numpy as np
import torch
from scipy import sparse
from scipy.special import expit, softmax
from sklearn.base import BaseEstimator
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from geomx.learn.agreement import begin
from geomx.learn.batches import batches
from geomx.learn.classes import Probable
from geomx.learn.over import Floats, Over, classes_of
from geomx.tables.rules import FTRL


class _Own:
    """A table of one machine."""

    def __init__(self, rows: int, columns: int, rule: FTRL) -> None:
        self._rule = rule
        self._rows = torch.zeros(rows, columns)
        self._state = {name: torch.full((rows, columns), begins) for name, begins in rule.state.items()}

    def pull(self, keys: Any) -> torch.Tensor:
        return self._rows[torch.from_numpy(keys)]

    def push(self, keys: Any, gradients: torch.Tensor) -> None:
        at = torch.from_numpy(keys)
        rows, state = self._rows[at], {name: each[at] for name, each in self._state.items()}
        self._rule.step(rows, state, gradients)
        self._rows[at] = rows
        for name, each in self._state.items():
            each[at] = state[name]

    def sync(self) -> None:
        pass


class FTRLClassifier(Probable, BaseEstimator):  # type: ignore[misc]
    """See the module's text.

    Args:
        alpha: The learning rate of each weight.
        beta: How slowly it falls at first.
        l1: What keeps weights at zero.
        l2: What keeps them small.
        epochs: How often all rows are gone through.
        batch_size: Rows of all workers in a step.
        random_state: The seed of the batches, the same on all workers.
        table: The name of the run's table; where there is one of this name, a number is added.

    Attributes:
        classes_: The labels, in order.
        coef_: Of shape (1, features) of two classes, (classes, features) of more.
        intercept_: Of shape (1,) or (classes,).
    """

    def __init__(
        self,
        *,
        alpha: float = 0.1,
        beta: float = 1.0,
        l1: float = 0.0,
        l2: float = 0.0,
        epochs: int = 1,
        batch_size: int = 8,
        random_state: int = 0,
        table: str = "ftrl",
    ) -> None:
        self.alpha, self.beta, self.l1, self.l2, self.epochs = alpha, beta, l1, l2, epochs
        self.batch_size, self.random_state, self.table = batch_size, random_state, table

    def fit(self, X: Any, y: Any, run: Any = None) -> Self:  # noqa: N803
        """Train on the rows of all workers.

        Args:
            X: This worker's rows, of shape (rows, features), also sparse.
            y: Their labels.
            run: The run, in which every worker makes this call; None: these are all rows.

        Returns:
            Itself, the same on all workers.

        Raises:
            Disagreement: Workers have different numbers of features.
            ValueError: There is one class alone, or what scikit-learn finds wrong with the rows.
        """
        over = Over(run)
        x, labels = validate_data(self, X, y, dtype=np.float64, accept_sparse="csr")
        check_classification_targets(labels)
        features = x.shape[1]
        begin(over, self)
        self.classes_ = classes_of(over, labels)
        if len(self.classes_) < 2:
            raise ValueError(f"needs samples of at least 2 classes; found 1 class: {self.classes_[0]!r}")
        outputs = 1 if len(self.classes_) == 2 else len(self.classes_)
        how = {"alpha": self.alpha, "beta": self.beta, "l1": self.l1, "l2": self.l2}
        rule = " ".join(["ftrl", *(f"{name}={value!r}" for name, value in how.items())])
        table: Any = _Own(features + 1, outputs, FTRL(**how)) if run is None else None
        if run is not None:
            table = run.table(_free(run, self.table), features + 1, outputs, rule=rule)
        rows = sparse.hstack([sparse.csr_matrix(x), np.ones((x.shape[0], 1))], format="csr")
        targets = (labels[:, None] == self.classes_[-outputs:]).astype(np.float64)
        for batch in batches(run, x.shape[0], self.batch_size, self.epochs, self.random_state):
            some = rows[batch.rows]
            keys = np.unique(some.indices).astype(np.int64)
            own = some[:, keys]
            scores = own @ table.pull(keys).double().numpy()
            chances = expit(scores) if outputs == 1 else softmax(scores, axis=1)
            table.push(keys, torch.from_numpy(own.T @ (chances - targets[batch.rows])).float())
        table.sync()
        weights = table.pull(np.arange(features + 1)).double().numpy().T
        self.coef_, self.intercept_ = weights[:, :-1], weights[:, -1]
        return self

    def _scores(self, X: Any) -> Floats:  # noqa: N803
        check_is_fitted(self)
        x = validate_data(self, X, dtype=np.float64, accept_sparse="csr", reset=False)
        scores: Floats = x @ self.coef_.T + self.intercept_
        return scores

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags


def _free(run: Any, name: str) -> str:
    """A name that no table of this run has yet; all workers open the same ones."""
    names = (name if number == 0 else f"{name}-{number}" for number in itertools.count())
    return next(each for each in names if not run.has_table(each))
