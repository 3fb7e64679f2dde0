"""The filter of significant modifications (Li et al., OSDI 2014): small changes wait until they have added up."""

from __future__ import annotations

import torch

from geomx.errors import ConfigError, Fault
from geomx.tables.filters.contract import Filter, Mask
from geomx.tables.hashing import Keys


class Significant(Filter):
    """Holds back rows whose largest |number|, with what was held back before, is below a threshold.

    Args:
        threshold: The threshold in the first push.
        decay: By how much it falls: in push t it is threshold / (1 + t) ** decay. 0: it stays.
    """

    def __init__(self, *, threshold: float = 1e-3, decay: float = 0.0) -> None:
        if not threshold > 0.0:
            raise ConfigError(
                "filter significant", [Fault("threshold", f"{threshold:g}", "a number above 0")]
            )
        self._threshold, self._decay = threshold, decay

    def sends(self, keys: Keys, rows: torch.Tensor, clock: int) -> Mask:
        found: Mask = (rows.abs().amax(1) >= self._threshold / (1 + clock) ** self._decay).numpy()
        return found
