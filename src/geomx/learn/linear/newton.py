"""Newton's method on a sum over rows: what all workers' rows give is added up, and each takes the same step.

    w  <-  w - t H^-1 g,     g = R w + sum_i g_i(w),     H = R + sum_i H_i(w),     t = 1, 1/2, 1/4, ... as Armijo says

H only steers, so it travels in float32, one triangle of it, and is kept as long as g falls to a tenth with each step;
the minimum is where g is 0, in float64. What travels, up and down: the value and g, 1 + d numbers of 8 bytes for each
point that is tried; H, d (d + 1) / 2 numbers of 4 bytes, in some steps. They tell sums over all rows of a worker and no
row by itself, where it has more than d of them. Sources: Nocedal and Wright, Numerical Optimization (2006), chapter 3;
for piecewise quadratic losses Mangasarian, Optim. Methods Softw. 17 (2002).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from geomx.learn.over import Floats, Over

Curve = Callable[[], Floats]
Sums = Callable[[Floats], tuple[float, Floats, Curve]]
ENOUGH = 1e-4  # of the fall that the slope promises
FALLS = 0.1  # g, in each step with the same H
HALVES = 0.5  # g, where values are too near to each other to tell
MOST_HALVES = 30


def minimize(
    over: Over, sums: Sums, ridge: Floats, start: Floats, tolerance: float, iterations: int
) -> tuple[Floats, int]:
    """The minimum of sum_i f_i(w) + w R w / 2.

    Args:
        over: The workers.
        sums: Of w: the value and the gradient of this worker's rows, and what gives their Hessian.
        ridge: R, of shape (parameters, parameters); with what the rows say it determines all parameters.
        start: Where to begin, of shape (parameters,).
        tolerance: It ends where no element of the gradient is larger, or no step falls any more.
        iterations: At most so many.

    Returns:
        The parameters, and how many steps were taken.
    """

    def tried(w: Floats) -> tuple[float, Floats, Curve]:
        own, slope, curve = sums(w)
        value, gradient = over.total(np.atleast_1d(own), slope)
        shrinks = ridge @ w
        return float(value[0]) + 0.5 * float(w @ shrinks), gradient + shrinks, curve

    w, before = start, np.inf
    hessian: Floats | None = None
    value, gradient, curve = tried(w)
    for iteration in range(iterations):
        size = float(np.abs(gradient).max(initial=0.0))
        if size <= tolerance:
            return w, iteration
        is_fresh = False
        if hessian is None or size > FALLS * before:
            hessian, is_fresh = _of_all(over, curve()) + ridge, True
        before, length = size, 1.0
        step = np.linalg.solve(hessian, gradient)
        slope = float(gradient @ step)
        for _ in range(MOST_HALVES):
            there = w - length * step
            value_there, gradient_there, curve_there = tried(there)
            if value_there <= value - ENOUGH * length * slope:
                break
            if float(np.abs(gradient_there).max()) <= HALVES * size:
                break
            length /= 2
        else:
            if is_fresh:
                return w, iteration
            hessian = None
            continue
        w, value, gradient, curve = there, value_there, gradient_there, curve_there
    return w, iterations


def _of_all(over: Over, own: Floats) -> Floats:
    """The sum of symmetric matrices."""
    triangle = np.triu_indices(len(own))
    (upper,) = over.total(own[triangle].astype(np.float32))
    found = np.zeros(own.shape)
    found[triangle] = upper
    return found + np.triu(found, 1).T
