"""Which server has a row: consistent hashing.

Every shard has `POINTS` points on a ring of 64 bits, its virtual nodes; a key belongs to the shard of the first point
at or behind its hash. So shards have about equally much, whichever keys are used (within some percent), and where one
is added or removed, only rows that come to it or leave it move. Source: Karger et al., STOC 1997; Li et al., OSDI 2014.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from geomx.tables.hashing import Keys, hashed

POINTS = 1024


class Ring:
    """The ring of some shards, by name: who else is there changes no point of theirs."""

    def __init__(self, shards: Sequence[str], points: int = POINTS) -> None:
        at = np.concatenate([_points_of(shard, points) for shard in shards])
        order = np.argsort(at, kind="stable")
        self._at, self._of = at[order], np.repeat(np.arange(len(shards)), points)[order]
        self._is_one = len(shards) == 1

    def shards_of(self, keys: Keys) -> npt.NDArray[np.int64]:
        """The place of each key's shard among those that were given."""
        if self._is_one:
            return np.zeros(len(keys), np.int64)
        found = np.searchsorted(self._at, hashed(keys))
        return self._of[found % len(self._at)]


def _points_of(shard: str, points: int) -> npt.NDArray[np.uint64]:
    digests = (hashlib.blake2b(f"{shard} {i}".encode(), digest_size=8).digest() for i in range(points))
    return np.frombuffer(b"".join(digests), "<u8").astype(np.uint64)
