"""A store in memory, and a node's log in it: what was not written when its process dies may be there, or not.

The log itself is the real one, `geomx.store.log`. It is written once the time is over that a write takes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Protocol

import torch

from geomx.errors import Fenced
from geomx.node.contract import Cut, CutStored, Event, Failed, Mark, Persist, Persisted, Restored
from geomx.node.durable.records import tensor_of
from geomx.store.contract import Bytes, StoreError
from geomx.store.log import Log


class MemoryStore:
    """See `geomx.store.contract.Store`."""

    def __init__(self) -> None:
        self._contents: dict[str, bytes] = {}

    def put(self, name: str, content: Sequence[Bytes]) -> None:
        """See `Store`."""
        self._contents[name] = b"".join(content)

    def create(self, name: str, content: Sequence[Bytes]) -> bool:
        """See `Store`."""
        is_new = name not in self._contents
        if is_new:
            self.put(name, content)
        return is_new

    def get(self, name: str) -> bytes | None:
        """See `Store`."""
        return self._contents.get(name)

    def list(self, start: str) -> list[str]:
        """See `Store`."""
        return sorted(name for name in self._contents if name.startswith(start))

    def delete(self, names: Sequence[str]) -> None:
        """See `Store`."""
        for name in names:
            self._contents.pop(name, None)

    def sweep(self, start: str) -> None:
        """See `Store`. What was not put whole is nowhere."""


CHECK_EVERY_S = 0.5


class SimulatedHost(Protocol):
    """The node whose log it is."""

    @property
    def stopped(self) -> bool: ...


class SimulatedLog:
    """One process's hold of a log. `plan(delay_s, action)`, `deliver(event)`: the simulator, to that node.

    `latency_s`: what a write takes, at most; a cut takes ten times as long.
    """

    def __init__(
        self,
        log: Log,
        latency_s: float,
        chance: Random,
        host: SimulatedHost,
        plan: Callable[[float, Callable[[], None]], None],
        deliver: Callable[[Event], None],
    ) -> None:
        self._log, self._latency_s, self._chance, self._host = log, latency_s, chance, host
        self._plan, self._deliver = plan, deliver
        self._waiting: list[Persist] = []
        self._is_writing = False
        self._marked = 0

    def restore(self) -> None:
        """What a process of this name has left."""
        records = [(header, tensor_of(payload)) for header, payload in self._log.read()]
        if records:
            self._deliver(Restored(records))
        self._check()

    def _check(self) -> None:
        if self._host.stopped:
            return
        if not self._is_writing:
            try:
                self._log.check()
            except Fenced as error:
                self._deliver(Failed(error))
        self._plan(CHECK_EVERY_S, self._check)

    def keep(self, effect: Persist | Mark | Cut) -> None:
        """Do what a node wants of its log."""
        if isinstance(effect, Persist):
            self._waiting.append(effect)
        elif isinstance(effect, Mark):
            self._marked = self._log.next
        else:
            number, records = self._marked, [(head, _bytes(payload)) for head, payload in effect.records]
            delay_s = 10 * self._chance.uniform(0.0, self._latency_s)
            self._plan(delay_s, lambda: self._store(lambda: self._log.cut(number, records), CutStored()))

    def flush(self) -> None:
        """Write what an event has brought about."""
        if self._waiting and not self._is_writing:
            self._go_on()

    def _go_on(self) -> None:
        records, self._waiting = self._waiting, []
        self._is_writing = bool(records)
        if records:
            written = [(each.header, _bytes(each.payload)) for each in records]
            last = records[-1].number

            def write() -> None:
                self._store(lambda: self._log.write(written), Persisted(last))
                self._go_on()

            self._plan(self._chance.uniform(0.0, self._latency_s), write)

    def _store(self, write: Callable[[], None], then: Event) -> None:
        """Of what a process was writing when it died, some is there."""
        if self._host.stopped and self._chance.random() < 0.5:
            return
        try:
            write()
        except (Fenced, StoreError) as error:
            then = Failed(error)
        self._deliver(then)


def _bytes(payload: Sequence[torch.Tensor]) -> list[Bytes]:
    return [part.numpy().tobytes() for part in payload]
