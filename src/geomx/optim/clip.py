"""`clip_norm`: the factor that bounds the global norm of the mean gradient, over all slices.

    scale = min(1, clip_norm / (sqrt(Σ_slices Σ m²) + 1e-6))

Squares are float64, and those of slices are added in slice order, so that one shard and two, and workers that clip by
themselves, find the same factor bit for bit. Source: torch.nn.utils.clip_grad_norm_.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch


def square_sum(mean: torch.Tensor) -> float:
    """Σ m² of one slice's mean gradient (flat or rows, of any floating dtype), in float64."""
    mean = mean.coalesce().values() if mean.is_sparse else mean
    return float(mean.to(torch.float64, copy=True).square_().sum())


def total(squares: Mapping[int, float]) -> float:
    """The sum over slices; `squares`: by slice, in any order."""
    square = 0.0
    for index in sorted(squares):
        square += squares[index]
    return square


def scale_of(clip_norm: float, square: float) -> float:
    """What every mean is multiplied with; `square`: the total."""
    return min(1.0, clip_norm / (math.sqrt(square) + 1e-6))
