"""The contract of objectives."""

from __future__ import annotations

from typing import Any, Protocol

import numpy.typing as npt

from geomx.learn.over import Floats, Over


class Objective(Protocol):
    """A loss of scores [rows, outputs], that is a sum over rows or over queries of one worker.

    Attributes:
        outputs: How many scores a row has; each has trees of its own.
        bounds: Of |gradient| and of the weight, where they are known; None: they are asked for in each round.
    """

    @property
    def outputs(self) -> int: ...
    @property
    def bounds(self) -> tuple[float, float] | None: ...
    def start(self, over: Over, targets: npt.NDArray[Any]) -> Floats:
        """The scores that all rows begin with, [outputs]."""

    def gradients(self, scores: Floats, targets: npt.NDArray[Any]) -> tuple[Floats, Floats]:
        """By the scores: first derivatives, and second ones or what stands for them, [rows, outputs]."""
