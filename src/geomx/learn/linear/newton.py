"""Newton's method on a sum over rows: what all workers' rows give is added up, and each takes the same step.

    w  <-  w - t H^-1 g,     g = R w + sum_i g_i(w),     H = R + sum_i H_i(w),     t = 1, 1/2, 1/4, ... as Armijo says

What travels, once an iteration and up and down: the value, g and H, of (1 + d + d^2) numbers, which tell sums over all
rows of a worker and no row by itself, where it has more than d of them. Source: Nocedal and Wright, Numerical
Optimization (2006), chapter 3; for piecewise quadratic losses Mangasarian, Optim. Methods Softw. 17 (2002).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from geomx.learn.over import Floats, Over

Sums = Callable[[Floats], tuple[float, Floats, Floats]]
ENOUGH = 1e-4  # of the fall that the slope promises
MOST_HALVES = 30


def minimize(
    over: Over, sums: Sums, ridge: Floats, start: Floats, tolerance: float, iterations: int
) -> tuple[Floats, int]:
    """The minimum of sum_i f_i(w) + w R w / 2.

    Args:
        over: The workers.
        sums: Of w: the value, the gradient and the Hessian of this worker's rows.
        ridge: R, of shape (parameters, parameters); with what the rows say it determines all parameters.
        start: Where to begin, of shape (parameters,).
        tolerance: It ends where no element of the gradient is larger, or no step falls any more.
        iterations: At most so many.

    Returns:
        The parameters, and how many steps were taken.
    """
    w = start
    value, gradient, hessian = _all(over, sums, ridge, w)
    for iteration in range(iterations):
        if np.abs(gradient).max(initial=0.0) <= tolerance:
            return w, iteration
        step = np.linalg.solve(hessian, gradient)
        slope, length = float(gradient @ step), 1.0
        for _ in range(MOST_HALVES):
            there = w - length * step
            value_there, gradient_there, hessian_there = _all(over, sums, ridge, there)
            if value_there <= value - ENOUGH * length * slope:
                break
            length /= 2
        else:
            return w, iteration
        w, value, gradient, hessian = there, value_there, gradient_there, hessian_there
    return w, iterations


def _all(over: Over, sums: Sums, ridge: Floats, w: Floats) -> tuple[float, Floats, Floats]:
    """Of all rows."""
    own, *others = sums(w)
    value, gradient, hessian = over.total(np.atleast_1d(own), *others)
    shrinks = ridge @ w
    return float(value[0]) + 0.5 * float(w @ shrinks), gradient + shrinks, hessian + ridge
