"""Keys on their way: their gaps in few bits, and a digest in place of those that were sent before.

Both ends remember the last `MOST_LISTS` lists that a worker has sent, in the order in which it has sent them, so the
worker knows what its shard still has. What is asked again, since its answer was lost, names lists that are young.
Source of the cache: Li et al., OSDI 2014.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

import numpy as np
import torch

from geomx.codecs.pack import indices
from geomx.errors import ProtocolError
from geomx.tables.hashing import Keys

MOST_LISTS = 64
DIGEST_BYTES = 16
SPARSEST = 1 << 28  # rows to a key: keys that lie further apart travel as they are


def digest_of(keys: Keys) -> bytes:
    """What stands for a list of keys."""
    return hashlib.blake2b(keys.tobytes(), digest_size=DIGEST_BYTES).digest()


def coded(keys: Keys, rows: int) -> dict[str, torch.Tensor]:
    """Keys that rise, below `rows`, as arrays of a request."""
    if not len(keys) or rows // len(keys) > SPARSEST:
        return {"keys": torch.from_numpy(keys)}
    given = torch.from_numpy(keys)
    rice, unary = indices.choose(given, rows)
    packed = indices.pack_indices(given, rows, rice, unary)
    return {"keys": torch.tensor([len(keys), rice, unary]), "gaps": packed}


def decoded(arrays: dict[str, torch.Tensor], rows: int) -> Keys | None:
    """The inverse, which takes them out; None where there are none. Raises `ProtocolError`."""
    keys, gaps = arrays.pop("keys", None), arrays.pop("gaps", None)
    if keys is None:
        return None
    if keys.dtype != torch.int64 or keys.dim() != 1:
        raise ProtocolError(f"keys of {keys.dtype} and shape {list(keys.shape)}")
    if gaps is None:
        found: Keys = keys.numpy().copy()
        if len(found) and not (found[0] >= 0 and found[-1] < rows and bool((np.diff(found) > 0).all())):
            raise ProtocolError(f"keys that do not rise, or lie outside of 0 to {rows - 1}")
        return found
    if len(keys) != 3 or gaps.dtype != torch.uint8:
        raise ProtocolError(f"gaps of keys with a head of {len(keys)}, as {gaps.dtype}")
    count, rice, unary = (int(each) for each in keys)
    if min(count, rice, unary) < 0 or gaps.numel() != indices.size_bytes(count, rows, rice, unary):
        raise ProtocolError(f"{gaps.numel()} bytes of gaps between {count} keys")
    made: Keys = indices.unpack_indices(gaps.reshape(-1), count, rows, rice, unary).numpy()
    return made


class SentLists:
    """A worker's end: which lists a shard has."""

    def __init__(self) -> None:
        self._lists: OrderedDict[bytes, None] = OrderedDict()

    def name(self, digest: bytes) -> bool:
        """A request names this list: whether its keys have to go with it."""
        if digest in self._lists:
            return False
        self._lists[digest] = None
        if len(self._lists) > MOST_LISTS:
            self._lists.popitem(last=False)
        return True


class CameLists:
    """A shard's end, of one worker. `lists`: in the order in which they came."""

    def __init__(self) -> None:
        self.lists: OrderedDict[bytes, Keys] = OrderedDict()

    def named(self, digest: bytes, keys: Keys | None) -> Keys:
        """The keys of a list; `keys`: as they came with it. Raises `ProtocolError` where there are none."""
        if digest not in self.lists:
            if keys is None:
                raise ProtocolError(f"a list of keys {digest.hex()} that was not sent")
            self.lists[digest] = keys
            if len(self.lists) > MOST_LISTS:
                self.lists.popitem(last=False)
        return self.lists[digest]
