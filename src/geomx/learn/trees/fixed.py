"""Gradients as whole numbers, so that sums of them are the same in whatever order they are added.

    whole = round(x / unit),    unit = 2^e: the smallest power of two with which |x| <= BOUND is at most 2^20

What is rounded off is 2^-21 of the bound at most. A sum of 2^32 rows fits into 64 bits, and that of a few thousand
travels in four bytes.
"""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt

from geomx.learn.over import Floats, Over

BITS = 20


def unit_for(bound: float) -> float:
    """The unit of numbers that are no larger than a bound."""
    if not bound > 0.0:
        return 1.0
    share, exponent = math.frexp(bound)  # exact on every machine, as a logarithm is not
    return math.ldexp(1.0, exponent - (share == 0.5) - BITS)


def whole(values: Floats, unit: float) -> npt.NDArray[np.int32]:
    """In units; what is out of bounds counts as the bound."""
    most = 1 << BITS
    return np.clip(np.rint(values * (1.0 / unit)), -most, most).astype(np.int32)


def mean_of(over: Over, values: Floats) -> tuple[float, float]:
    """The mean of all workers' numbers, the same bits wherever they lie, and how far from 0 the largest is."""
    bound = over.most(float(np.abs(values).max(initial=0.0)))
    unit = unit_for(bound)
    total, rows = over.total(
        np.array([np.rint(values * (1.0 / unit)).astype(np.int64).sum()]), np.array([len(values)], np.int64)
    )
    return float(total[0]) * unit / max(int(rows[0]), 1), bound
