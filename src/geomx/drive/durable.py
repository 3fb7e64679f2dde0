"""A shard's log in the run's store: what was left there, and what is written.

Records are written in the order in which they come, in a thread: all that have come while a piece was being written are
the next piece.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from geomx.config import Run
from geomx.errors import GeomxError
from geomx.node.contract import Persist
from geomx.store.log import Log
from geomx.store.open import open_store

TERM = "term-{:020}"


class Durable:
    """What one shard keeps in the store of its run. `incarnation`: later than all before it, whatever clocks say."""

    def __init__(self, run: Run, shard: str) -> None:
        """Open it. Raises `ConfigError` and `StoreError`."""
        name = f"{run.run.name}/{shard.replace('/', '.')}"
        store = open_store(run.store.url)
        self.log = Log(store, name)
        before = store.list(f"{name}/{TERM[:5]}")
        newest = max((int(each.rpartition("-")[2]) for each in before), default=0)
        self.incarnation = max(time.time_ns(), newest + 1)
        while not store.create(f"{name}/{TERM.format(self.incarnation)}", []):
            self.incarnation += 1
        store.delete(before)
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{shard} log")
        self._waiting: list[Persist] = []
        self._is_writing = False

    def records(self) -> Iterator[tuple[bytes, torch.Tensor]]:
        """What is in the log: headers, and payloads that nobody may change."""
        for _, header, payload in self.log.read():
            yield header, torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else _NOTHING

    def write(self, record: Persist, then: Callable[[Future[Any], int], None]) -> None:
        """Write a record behind those before; `then(future, number)` is called in the thread when so many are there."""
        self._waiting.append(record)
        if not self._is_writing:
            self.go_on(then)

    def go_on(self, then: Callable[[Future[Any], int], None]) -> None:
        """A piece was written: write the next, if there is anything."""
        records, self._waiting = self._waiting, []
        self._is_writing = bool(records)
        if records:
            future = self._executor.submit(self._write, records)
            future.add_done_callback(partial(_call, then, records[-1].number))

    def _write(self, records: list[Persist]) -> None:
        self.log.write(
            [(each.header, [memoryview(part.numpy()) for part in each.payload]) for each in records]
        )

    def end(self, is_well: bool) -> None:
        """The shard has ended; where the run has ended well, nobody needs the log."""
        self._executor.shutdown()
        if is_well:
            self.log.clear()


_NOTHING = torch.empty(0, dtype=torch.uint8)


def _call(then: Callable[[Future[Any], int], None], number: int, future: Future[Any]) -> None:
    then(future, number)


def as_error(error: BaseException, node: str) -> GeomxError:
    """What the others are told of a log that cannot be written."""
    return error if isinstance(error, GeomxError) else GeomxError(f"{node} cannot write its log: {error!r}")
