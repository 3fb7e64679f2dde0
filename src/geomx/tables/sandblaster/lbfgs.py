"""L-BFGS whose vectors lie elsewhere: a coordinator that sends small operations, and gets sums of products.

    x      the point;   g: the gradient there;   s.i, y.i: the last steps, and what the gradient has moved by in each
    d      the direction: from all products of g, s.i and y.i, factors by which these are added up

So an iteration takes the same few messages however long the vectors are. Sources: Liu and Nocedal, Mathematical
Programming 45 (1989); all products at once: Chen, Wang and Zhou, NIPS 2014; what it does first, and when it ends, as
scipy's L-BFGS-B without bounds.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass

from geomx.tables.sandblaster.line_search import LONGEST, LineSearch
from geomx.tables.sandblaster.vectors import Op

EPSILON = 2.220446049250313e-16
MOST_TRIES = 20


@dataclass(frozen=True)
class Evaluate:
    """Have the sum of all portions at `x` made, and its gradient into `into`. Answered with the value."""

    into: str


@dataclass(frozen=True)
class Do:
    """Do operations on vectors. Answered with what `dot` and `largest` give."""

    ops: tuple[Op, ...]


@dataclass(frozen=True)
class Outcome:
    """What it has come to. `why` it has ended, `converged`: at a minimum; `evaluations`: how often all were summed."""

    value: float
    iterations: int
    evaluations: int
    why: str
    values: tuple[float, ...]  # behind each iteration, the start's first
    converged: bool = False


Asks = Generator["Evaluate | Do", "tuple[float, ...]", Outcome]


def minimize(history: int, iterations: int, gradient_tolerance: float, value_tolerance: float) -> Asks:
    """From `x` as it is. Yields what is to be done, and is sent the answers."""
    pairs: list[int] = []  # the numbers of the steps that are remembered, the oldest first
    products = _Products()
    (value,) = yield Evaluate("g")
    values, evaluations = [value], 1
    (largest, product) = yield Do((Op("largest", of=("g",)), Op("dot", of=("g", "g"))))
    products.put("g", "g", product)
    for iteration in range(iterations):
        if largest <= gradient_tolerance:
            return Outcome(value, iteration, evaluations, "the gradient is small", tuple(values), True)
        factors = _direction(products, pairs)
        yield Do((Op("set", "d", tuple(factors), tuple(factors.values())), Op("set", "x0", ("x",), (1.0,)),
                  Op("set", "g0", ("g",), (1.0,))))  # fmt: skip
        slope, length = yield Do((Op("dot", of=("d", "g")), Op("dot", of=("d", "d"))))
        if slope >= 0.0:
            return Outcome(value, iteration, evaluations, "no direction falls", tuple(values))
        search = LineSearch(value, slope, 1.0 if iteration else min(1.0 / math.sqrt(length), LONGEST))
        before = value
        for _ in range(MOST_TRIES):
            yield Do((Op("set", "x", ("x0", "d"), (1.0, search.step)),))
            (value,) = yield Evaluate("g")
            evaluations += 1
            (slope_there,) = yield Do((Op("dot", of=("d", "g")),))
            search.told(value, slope_there)
            if search.is_done:
                break
        if not (search.is_done or value < before):
            yield Do((Op("set", "x", ("x0",), (1.0,)),))
            why = "no point on the way is lower: see that the gradient is that of the value"
            return Outcome(before, iteration, evaluations, why, tuple(values))
        values.append(value)
        number = iteration
        if len(pairs) == history:
            gone = pairs.pop(0)
            yield Do((Op("forget", f"s.{gone}"), Op("forget", f"y.{gone}")))
        s, y = f"s.{number}", f"y.{number}"
        names = [f"{kind}.{each}" for each in [*pairs, number] for kind in "sy"]
        told = yield Do((
            Op("set", s, ("d",), (search.step,)),
            Op("set", y, ("g", "g0"), (1.0, -1.0)),
            Op("largest", of=("g",)),
            *(Op("dot", of=(each, other)) for each, other in _new(names, s, y)),
        ))  # fmt: skip
        largest = told[0]
        for (each, other), product in zip(_new(names, s, y), told[1:], strict=True):
            products.put(each, other, product)
        if products.of(s, y) <= EPSILON * -slope * search.step:
            yield Do((Op("forget", s), Op("forget", y)))
        else:
            pairs.append(number)
        if before - value <= value_tolerance * max(abs(before), abs(value), 1.0):
            return Outcome(value, iteration + 1, evaluations, "the value falls no more", tuple(values), True)
    return Outcome(value, iterations, evaluations, f"{iterations} iterations are over", tuple(values))


def _new(names: Sequence[str], s: str, y: str) -> list[tuple[str, str]]:
    """The products that a new step brings."""
    return [("g", each) for each in ["g", *names]] + [(new, each) for new in (s, y) for each in names]


class _Products:
    """Products of vectors, by their names."""

    def __init__(self) -> None:
        self._of: dict[tuple[str, str], float] = {}

    def put(self, one: str, other: str, product: float) -> None:
        self._of[one, other] = self._of[other, one] = product

    def of(self, one: str, other: str) -> float:
        return self._of[one, other]


def _direction(products: _Products, pairs: Sequence[int]) -> dict[str, float]:
    """-H g by the two loops, as factors of g, s.i and y.i."""
    factors = {"g": 1.0} | {f"{kind}.{each}": 0.0 for each in pairs for kind in "sy"}

    def times(name: str) -> float:
        return sum(factor * products.of(each, name) for each, factor in factors.items())

    alphas = {}
    for each in reversed(pairs):
        s, y = f"s.{each}", f"y.{each}"
        alphas[each] = times(s) / products.of(s, y)
        factors[y] -= alphas[each]
    if pairs:
        s, y = f"s.{pairs[-1]}", f"y.{pairs[-1]}"
        scale = products.of(s, y) / products.of(y, y)
        factors = {name: scale * factor for name, factor in factors.items()}
    for each in pairs:
        s, y = f"s.{each}", f"y.{each}"
        factors[s] += alphas[each] - times(y) / products.of(s, y)
    return {name: -factor for name, factor in factors.items()}
