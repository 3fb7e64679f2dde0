"""The order in which pieces leave: the most urgent load first (P3), within a load the lowest class."""

from __future__ import annotations

from collections import deque
from heapq import heappop, heappush
from typing import Generic, Protocol, TypeVar

Lane = tuple[int, int, int]  # priority, load and class


class Queued(Protocol):
    """What can wait in a lane."""

    @property
    def key(self) -> Lane: ...


Item = TypeVar("Item", bound=Queued)


class LaneQueues(Generic[Item]):
    """What waits to be sent, in lanes. True: something does."""

    def __init__(self) -> None:
        self._lanes: dict[Lane, deque[Item]] = {}  # none of them is empty
        self._order: list[Lane] = []  # a heap of their keys

    def __bool__(self) -> bool:
        return bool(self._order)

    def put(self, item: Item, first: bool = False) -> None:
        """Put an item behind those of its lane, or before them."""
        lane = self._lanes.get(item.key)
        if lane is None:
            lane = self._lanes[item.key] = deque()
            heappush(self._order, item.key)
        if first:
            lane.appendleft(item)
        else:
            lane.append(item)

    def pop(self) -> Item:
        """Take the next item out."""
        lane = self._lanes[self._order[0]]
        item = lane.popleft()
        if not lane:
            del self._lanes[heappop(self._order)]
        return item

    def clear(self) -> None:
        """Drop everything."""
        self._lanes.clear()
        self._order.clear()
