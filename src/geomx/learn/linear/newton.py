"""Newton's method on a sum over rows: what all workers' rows give is added up, and the first worker chooses the steps.

    w  <-  w - t H^-1 g,     g = R w + sum_i g_i(w),     H = R + sum_i H_i(w),     t = 1, 1/2, 1/4, ... as Armijo says

H only steers, so it travels in float32, one triangle of it, and is kept as long as g falls to a tenth with each step;
the minimum is where g is 0, in float64. Where that steers badly, as with features far from 0, H travels in float64.
Linear algebra rounds differently on different processors: so the first worker tells the others each point, and they
have its bits. What travels: d numbers of 8 bytes down for each point that is tried; the value and g of it, 1 + d
numbers up and down; H, d (d + 1) / 2 numbers of 4 or 8 bytes, in some steps. They tell sums over all rows of a worker
and no row by itself, where it has more than d of them. Sources: Nocedal and Wright, Numerical Optimization (2006),
chapter 3; for piecewise quadratic losses Mangasarian, Optim. Methods Softw. 17 (2002).
"""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from scipy import linalg
from sklearn.exceptions import ConvergenceWarning

from geomx.learn.over import Floats, Over

Curve = Callable[[], Floats]
Sums = Callable[[Floats], tuple[float, Floats, Curve]]
ENOUGH = 1e-4  # of the fall that the slope promises
FALLS = 0.1  # g, in each step with the same H
HALVES = 0.5  # g, where values are too near to each other to tell
MOST_HALVES, MOST_RIDGES = 10, 16
DONE, TRY, CURVE, EXACT_CURVE = 0.0, 1.0, 2.0, 3.0  # what the first worker asks for
ENOUGH_STEPS = 15  # with an H in float32
NEARLY = 1e-6  # of g at first, where no step falls any more


def minimize(
    over: Over, sums: Sums, ridge: Floats, start: Floats, tolerance: float, iterations: int
) -> tuple[Floats, int]:
    """The minimum of sum_i f_i(w) + w R w / 2.

    Args:
        over: The workers.
        sums: Of w: the value and the gradient of this worker's rows, and what gives their Hessian.
        ridge: R, of shape (parameters, parameters); with what the rows say it determines all parameters.
        start: Where to begin, of shape (parameters,).
        tolerance: It ends where no element of the gradient is larger than this share of the largest at first, or of 1;
            or no step falls any more.
        iterations: At most so many; scikit-learn's `ConvergenceWarning` tells where they were too few.

    Returns:
        The parameters, the same bits on all workers, and how many steps were taken.
    """
    asks = _Asks(over, sums, ridge)
    w, steps, is_found = _led(asks, start, tolerance, iterations) if over.is_first else asks.follow(start)
    if not is_found:
        warnings.warn(f"{steps} steps: raise max_iter, or scale features", ConvergenceWarning, stacklevel=3)
    return w, steps


def _led(asks: _Asks, start: Floats, tolerance: float, iterations: int) -> tuple[Floats, int, bool]:
    w, before = start, np.inf
    hessian: Floats | None = None
    is_exact = False
    value, gradient = asks.tried(w)
    most = max(1.0, float(np.abs(gradient).max(initial=0.0)))
    enough = tolerance * most
    for iteration in range(iterations):
        size = float(np.abs(gradient).max(initial=0.0))
        if size <= enough:
            return asks.done(w, iteration, is_found=True)
        is_fresh = False
        if hessian is None or size > FALLS * before:
            is_exact = is_exact or iteration > ENOUGH_STEPS
            hessian, is_fresh = asks.curve(is_exact), True
        before, length = size, 1.0
        step = _solved(hessian, gradient)
        slope = float(gradient @ step)
        for _ in range(MOST_HALVES):
            there = w - length * step
            value_there, gradient_there = asks.tried(there)
            falls = value_there <= value - ENOUGH * length * slope
            if falls or float(np.abs(gradient_there).max()) <= HALVES * size:
                break
            length /= 2
        else:
            if is_fresh and is_exact:  # nothing falls any more: values are as exact as they can be
                return asks.done(w, iteration, is_found=size <= NEARLY * most)
            hessian, is_exact = None, is_exact or is_fresh
            asks.tried(w)  # where the next curve is to be
            continue
        if is_fresh and value_there == value and size <= float(np.abs(gradient_there).max()):
            if is_exact or size <= NEARLY * most:
                return asks.done(w, iteration, is_found=size <= NEARLY * most)
            hessian, is_exact = None, True
        w, value, gradient = there, value_there, gradient_there
    return asks.done(w, iterations, is_found=False)


def _solved(hessian: Floats, gradient: Floats) -> Floats:
    """H^-1 g; where H is not positive, as rounding leaves it, with as much added to it as it takes."""
    if not np.isfinite(hessian).all():
        return gradient
    ridge = np.zeros(len(gradient))
    for times in range(MOST_RIDGES):
        try:
            factor = linalg.cho_factor(hessian + np.diag(ridge))
        except linalg.LinAlgError:
            ridge = np.abs(np.diag(hessian)) * 10.0 ** (times - MOST_RIDGES)
            continue
        found: Floats = linalg.cho_solve(factor, gradient)
        return found
    return gradient / np.maximum(np.abs(np.diag(hessian)), 1e-300)


class _Asks:
    """What the first worker asks of all, and what the others do with it."""

    def __init__(self, over: Over, sums: Sums, ridge: Floats) -> None:
        self._over, self._sums, self._ridge = over, sums, ridge
        self._curve: Curve

    def tried(self, w: Floats) -> tuple[float, Floats]:
        """The value and the gradient at a point."""
        self._over.firsts(np.concatenate([[TRY], w]))
        value, gradient = self._all(w)
        shrinks = self._ridge @ w
        return float(value[0]) + 0.5 * float(w @ shrinks), gradient + shrinks

    def curve(self, is_exact: bool) -> Floats:
        """The Hessian at the point that was tried last."""
        self._over.firsts(np.concatenate([[EXACT_CURVE if is_exact else CURVE], np.zeros(len(self._ridge))]))
        return self._curved(is_exact) + self._ridge

    def done(self, w: Floats, steps: int, is_found: bool) -> tuple[Floats, int, bool]:
        self._over.firsts(np.concatenate([[DONE], w]))
        self._over.firsts(np.array([float(steps), float(is_found)]))
        return w, steps, is_found

    def follow(self, start: Floats) -> tuple[Floats, int, bool]:
        """Do what the first worker asks for."""
        while True:
            told = self._over.firsts(np.concatenate([[DONE], np.zeros(len(start))]))
            if told[0] == TRY:
                self._all(told[1:])
            elif told[0] in (CURVE, EXACT_CURVE):
                self._curved(is_exact=told[0] == EXACT_CURVE)
            else:
                steps, is_found = self._over.firsts(np.zeros(2))
                return told[1:], int(steps), bool(is_found)

    def _all(self, w: Floats) -> list[Floats]:
        own, slope, self._curve = self._sums(w)
        found: list[Floats] = self._over.total(np.atleast_1d(own), slope)
        return found

    def _curved(self, is_exact: bool) -> Floats:
        own = self._curve()
        triangle = np.triu_indices(len(own))
        with np.errstate(over="ignore"):
            (upper,) = self._over.total(own[triangle].astype(np.float64 if is_exact else np.float32))
        found = np.zeros(own.shape)
        found[triangle] = upper
        return found + np.triu(found, 1).T
