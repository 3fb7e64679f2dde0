"""One hash of keys for all of this folder: SplitMix64's finaliser (Steele, Lea, Flood, OOPSLA 2014), on arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

Keys = npt.NDArray[np.int64]
Hashes = npt.NDArray[np.uint64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def hashed(keys: npt.NDArray[Any], seed: int = 0) -> Hashes:
    """64 bits of each integer, the same on every machine."""
    x = (keys.astype(np.uint64) + np.uint64(seed & (1 << 64) - 1) + np.uint64(1)) * _GOLDEN
    for shift, factor in ((30, _FIRST), (27, _SECOND)):
        x ^= x >> np.uint64(shift)
        x *= factor
    return x ^ (x >> np.uint64(31))


def uniform(hashes: Hashes) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1) of hashes: multiples of 2^-53."""
    return (hashes >> np.uint64(11)).astype(np.float64) * 2.0**-53
