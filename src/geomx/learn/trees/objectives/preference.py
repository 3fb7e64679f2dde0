"""GBRank: pairs that are not apart by tau in the right order are pulled apart.

    L = sum_{y_i > y_j} max(0, tau - (s_i - s_j))^2 / 2

A tree is a Newton step of this loss, row by row, where Zheng et al. fit one to targets that are exchanged.

Source: Zheng, Chen, Sun and Zha, SIGIR 2007 and NIPS 2007.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from geomx.learn.over import Floats, Over
from geomx.learn.trees.objectives.pairs import Pairs


class Preference:
    """See the module's text. `pairs`: of this worker's rows; `tau`: by how much they are to be apart."""

    outputs = 1
    bounds = None

    def __init__(self, pairs: Pairs, tau: float) -> None:
        self._pairs, self._tau = pairs, tau

    def start(self, over: Over, targets: npt.NDArray[Any]) -> Floats:
        return np.zeros(1)

    def gradients(self, scores: Floats, targets: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        more, less, _ = self._pairs
        flat = scores[:, 0]
        short = np.maximum(0.0, self._tau - (flat[more] - flat[less]))
        at, count = (short > 0.0).astype(np.float64), len(flat)
        gradient = np.bincount(less, short, count) - np.bincount(more, short, count)
        hessian = np.bincount(less, at, count) + np.bincount(more, at, count)
        return np.asarray(gradient[:, None], np.float64), np.asarray(hessian[:, None], np.float64)
