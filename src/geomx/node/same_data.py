"""Two parties that train on the same samples, seen from the first shard: the trap of one data set and one seed.

Each worker tells digests of the samples that it begins with (`geomx.train.data.first_samples`), with their places. The
workers of a party take turns in one order of its data, so together they tell how that order begins. Where all that two
parties have told of the same places is the same, they have the same data, and each trains on all of it. One sample in
common would prove nothing: parties may share some, and a blank image is like any other.

Digests travel keyed by the run's secret: to whoever does not know it, what was written down says nothing. Whoever does,
a server as well, can try whether a sample that it has is among them.
"""

from __future__ import annotations

import hmac

import msgspec

from geomx.errors import ProtocolError, SameData
from geomx.node.peers.peer import Identity
from geomx.tree import Tree
from geomx.wire.messages import Sampled

DIGEST_BYTES = 8  # as they travel
MOST_SAMPLES = 8  # that a worker tells of; of so many, where there are, parties must agree to be suspected

Told = dict[int, bytes]  # by place in the order of a party's data: a sample's digest


def keyed(digests: Told, identity: Identity) -> Told:
    """Digests as they travel: HMAC-SHA256 (RFC 2104), cut short. All workers of a run have the same key."""
    run = identity.run, sorted(identity.manifest.items())

    def travelling(digest: bytes) -> bytes:
        said = msgspec.msgpack.encode(("sample", *run, digest))
        return hmac.digest(identity.secret, said, "sha256")[:DIGEST_BYTES]

    return {place: travelling(digest) for place, digest in digests.items()}


def check_sampled(message: Sampled) -> None:
    """Raise `ProtocolError` for what are no digests of first samples."""
    digests = message.digests
    if len(digests) > MOST_SAMPLES:
        raise ProtocolError(
            f"{message.worker} told of {len(digests)} samples, which are {MOST_SAMPLES} at most"
        )
    for place, digest in digests.items():
        if place < 0 or len(digest) != DIGEST_BYTES:
            raise ProtocolError(f"{message.worker} told a digest of {len(digest)} bytes of sample {place}")


class SameDataWatch:
    """See the module's text. `strict`: that two parties have the same data is an error."""

    def __init__(self, tree: Tree, strict: bool) -> None:
        self._tree, self._strict = tree, strict
        self._told: dict[str, Told] = {}  # by party
        self._workers: set[str] = set()  # whose word has come; started again, they tell once more
        self._is_advised = False

    def sampled(self, message: Sampled) -> str:
        """What is to be told to everybody, once; "" for nothing. Raises `SameData`."""
        check_sampled(message)
        if self._is_advised or message.worker in self._workers:
            return ""
        self._workers.add(message.worker)
        party = self._tree.cohort_at(message.worker, 1)
        mine = self._told[party] = self._told.get(party, {}) | message.digests
        others = (name for name, told in self._told.items() if name != party and are_same(told, mine))
        other = next(others, "")
        if not other:
            return ""
        self._is_advised = True
        one, two = sorted((other, party))
        text = (
            f"{one} and {two} train on the same samples: both parties read the same data set in the same "
            'order, so the second adds nothing. Share it over all workers with run.shard(loader, over="run"), or give '
            "each party data of its own"
        )
        if self._strict:
            raise SameData(text)
        return text


def are_same(one: Told, other: Told) -> bool:
    """Whether two parties begin with the same samples, and these are not all alike."""
    common = one.keys() & other.keys()
    enough = min(MOST_SAMPLES, len(one), len(other))
    are_alike = len({one[place] for place in common}) < 2
    return len(common) >= enough and not are_alike and all(one[place] == other[place] for place in common)
