"""What a row begins with: a function of its key, the same on every shard and whenever it is first touched."""

from __future__ import annotations

from abc import ABC, abstractmethod

import numpy as np
import torch

from geomx.tables.hashing import Hashes, Keys, hashed, uniform


class Init(ABC):
    """Makes rows.

    Args:
        seed: The run's, and the table's.
    """

    def __init__(self, seed: int) -> None:
        self._seed = seed

    @abstractmethod
    def rows(self, keys: Keys, columns: int) -> torch.Tensor:
        """The rows of some keys.

        Args:
            keys: Different keys, of shape (keys,).
            columns: How many numbers a row has.

        Returns:
            float32 of shape (keys, columns).
        """

    def hashes(self, keys: Keys, columns: int, draw: int = 0) -> Hashes:
        """64 random bits for each number, of shape (keys, columns); others for another `draw`."""
        each = hashed(keys, self._seed + draw)[:, None] + np.arange(columns, dtype=np.uint64)[None]
        return hashed(each)


class Zeros(Init):
    """Zeros. No parameters."""

    def rows(self, keys: Keys, columns: int) -> torch.Tensor:
        return torch.zeros(len(keys), columns)


class Uniform(Init):
    """Uniform between two numbers.

    Args:
        seed: As of `Init`.
        low: The least.
        high: What all are below.
    """

    def __init__(self, seed: int, *, low: float = -0.05, high: float = 0.05) -> None:
        super().__init__(seed)
        self._low, self._high = low, high

    def rows(self, keys: Keys, columns: int) -> torch.Tensor:
        found = self._low + (self._high - self._low) * uniform(self.hashes(keys, columns))
        return torch.from_numpy(found.astype(np.float32))


class Normal(Init):
    """Normal, by Box and Muller's transform.

    Args:
        seed: As of `Init`.
        std: The standard deviation.
    """

    def __init__(self, seed: int, *, std: float = 0.01) -> None:
        super().__init__(seed)
        self._std = std

    def rows(self, keys: Keys, columns: int) -> torch.Tensor:
        radius = np.sqrt(-2.0 * np.log1p(-uniform(self.hashes(keys, columns))))
        found = self._std * radius * np.cos(2.0 * np.pi * uniform(self.hashes(keys, columns, 1)))
        return torch.from_numpy(found.astype(np.float32))
