"""Moré and Thuente's line search, step by step: a step at which a function has fallen enough, and is flat enough.

Source: Moré and Thuente, ACM TOMS 20 (1994), in the form of MINPACK-2's `dcsrch`, with the parameters of L-BFGS-B.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

FALLS, FLATTENS, NARROW = 1e-3, 0.9, 0.1  # ftol, gtol and xtol
LONGEST = 1e10
SHRINKS, LEAST_GROWTH, MOST_GROWTH = 0.66, 1.1, 4.0


@dataclass
class _End:
    """An end of the interval: a step, the function there, and its slope."""

    step: float
    value: float
    slope: float


class LineSearch:
    """From `value` and `slope` at 0. `step` is the one to try next; `is_done`: it is the one to take."""

    def __init__(self, value: float, slope: float, step: float) -> None:
        self._value, self._slope = value, slope
        self.step, self.is_done = step, False
        self._best, self._other = _End(0.0, value, slope), _End(0.0, value, slope)
        self._is_bracketed, self._is_first_stage = False, True
        self._width, self._width_before = LONGEST, 2 * LONGEST
        self._least, self._most = 0.0, step + MOST_GROWTH * step

    def told(self, value: float, slope: float) -> None:
        """The function and its slope at `step`."""
        wanted = self._value + self.step * FALLS * self._slope
        if self._is_first_stage and value <= wanted and slope >= 0.0:
            self._is_first_stage = False
        if self._is_stuck(value <= wanted, slope) or (
            value <= wanted and abs(slope) <= FLATTENS * -self._slope
        ):
            self.is_done = True
            return
        if self._is_first_stage and wanted < value <= self._best.value:
            self._narrow_modified(value, slope)
        else:
            self._narrow(_End(self.step, value, slope))
        if self._is_bracketed:
            if abs(self._other.step - self._best.step) >= SHRINKS * self._width_before:
                self.step = self._best.step + 0.5 * (self._other.step - self._best.step)
            self._width_before = self._width
            self._width = abs(self._other.step - self._best.step)
            self._least = min(self._best.step, self._other.step)
            self._most = max(self._best.step, self._other.step)
        else:
            self._least = self.step + LEAST_GROWTH * (self.step - self._best.step)
            self._most = self.step + MOST_GROWTH * (self.step - self._best.step)
        self.step = min(max(self.step, 0.0), LONGEST)
        is_outside = self.step <= self._least or self.step >= self._most
        if self._is_bracketed and (is_outside or self._most - self._least <= NARROW * self._most):
            self.step = self._best.step

    def _is_stuck(self, has_fallen: bool, slope: float) -> bool:
        """Whether no better step can be found: the interval is as narrow as it gets, or its end is reached."""
        is_outside = self.step <= self._least or self.step >= self._most
        if self._is_bracketed and (is_outside or self._most - self._least <= NARROW * self._most):
            return True
        return (self.step == LONGEST and has_fallen and slope <= FALLS * self._slope) or self.step == 0.0

    def _narrow_modified(self, value: float, slope: float) -> None:
        """By the function less what it has to fall: the first steps look for where that is negative."""
        falls = FALLS * self._slope

        def less(end: _End) -> _End:
            return _End(end.step, end.value - end.step * falls, end.slope - falls)

        def more(end: _End) -> _End:
            return _End(end.step, end.value + end.step * falls, end.slope + falls)

        self._best, self._other = less(self._best), less(self._other)
        self._narrow(less(_End(self.step, value, slope)))
        self._best, self._other = more(self._best), more(self._other)

    def _narrow(self, tried: _End) -> None:
        """A better interval, and the next step within it: `dcstep`."""
        best, other = self._best, self._other
        has_turned = tried.slope * math.copysign(1.0, best.slope) < 0.0
        step = self._next(tried, best, other, has_turned)
        if tried.value > best.value:
            self._other = tried
        else:
            if has_turned:
                self._other = best
            self._best = tried
        self.step = step

    def _next(self, tried: _End, best: _End, other: _End, has_turned: bool) -> float:
        is_right = tried.step > best.step
        if tried.value > best.value:  # a minimum lies between
            self._is_bracketed = True
            root = _root(best, tried)
            root = root if is_right else -root
            theta = _theta(best, tried)
            share = (root - best.slope + theta) / (root - best.slope + root + tried.slope)
            cubic = best.step + share * (tried.step - best.step)
            fall = (best.value - tried.value) / (tried.step - best.step) + best.slope
            quadratic = best.step + best.slope / fall / 2.0 * (tried.step - best.step)
            if abs(cubic - best.step) < abs(quadratic - best.step):
                return cubic
            return cubic + (quadratic - cubic) / 2.0
        if has_turned:  # likewise, since the slope has another sign
            self._is_bracketed = True
            cubic = tried.step + _share(tried, best, is_right) * (best.step - tried.step)
            quadratic = tried.step + tried.slope / (tried.slope - best.slope) * (best.step - tried.step)
            return cubic if abs(cubic - tried.step) > abs(quadratic - tried.step) else quadratic
        if abs(tried.slope) < abs(best.slope):
            return self._flatter(tried, best, other, is_right)
        if self._is_bracketed:
            return tried.step + _share(tried, other, tried.step > other.step) * (other.step - tried.step)
        return self._most if is_right else self._least

    def _flatter(self, tried: _End, best: _End, other: _End, is_right: bool) -> float:
        """The slope is less steep: the cubic may have no minimum, or have it behind."""
        theta, root = _theta(best, tried), _root(best, tried)
        root = -root if is_right else root
        share = (root - tried.slope + theta) / (root + (best.slope - tried.slope) + root)
        if share < 0.0 and root != 0.0:
            cubic = tried.step + share * (best.step - tried.step)
        else:
            cubic = self._most if is_right else self._least
        quadratic = tried.step + tried.slope / (tried.slope - best.slope) * (best.step - tried.step)
        is_nearer = abs(cubic - tried.step) < abs(quadratic - tried.step)
        if not self._is_bracketed:
            return min(max(quadratic if is_nearer else cubic, self._least), self._most)
        step = cubic if is_nearer else quadratic
        bound = tried.step + SHRINKS * (other.step - tried.step)
        return min(bound, step) if is_right else max(bound, step)


def _theta(one: _End, other: _End) -> float:
    """Of the cubic through two ends, with their slopes."""
    return 3.0 * (one.value - other.value) / (other.step - one.step) + one.slope + other.slope


def _root(one: _End, other: _End) -> float:
    """The root of its discriminant, which rounding may make negative."""
    theta = _theta(one, other)
    scale = max(abs(theta), abs(one.slope), abs(other.slope))
    if scale == 0.0:
        return 0.0
    return scale * math.sqrt(max(0.0, (theta / scale) ** 2 - one.slope / scale * (other.slope / scale)))


def _share(tried: _End, other: _End, is_right: bool) -> float:
    """Where the cubic's minimum lies between `tried` (0) and `other` (1)."""
    root = -_root(other, tried) if is_right else _root(other, tried)
    theta = _theta(other, tried)
    return (root - tried.slope + theta) / (root - tried.slope + root + other.slope)
