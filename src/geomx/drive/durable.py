"""A shard's log in the run's store: what was left there, and what is written.

Where others stand by to take its place, it holds a term, and renews that in a thread of its own.

Records are written in the order in which they come, in a thread: all that have come while a piece was being written are
the next piece. Cuts are written in another, so that nothing waits for them.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any, Protocol

import torch

from geomx.config import Run
from geomx.errors import ConfigError, Fault, Fenced, GeomxError, NodeLost
from geomx.node.contract import Cut, Persist
from geomx.node.durable.records import tensor_of
from geomx.store.contract import Bytes, StoreError
from geomx.store.log import Log
from geomx.store.open import open_store
from geomx.store.terms import Term


def _name_of(run: Run, shard: str) -> str:
    return f"{run.run.name}/{shard.replace('/', '.')}"


def log_of(run: Run, shard: str) -> Log:
    """A shard's log in its run's store, to be looked at. Raises `ConfigError`."""
    return Log(open_store(run.store.url), _name_of(run, shard))


RENEWALS = 4  # in the time for which a term is held
LOOK_S = 0.25
RETRY_S = 30.0  # for which a store may be out of reach, where nobody stands by


class Tell(Protocol):
    """See `geomx.drive.real.RecordSink.record`."""

    def __call__(self, name: str, level: str = "debug", /, **fields: Any) -> object: ...


class Durable:
    """What one shard keeps in the store of its run. `place`: of its addresses, where this process is."""

    def __init__(self, run: Run, shard: str, place: int = 0) -> None:
        """Open it. Raises `ConfigError` and `StoreError`."""
        self._name, self._shard = _name_of(run, shard), shard
        store, places = open_store(run.store.url), run.addresses_of(shard) if run.addresses[shard] else ("",)
        if place >= len(places):
            fault = Fault(
                f"global.addresses[{run.shard_names.index(shard)}]",
                f"{len(places)} of them",
                f"{place + 1} or more",
            )
            raise ConfigError(f"{shard}, which is to stand by", [fault])
        self.log = Log(store, self._name)
        self.term = Term(store, self._name, run.store.lease_s if len(places) > 1 else 0.0)
        self.loss: Future[GeomxError] = Future()  # of the term
        self._renewing = threading.Thread(target=self._renew, name=f"{shard} term", daemon=True)
        self._is_standby, self._ended = place > 0, threading.Event()
        self._executor = ThreadPoolExecutor(1, thread_name_prefix=f"{shard} log")
        self._cutter = ThreadPoolExecutor(1, thread_name_prefix=f"{shard} cut")
        self._marked = 0
        self._waiting: list[Persist] = []
        self._tell: Tell = _nothing
        self._is_writing = False

    def wait(self, tell: Tell) -> bool:
        """Until this process is the shard; `tell` takes what there is to say, as a recorder does.

        Returns whether it is: one that stands by has nothing to do where the run has ended. Raises `StoreError` where
        the store cannot be reached at first; one that stands by already says so once, and looks again.
        """
        self._tell = tell
        was_there = stands_by = is_away = False
        while True:
            try:
                state = self.term.look()
                is_there = state in ("held", "free")
                if self._is_standby and was_there and not is_there:
                    return False
                was_there = was_there or is_there
                may_take = state != "held" and (is_there or not self._is_standby)
                if may_take and self.term.take():
                    break
                if not stands_by:
                    stands_by = True
                    tell("stands_by", "info")
                self.log.look_ahead()
                is_away = False
            except StoreError as error:
                if not stands_by:
                    raise
                if not is_away:
                    is_away = True
                    tell("no_store", "warning", reason=str(error))
            self._ended.wait(LOOK_S)
        if self.term.lease_s:
            self._renewing.start()
        return True

    def _renew(self) -> None:
        renewed = time.monotonic()
        while not self._ended.wait(self.term.lease_s / RENEWALS):
            try:
                self.term.renew()
                renewed = time.monotonic()
            except GeomxError as error:
                if isinstance(error, Fenced) or time.monotonic() - renewed > self.term.lease_s:
                    self.loss.set_result(self.as_error(error))
                    return

    def records(self) -> Iterator[tuple[bytes, torch.Tensor]]:
        """What is in the log: headers, and payloads that nobody may change."""
        for header, payload in self.log.read():
            yield header, tensor_of(payload)

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
        """In the log's thread. A store may be away for a while: nothing is answered meanwhile."""
        piece, since = [(each.header, _bytes(each.payload)) for each in records], time.monotonic()
        is_away = False
        while True:
            try:
                self.log.write(piece)
            except StoreError as error:
                if self._ended.is_set() or time.monotonic() - since > (self.term.lease_s or RETRY_S):
                    raise
                if not is_away:
                    is_away = True
                    self._tell("no_store", "warning", reason=str(error))
                self._ended.wait(LOOK_S)
            else:
                return

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

    def end(self, error: BaseException | None) -> None:
        """The shard has ended; where the run has ended well, nobody needs the log."""
        self._ended.set()
        if self._renewing.is_alive():
            self._renewing.join()
        if (
            error is None and self.term.lease_s
        ):  # nobody takes its place while it clears up, however long that is
            with suppress(GeomxError):
                self.term.release(is_over=True)
        self._executor.shutdown()
        self._cutter.shutdown()
        if error is None:
            self.log.clear()
        elif self.term.lease_s and not isinstance(error, Fenced):
            is_mine = isinstance(error, NodeLost) and error.node == self._shard
            has_stepped_down = is_mine or isinstance(error, StoreError)
            with suppress(GeomxError):
                self.term.release(is_over=not has_stepped_down)

    def as_error(self, error: BaseException) -> GeomxError:
        """What becomes of a shard whose log cannot be written: another takes its place, or all hear of it and end."""
        if isinstance(error, Fenced | NodeLost):
            return error
        if self.term.lease_s:
            return NodeLost(self._shard, f"{error}", may_return=True)
        return (
            error
            if isinstance(error, GeomxError)
            else GeomxError(f"{self._shard} cannot write its log: {error!r}")
        )


def _bytes(payload: Sequence[torch.Tensor]) -> list[Bytes]:
    views: list[Any] = [part.numpy() for part in payload]
    return [memoryview(view) for view in views]


def _nothing(name: str, level: str = "debug", /, **fields: Any) -> None:
    pass


def _call(then: Callable[[Future[Any], int], None], number: int, future: Future[Any]) -> None:
    then(future, number)
