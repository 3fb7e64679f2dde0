"""Whether the workers of a party that reduce among themselves leave their training loop behind the same step.

A worker that leaves alone may leave the others in a collective call, where they neither hear nor say anything. So a
worker that leaves makes no such call: it writes down its step in the store of the process group, and looks there for
the steps of the others. The first worker that knows, or has waited long enough, writes down the verdict for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from geomx.node.port import Port

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

TOGETHER = "together"
VERDICT = "verdict"


@dataclass(frozen=True, slots=True)
class Leaving:
    """See the module's text. `names`: the party's workers, by rank; `rank`: this one; `within_s` bounds each wait."""

    store: Store
    names: Sequence[str]
    rank: int
    port: Port
    within_s: float

    def behind(self, step: int) -> str:
        """Leave behind `step`. Returns why not all leave together, the same on each worker; "" where they do.

        Raises RuntimeError where the store cannot be reached.
        """
        self.store.set(_leaves(self.rank), str(step))
        self._wait(lambda: self.store.check([VERDICT]) or not self._without(_leaves))
        verdict = self.store.compare_set(VERDICT, "", self._verdict()).decode()
        with suppress(RuntimeError):  # whoever has the store may have ended by now
            self.store.set(_knows(self.rank), "yes")
            if self.rank == 0:  # which may have the store, so it ends last
                self._wait(lambda: set(self._without(_knows)) <= set(self._without(_leaves)))
        return "" if verdict == TOGETHER else verdict

    def _wait(self, ready: Callable[[], bool]) -> None:
        ends = time.monotonic() + self.within_s
        others = " and ".join(name for rank, name in enumerate(self.names) if rank != self.rank)
        self.port.wait(
            lambda: ready() or time.monotonic() >= ends,
            lambda: f"{others} to leave the training loop after the same step",
            on_run=False,
        )

    def _without(self, key: Callable[[int], str]) -> list[str]:
        """Who has not written down this key."""
        return [name for rank, name in enumerate(self.names) if not self.store.check([key(rank)])]

    def _verdict(self) -> str:
        if absent := self._without(_leaves):
            return f"{' and '.join(absent)} did not leave the loop within {self.within_s:g} s"
        steps = [self.store.get(_leaves(rank)).decode() for rank in range(len(self.names))]
        if len(set(steps)) == 1:
            return TOGETHER
        left = (f"{name} after step {step}" for name, step in zip(self.names, steps, strict=True))
        return f"the workers left the loop at different steps ({', '.join(left)})"


def _leaves(rank: int) -> str:
    return f"{rank} leaves"


def _knows(rank: int) -> str:
    return f"{rank} knows"
