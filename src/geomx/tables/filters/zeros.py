"""Rows of zeros change nothing, and do not leave."""

from __future__ import annotations

import torch

from geomx.tables.filters.contract import Filter, Mask
from geomx.tables.hashing import Keys


class Zeros(Filter):
    """Drops rows in which every number is 0. No parameters."""

    keeps = False

    def sends(self, keys: Keys, rows: torch.Tensor, clock: int) -> Mask:
        found: Mask = (rows != 0).any(1).numpy()
        return found
