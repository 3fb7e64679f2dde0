"""Two parties that train on the same samples, seen from the first shard: the trap of one data set and one seed.

Each worker tells a digest of the sample that it begins with (`geomx.train.data.first_sample`). The workers of a party
take turns in one order of its data, so the first of them begins with the first sample of that order: where two parties
begin with the same one, they have the same data, and each trains on all of it.
"""

from __future__ import annotations

from geomx.errors import ProtocolError, SameData
from geomx.sync.contract import cohort_of
from geomx.wire.messages import Sampled

DIGEST_BYTES = 16


def check_sampled(message: Sampled) -> None:
    """Raise `ProtocolError` for what is no digest."""
    if len(message.digest) != DIGEST_BYTES:
        raise ProtocolError(f"{message.worker} told a digest of {len(message.digest)} bytes")


class SameDataWatch:
    """See the module's text. `strict`: that two parties have the same data is an error."""

    def __init__(self, strict: bool) -> None:
        self._strict = strict
        self._begins: dict[str, bytes] = {}  # by worker: what it has told first
        self._is_told = False

    def sampled(self, message: Sampled) -> str:
        """What is to be told to everybody, once; "" for nothing. Raises `SameData`."""
        check_sampled(message)
        mine, party = (
            self._begins.setdefault(message.worker, message.digest),
            cohort_of(message.worker, "party"),
        )
        others = (
            name for name, told in self._begins.items() if told == mine and cohort_of(name, "party") != party
        )
        other = next(others, "")
        if self._is_told or not other:
            return ""
        self._is_told = True
        one, two = sorted((other, message.worker))
        text = (
            f"{one} and {two} train on the same samples: both parties read the same data set in the same "
            'order, so the second adds nothing. Share it over all workers with run.shard(loader, over="run"), or give '
            "each party data of its own"
        )
        if self._strict:
            raise SameData(text)
        return text
