"""Jobs that change what belongs to a slice follow each other, slice by slice.

Where all workers move in step, a slice has one round at a time, and nothing ever waits here.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

Then = Callable[[Any], None]


class JobRunner(Protocol):
    """A node, as far as jobs go."""

    def run_job(
        self, function: Callable[[], Any], then: Then, cost_bytes: int, waits: bool = False
    ) -> None: ...


class SliceJobs:
    """One job of a slice at a time, in the order in which they came; `then` runs before the next begins."""

    def __init__(self, node: JobRunner) -> None:
        self._node = node
        self._waiting: dict[int, deque[tuple[Callable[[], Any], Then, int, bool]]] = {}

    def run(
        self, index: int, function: Callable[[], Any], then: Then, cost_bytes: int, waits: bool = False
    ) -> None:
        """As `run_job`, of slice `index`."""
        waiting = self._waiting.get(index)
        if waiting is None:
            self._waiting[index] = deque()
            self._begin(index, function, then, cost_bytes, waits)
        else:
            waiting.append((function, then, cost_bytes, waits))

    def after(self, index: int, then: Callable[[], None]) -> None:
        """Continue behind the jobs of slice `index` that have come before; at once where there are none."""
        if index in self._waiting:
            self.run(index, lambda: None, lambda _: then(), 0)
        else:
            then()

    def behind_all(self, then: Callable[[], None]) -> None:
        """Continue behind the jobs of all slices that have come before; at once where there are none."""
        left = set(self._waiting)

        def done(index: int) -> None:
            left.discard(index)
            if not left:
                then()

        for index in tuple(left):
            self.after(index, partial(done, index))
        if not left:
            then()

    def _begin(
        self, index: int, function: Callable[[], Any], then: Then, cost_bytes: int, waits: bool
    ) -> None:
        def done(result: Any) -> None:
            then(result)
            waiting = self._waiting[index]
            if waiting:
                self._begin(index, *waiting.popleft())
            else:
                del self._waiting[index]

        self._node.run_job(function, done, cost_bytes, waits)
