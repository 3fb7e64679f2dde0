"""From scores to classes: one score tells two classes apart, of more each has its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, softmax
from sklearn.base import ClassifierMixin

from geomx.learn.over import Floats


class Scored(ClassifierMixin):  # type: ignore[misc]
    """`classes_`: the labels, in order; `_scores(X)`: [rows, 1] of two, [rows, classes] of more."""

    classes_: npt.NDArray[Any]
    _scores: Callable[[Any], Floats]

    def decision_function(self, X: Any) -> Floats:  # noqa: N803
        """Scores: of shape (rows,) of two classes, (rows, classes) of more."""
        scores = self._scores(X)
        return scores[:, 0] if scores.shape[1] == 1 else scores

    def predict(self, X: Any) -> npt.NDArray[Any]:  # noqa: N803
        """The class of each row with the largest score."""
        scores = self._scores(X)
        places = (scores[:, 0] > 0).astype(np.int64) if scores.shape[1] == 1 else scores.argmax(axis=1)
        found: npt.NDArray[Any] = self.classes_[places]
        return found


class Probable(Scored):
    """Scores are logarithms of odds."""

    def predict_proba(self, X: Any) -> Floats:  # noqa: N803
        """Probabilities of the classes, of shape (rows, classes)."""
        scores = self._scores(X)
        if scores.shape[1] == 1:
            one = expit(scores[:, 0])
            return np.stack([1.0 - one, one], axis=1)
        found: Floats = softmax(scores, axis=1)
        return found
