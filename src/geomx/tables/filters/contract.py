"""What a filter of pushes is, and what those share that hold rows back for later."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import numpy.typing as npt
import torch

from geomx.tables.hashing import Keys
from geomx.tables.rows import KeyPlaces

Mask = npt.NDArray[np.bool_]


class Filter(ABC):
    """Decides which rows of a push leave.

    Attributes:
        keeps: Whether rows that do not leave are added to what is pushed of them later; else they are dropped.
    """

    keeps = True

    @abstractmethod
    def sends(self, keys: Keys, rows: torch.Tensor, clock: int) -> Mask:
        """Which rows leave.

        Args:
            keys: Different keys, of shape (keys,).
            rows: What is to be pushed, with what was held back of it: of shape (keys, columns).
            clock: The number of the push.

        Returns:
            Of shape (keys,): whether each row leaves.
        """


class HeldBack:
    """What one filter has held back of a table, by key."""

    def __init__(self, columns: int) -> None:
        self._places = KeyPlaces()
        self._rows = torch.zeros(0, columns)

    def add_to(self, keys: Keys, rows: torch.Tensor) -> torch.Tensor:
        """Rows with what was held back of them, which then is held back no more."""
        places = self._places.find(keys)
        known = np.flatnonzero(places >= 0)
        if not len(known):
            return rows
        total, at = rows.clone(), torch.from_numpy(places[known])
        total[torch.from_numpy(known)] += self._rows[at]
        self._rows[at] = 0.0
        return total

    def hold(self, keys: Keys, rows: torch.Tensor) -> None:
        """Hold these back."""
        places = torch.from_numpy(self._places.touch(keys))
        if self._places.count > len(self._rows):
            longer = torch.zeros(2 * self._places.count, self._rows.shape[1])
            longer[: len(self._rows)] = self._rows
            self._rows = longer
        self._rows[places] = rows

    def all(self) -> tuple[Keys, torch.Tensor]:
        """All that is held back, which then is no more."""
        keys = self._places.all()
        some = self._rows[: len(keys)].abs().amax(1) > 0
        kept = keys[some.numpy()], self._rows[: len(keys)][some]
        self._places, self._rows = KeyPlaces(), self._rows[:0]
        order = np.argsort(kept[0])
        return kept[0][order], kept[1][torch.from_numpy(order)]
