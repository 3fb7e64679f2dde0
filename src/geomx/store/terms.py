"""Who may be a shard: of several processes one at a time, for as long as it renews its term.

A term is an object, `term-0000000007`. Whoever makes the next one holds it, and only one can. Its holder puts other
words there again and again. Who waits looks whether they change, for `lease_s` by its own clock: so clocks need not
agree. That nothing of a former holder counts any more does not hang on time: the log's fence sees to that.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Literal

from geomx.errors import Fenced
from geomx.store.contract import Store

TERM = "term-"
RELEASED, OVER = "released", "over"
State = Literal["none", "held", "free", "over"]


class Term:
    """One process's part. `name`: of what is held, such as `my-run/global.0`.

    `lease_s`: how long others wait for a holder that says nothing; 0: they do not wait.

    Attributes:
        number: Of the term that is held, or of the last that was seen; 0: there was none.
        incarnation: Of whoever holds it, greater than those of all before, whatever clocks say.
    """

    def __init__(
        self, store: Store, name: str, lease_s: float, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._store, self._name, self.lease_s, self._clock = store, name, lease_s, clock
        self.number = self.incarnation = 0
        self._said, self._since, self._renewed = "", clock(), 0

    def look(self) -> State:
        """How the newest term stands: there is none, it is held, it has run out, or the run is over."""
        newest = max(self._numbers(), default=0)
        said = (self._store.get(self._path(newest)) or b"").decode() if newest else ""
        if (newest, said) != (self.number, self._said):
            self.number, self._said, self._since = newest, said, self._clock()
        if not said:
            return "none"
        if said.endswith(OVER):
            return "over"
        is_out = said.endswith(RELEASED) or self._clock() - self._since >= self.lease_s
        return "free" if is_out else "held"

    def take(self) -> bool:
        """Hold the term behind the one that was seen last, unless another does by now."""
        self.incarnation = max(time.time_ns(), int(self._said.split()[0]) + 1 if self._said else 0)
        if not self._store.create(self._path(self.number + 1), [self._words("0")]):
            return False
        self.number += 1
        self._store.delete([self._path(number) for number in self._numbers() if number < self.number])
        return True

    def renew(self) -> None:
        """Hold it for longer. Raises `Fenced` where another process holds one, and `StoreError`."""
        if max(self._numbers(), default=0) > self.number:
            raise Fenced(f"store: another process is {self._name}: this one was taken for dead, and ends")
        self._renewed += 1
        self._store.put(self._path(self.number), [self._words(f"{self._renewed}")])

    def release(self, is_over: bool) -> None:
        """Let another hold one at once; or, where the run has ended, nobody. Raises `StoreError`."""
        self._store.put(self._path(self.number), [self._words(OVER if is_over else RELEASED)])

    def _words(self, what: str) -> bytes:
        return f"{self.incarnation} {what}".encode()

    def _numbers(self) -> list[int]:
        return [int(name.rpartition("-")[2]) for name in self._store.list(f"{self._name}/{TERM}")]

    def _path(self, number: int) -> str:
        return f"{self._name}/{TERM}{number:010}"
