"""A shard's log in the run's store: what was left there, and what is written.

Records are written in the order in which they come, in a thread: all that have come while a piece was being written are
the next piece. Cuts are written in another, so that nothing waits for them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import torch

from geomx.config import Run
from geomx.errors import GeomxError
from geomx.node.contract import Cut, Persist
from geomx.store.contract import Bytes
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
        self._cutter = ThreadPoolExecutor(1, thread_name_prefix=f"{shard} cut")
        self._marked = 0
        self._waiting: list[Persist] = []
        self._is_writing = False

    def records(self) -> Iterator[tuple[bytes, torch.Tensor]]:
        """What is in the log: headers, and payloads that nobody may change."""
        for header, payload in self.log.read():
            yield header, torch.frombuffer(bytearray(payload), dtype=torch.uint8) if payload else _NOTHING

    def write(self, record: Persist) -> None:
        """Write a record behind those before, with the next piece."""
        self._waiting.append(record)

    def flush(self, then: Callable[[Future[Any], int], None]) -> None:
        """Write what there is; `then(future, number)` is called in the thread when so many records are there."""
        if self._waiting and not self._is_writing:
            self.go_on(then)

    def go_on(self, then: Callable[[Future[Any], int], None]) -> None:
        """A piece was written: write the next, if there is anything."""
        records, self._waiting = self._waiting, []
        self._is_writing = bool(records)
        if records:
            future = self._executor.submit(self._write, records)
            future.add_done_callback(partial(_call, then, records[-1].number))

    def _write(self, records: list[Persist]) -> None:
        self.log.write([(each.header, _bytes(each.payload)) for each in records])

    def mark(self) -> None:
        """The next cut stands for all that was written, which is in the log."""
        self._marked = self.log.next

    def cut(self, cut: Cut, then: Callable[[Future[Any]], None]) -> None:
        """Write a cut, beside what else is written; `then(future)` is called in the thread."""
        records = [(header, _bytes(payload)) for header, payload in cut.records]
        self._cutter.submit(self.log.cut, self._marked, records).add_done_callback(then)

    def check(self, then: Callable[[Future[Any]], None]) -> None:
        """See whether another process has taken this one's place; `then(future)` is called in the thread."""
        self._executor.submit(self.log.check).add_done_callback(then)

    def end(self, is_well: bool) -> None:
        """The shard has ended; where the run has ended well, nobody needs the log."""
        self._executor.shutdown()
        self._cutter.shutdown()
        if is_well:
            self.log.clear()


_NOTHING = torch.empty(0, dtype=torch.uint8)


def _bytes(payload: Sequence[torch.Tensor]) -> list[Bytes]:
    views: list[Any] = [part.numpy() for part in payload]
    return [memoryview(view) for view in views]


def _call(then: Callable[[Future[Any], int], None], number: int, future: Future[Any]) -> None:
    then(future, number)


def as_error(error: BaseException, node: str) -> GeomxError:
    """What the others are told of a log that cannot be written."""
    return error if isinstance(error, GeomxError) else GeomxError(f"{node} cannot write its log: {error!r}")
