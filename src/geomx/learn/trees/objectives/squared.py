"""Squared error: L = (s - y)^2 / 2, so g = s - y and h = 1. Source: Friedman, Annals of Statistics 29 (2001)."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from geomx.learn.over import Floats, Over
from geomx.learn.trees.fixed import mean_of


class Squared:
    """See the module's text."""

    outputs = 1
    bounds: tuple[float, float] | None = None

    def start(self, over: Over, targets: npt.NDArray[Any]) -> Floats:
        """The mean; no residual is larger than the targets' spread, but for rows that a step overshoots."""
        mean, _ = mean_of(over, targets)
        self.bounds = 2.0 * over.most(float(np.abs(targets - mean).max(initial=0.0))), 1.0
        return np.array([mean])

    def gradients(self, scores: Floats, targets: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        return scores - targets[:, None], np.ones_like(scores)
