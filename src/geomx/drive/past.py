"""What a shard has decided, repeated from its log, without a network or a clock: `geomx replay`.

The log has the state of two moments, and all contributions between them and since. A shard that is given the earlier
one, and the contributions, decides again; at the later moment it must have what was written then, bit for bit.
"""

from __future__ import annotations

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import accumulate, pairwise

import torch

from geomx.errors import GeomxError
from geomx.node.contract import Node, Restored
from geomx.node.durable.cut import Cutting
from geomx.node.durable.records import ClosedRound, CutState, Promised, encode, read, tensor_of
from geomx.node.durable.state import Packed
from geomx.node.server import Server
from geomx.store.contract import StoreError
from geomx.store.log import Log

Records = Iterable[tuple[bytes, memoryview]]


@dataclass(frozen=True)
class Repeated:
    """A turn. `digest`: SHA-256 of all that the shard has behind it: weights, optimizer, what its edges hold back."""

    cohort: str
    turn: int
    kind: str
    workers: tuple[str, ...]
    weight: float
    digest: str


@dataclass
class Found:
    """What came of it.

    `compared`: how many turns there are between the two moments. `differ`: slices that were not as they were written;
    None: there was nothing to compare.
    """

    turns: list[Repeated] = field(default_factory=list)
    compared: int = 0
    differ: list[int] | None = None


def repeat(node: Node, log: Log, first: int = 0, last: int = 1 << 62) -> Found:
    """Repeat what is in a shard's log.

    Args:
        node: The shard, just made.
        log: Only read.
        first: Turns before this are repeated as well, and not listed.
        last: Nor are turns behind this.

    Raises:
        StoreError: There is no log, or it is torn.
    """
    past, found = log.past(), Found()
    assert isinstance(node, Server)
    assert node.log.cutting is not None  # it is a shard of a run with a store
    turns = _Turns(node, node.log.cutting, range(first, last + 1), found)

    def records() -> Iterator[tuple[bytes, torch.Tensor]]:
        yield from turns.watched(past.before)
        if past.cut:
            found.differ, found.compared = turns.unlike(past.cut), turns.closed
        yield from turns.watched(past.behind)

    node.handle(Restored(records()), 0.0)
    if turns.count == 0:
        raise StoreError(f"store: there is no log of {node.name}: the run has not begun, or has ended well")
    return found


class _Turns:
    """Lists the turns of a shard as they are decided."""

    def __init__(self, node: Server, cutting: Cutting, window: range, found: Found) -> None:
        self._node, self._cutting, self._window, self._found = node, cutting, window, found
        self._closed: dict[tuple[str, int], dict[int, float]] = defaultdict(dict)  # weights, by slice
        self._promised: dict[tuple[int, str, int], ClosedRound] = {}
        self.count = self.closed = 0  # of records, and of turns

    def watched(self, records: Records) -> Iterator[tuple[bytes, torch.Tensor]]:
        """The same records; by when the next is asked for, one was decided."""
        for header, payload in records:
            self.count += 1
            yield header, tensor_of(payload)
            record = read(header)
            if isinstance(record, Promised):
                self._promised[record.round.slice, record.round.cohort, record.round.turn] = record.round
            elif isinstance(record, ClosedRound):
                self._decided(record)

    def _decided(self, record: ClosedRound) -> None:
        node, key = self._node, (record.cohort, record.turn)
        trained = {slice_.index for slice_ in node.mine if slice_.role in ("weight", "ledger")}
        promised = self._promised.pop((record.slice, *key), record)
        given = (record if record.contributions is not None else promised).contributions or ()
        self._closed[key][record.slice] = sum(each.push.weight for each in given)
        if not self._closed[key].keys() >= trained or record.slice not in trained:
            return
        weights = self._closed.pop(key)
        self.closed += 1
        if record.turn in self._window:
            workers = tuple(sorted({name for each in given for name in each.push.origins}))
            digest = hashlib.sha256()
            for each in self._state():
                digest.update(encode(each.head))
                for piece in each.pieces:
                    digest.update(piece.numpy().tobytes())
            self._found.turns.append(
                Repeated(*key, record.kind, workers, weights[min(weights)], digest.hexdigest())
            )

    def unlike(self, cut: Records) -> list[int]:
        """Slices that are not as a cut has them."""
        state, payload = next(
            (read(header), payload) for header, payload in cut if isinstance(read(header), CutState)
        )
        assert isinstance(state, CutState)
        ends = list(accumulate((sum(head.pieces) for head in state.slices), initial=0))
        wrote = {
            head.index: (head, bytes(payload[start:end]))
            for head, (start, end) in zip(state.slices, pairwise(ends), strict=True)
        }
        here = {
            each.head.index: (each.head, b"".join(piece.numpy().tobytes() for piece in each.pieces))
            for each in self._state()
        }
        return sorted(index for index in wrote.keys() | here.keys() if wrote.get(index) != here.get(index))

    def _state(self) -> list[Packed]:
        found: list[Packed] = []
        self._cutting.pack(found.extend)
        if not found:
            raise GeomxError("the log stops in the middle of a slice")
        return found
