"""Key caching: a digest in place of keys that were sent before (Li et al., OSDI 2014).

Both ends remember the last `MOST_LISTS` lists that a worker has named, in the order in which it has named them, so the
worker knows what its shard still has. What is asked again, since its answer was lost, names lists that are young.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict

from geomx.errors import ProtocolError
from geomx.tables.hashing import Keys

MOST_LISTS = 64
DIGEST_BYTES = 16


def digest_of(keys: Keys) -> bytes:
    """What stands for a list of keys."""
    return hashlib.blake2b(keys.tobytes(), digest_size=DIGEST_BYTES).digest()


class SentLists:
    """A worker's end: which lists a shard has."""

    def __init__(self) -> None:
        self._lists: OrderedDict[bytes, None] = OrderedDict()

    def name(self, digest: bytes) -> bool:
        """A request names this list: whether its keys have to go with it."""
        is_new = digest not in self._lists
        self._lists[digest] = None
        _used(self._lists, digest)
        return is_new


class CameLists:
    """A shard's end, of one worker."""

    def __init__(self) -> None:
        self._lists: OrderedDict[bytes, Keys] = OrderedDict()

    def named(self, digest: bytes, keys: Keys | None) -> Keys:
        """The keys of a list; `keys`: as they came with it. Raises `ProtocolError` where there are none."""
        if keys is not None:
            self._lists[digest] = keys
        elif digest not in self._lists:
            raise ProtocolError(f"a list of keys {digest.hex()} that was not sent")
        _used(self._lists, digest)
        return self._lists[digest]


def _used(
    lists: OrderedDict[bytes, object] | OrderedDict[bytes, None] | OrderedDict[bytes, Keys], digest: bytes
) -> None:
    lists.move_to_end(digest)
    if len(lists) > MOST_LISTS:
        lists.popitem(last=False)
