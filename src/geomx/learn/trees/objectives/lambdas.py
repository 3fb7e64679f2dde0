"""LambdaMART: pairs count by how much the NDCG would change if the two were exchanged.

    lambda_ij = |delta NDCG_ij| rho_ij,     rho_ij = 1 / (1 + e^{s_i - s_j})
    g_i -= lambda_ij,  g_j += lambda_ij,  h_i and h_j += lambda_ij (1 - rho_ij)

Source: Burges, MSR-TR-2010-82.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import expit

from geomx.learn.over import Floats, Over
from geomx.learn.trees.objectives.pairs import Pairs, gains, ideal_gain, ranks


class Lambdas:
    """See the module's text. `pairs`: of this worker's rows."""

    outputs = 1
    bounds = None

    def __init__(self, pairs: Pairs, targets: npt.NDArray[Any]) -> None:
        self._pairs, self._gains = pairs, gains(targets)
        ideal = ideal_gain(targets, pairs.query)
        self._scale = 1.0 / np.maximum(ideal, 1e-12)[pairs.query[pairs.more]]

    def start(self, over: Over, targets: npt.NDArray[Any]) -> Floats:
        return np.zeros(1)

    def gradients(self, scores: Floats, targets: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        more, less, query = self._pairs
        flat = scores[:, 0]
        discount = 1.0 / np.log2(ranks(flat, query) + 2.0)
        change = (
            np.abs((self._gains[more] - self._gains[less]) * (discount[more] - discount[less])) * self._scale
        )
        rho = expit(flat[less] - flat[more])
        pull, weight = change * rho, change * rho * (1.0 - rho)
        count = len(flat)
        gradient = np.bincount(less, pull, count) - np.bincount(more, pull, count)
        hessian = np.bincount(less, weight, count) + np.bincount(more, weight, count)
        return np.asarray(gradient[:, None], np.float64), np.asarray(hessian[:, None], np.float64)
