"""Several classes: L = log sum_k e^{s_k} - s_y, so g_k = p_k - [y = k] and h_k = K / (K - 1) p_k (1 - p_k).

Source: Friedman, Annals of Statistics 29 (2001).
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax

from geomx.learn.over import Floats, Over


class Softmax:
    """See the module's text. Targets are 0 to `outputs` - 1."""

    def __init__(self, outputs: int) -> None:
        self.outputs = outputs
        self.bounds: tuple[float, float] | None = (1.0, outputs / (outputs - 1) / 4)

    def start(self, over: Over, targets: npt.NDArray[Any]) -> Floats:
        """The logarithms of the classes' shares."""
        (counts,) = over.total(np.bincount(targets, minlength=self.outputs).astype(np.int64))
        found: Floats = np.log(np.maximum(counts, 1) / counts.sum())
        return found

    def gradients(self, scores: Floats, targets: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        chances = softmax(scores, axis=1)
        gradients = chances.copy()
        gradients[np.arange(len(targets)), targets] -= 1.0
        return gradients, self.outputs / (self.outputs - 1) * chances * (1.0 - chances)
