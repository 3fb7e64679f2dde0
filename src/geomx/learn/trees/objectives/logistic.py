"""Two classes: L = log(1 + e^s) - y s, so g = p - y and h = p (1 - p), with p = 1 / (1 + e^-s).

Source: Friedman, Hastie and Tibshirani, Annals of Statistics 28 (2000).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit, logit

from geomx.learn.over import Floats, Over


class Logistic:
    """See the module's text. Targets are 0 and 1."""

    outputs = 1
    bounds = (1.0, 0.25)

    def start(self, over: Over, targets: npt.NDArray[Any]) -> Floats:
        """The logarithm of the odds."""
        ones, rows = over.total(np.array([int(targets.sum())]), np.array([len(targets)]))
        return np.array([logit(int(ones[0]) / int(rows[0]))])

    def gradients(self, scores: Floats, targets: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        chances = expit(scores)
        return chances - targets[:, None], chances * (1.0 - chances)
