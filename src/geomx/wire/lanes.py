"""P3: the order in which messages leave, one lane for each priority, emptied by chunks.

Priority-based parameter propagation (Jayarajan et al., MLSys 2019): what the next forward needs first overtakes the
rest. Slices are cut in `geomx.layout`, their priorities are given in `geomx.node.uplink`.

Rules
1. A lower priority number is more urgent; the next chunk is always of the most urgent message there is.
2. Within one priority, messages leave in the order in which they were put, each one whole.
3. A message that was overtaken goes on later, where it stopped.
4. A chunk is one frame (see `frames`) of at most `chunk_bytes` of payload, and the header where it is the first.

Theory of operation

A chunk, once handed out, can no longer be overtaken. So the caller takes one only when the link can carry it, and
`chunk_bytes` says how long something urgent may have to wait: 64 KiB are 5 ms of a link of 100 Mbit/s. Payloads
are never copied: a chunk is a prefix (with its header) in bytes, and a view of the payload.
"""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush

from geomx.wire.frames import PREFIX, PRIORITY_LIMIT
from geomx.wire.messages import encode_head, payload_size
from geomx.wire.roster_messages import Message

Chunk = tuple[bytes] | tuple[bytes, memoryview]
"""What to write for one frame, in this order."""

_NOTHING = memoryview(b"")


class _Queued:
    """A message of which not everything has left."""

    __slots__ = ("head", "number", "offset", "payload")

    def __init__(self, number: int, head: bytes, payload: memoryview) -> None:
        self.number = number
        self.head = head  # empty as soon as it has left
        self.payload = payload
        self.offset = 0


class Lanes:
    """What one connection has still to send; see the module's rules."""

    __slots__ = ("_chunk_bytes", "_lanes", "_order", "_queued_bytes")

    def __init__(self, chunk_bytes: int) -> None:
        if chunk_bytes < 1:
            raise ValueError(f"chunk_bytes is {chunk_bytes}; a chunk has at least one byte")
        self._chunk_bytes = chunk_bytes
        self._lanes: dict[int, deque[_Queued]] = {}  # none of them is empty
        self._order: list[int] = []  # a heap of the keys of _lanes
        self._queued_bytes = 0

    @property
    def queued_bytes(self) -> int:
        """Header and payload bytes that have not left, without prefixes."""
        return self._queued_bytes

    @property
    def most_urgent(self) -> int | None:
        """The priority of the next chunk; None where nothing is queued."""
        return self._order[0] if self._order else None

    def waiting(self, priority: int) -> int:
        """How many messages of this priority have not left whole."""
        return len(self._lanes.get(priority, ()))

    def put(self, number: int, message: Message, payload: memoryview | None, priority: int) -> None:
        """Queue a message. `payload`: `payload_size(message)` bytes that will not change, or None for none.

        Priorities beyond 0 and 65,535 join the first and the last lane. Raises ValueError where payload or
        header has a size that cannot be sent.
        """
        view = _NOTHING if payload is None else payload
        if len(view) != payload_size(message):
            raise ValueError(
                f"{type(message).__name__} says {payload_size(message)} payload bytes, but has {len(view)}"
            )
        head = encode_head(message)
        priority = min(max(priority, 0), PRIORITY_LIMIT)
        lane = self._lanes.get(priority)
        if lane is None:
            lane = self._lanes[priority] = deque()
            heappush(self._order, priority)
        lane.append(_Queued(number, head, view))
        self._queued_bytes += len(head) + len(view)

    def next_chunk(self) -> Chunk | None:
        """Take the next frame; None where nothing is queued."""
        if not self._order:
            return None
        priority = self._order[0]
        lane = self._lanes[priority]
        queued = lane[0]
        head, payload, start = queued.head, queued.payload, queued.offset
        stop = min(start + self._chunk_bytes, len(payload))
        size = len(head) + stop - start
        first = PREFIX.pack(queued.number, size, len(head), priority) + head
        self._queued_bytes -= size
        if stop == len(payload):
            lane.popleft()
            if not lane:
                del self._lanes[priority]
                heappop(self._order)
        else:
            queued.head, queued.offset = b"", stop
        return (first, payload[start:stop]) if stop > start else (first,)

    def clear(self, keep: int = -1) -> None:
        """Drop what is queued, all but the priorities up to `keep`."""
        self._lanes = {priority: lane for priority, lane in self._lanes.items() if priority <= keep}
        self._order = sorted(self._lanes)
        self._queued_bytes = sum(
            len(queued.head) + len(queued.payload) - queued.offset
            for lane in self._lanes.values()
            for queued in lane
        )
