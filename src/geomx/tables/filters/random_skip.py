"""The random skip filter (Li et al., OSDI 2014): rows wait by chance, and are pushed with what comes later."""

from __future__ import annotations

import torch

from geomx.errors import ConfigError, Fault
from geomx.tables.filters.contract import Filter, Mask
from geomx.tables.hashing import Keys, hashed, uniform


class RandomSkip(Filter):
    """Holds back each row by chance, whatever is in it.

    Args:
        probability: Of being held back, from 0 to below 1.
    """

    def __init__(self, *, probability: float = 0.5) -> None:
        if not 0.0 <= probability < 1.0:
            allowed = "a number from 0, below 1"
            raise ConfigError("filter random-skip", [Fault("probability", f"{probability:g}", allowed)])
        self._probability = probability

    def sends(self, keys: Keys, rows: torch.Tensor, clock: int) -> Mask:
        found: Mask = uniform(hashed(keys, clock)) >= self._probability
        return found
