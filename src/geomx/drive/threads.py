"""Workers beside a training loop: the node's event loop runs in a thread of its own.

The training thread reaches its node through a `ThreadPort`; weights change on the training thread alone.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from geomx.channels.inproc import InProc
from geomx.channels.memory import reuse_freed_blocks
from geomx.config import Run
from geomx.drive.loops import run_loop
from geomx.drive.real import Driver, ListeningEdge, RecordSink, Wiring
from geomx.drive.secret import secret_of
from geomx.drive.wiring import wire
from geomx.errors import GeomxError, RunFailed
from geomx.node.contract import Called
from geomx.node.factory import make_node
from geomx.node.topology import Topology

TELL_NODE_S = 1.0
LAST_WORD_S = 3.0  # a connection takes 2 s at most to end


class ThreadPort:
    """`geomx.node.port.Port` between two threads."""

    def __init__(self, name: str, recorder: RecordSink, stall_s: float) -> None:
        self._name = name
        self._recorder = recorder
        self._stall_s = stall_s
        self._items: deque[Any] = deque()
        self._changed = threading.Condition()
        self._listener: Callable[[Any], None] | None = None
        self._call: Callable[[Called], object] | None = None
        self._ended = False
        self._error: BaseException | None = None
        self._node_knows = False  # that the training loop waits
        self._heard = threading.Event()  # the training thread has got the error

    # -- the training thread's side -------------------------------------------------------------------------------

    def call(self, method: str, *arguments: Any) -> None:
        if self._ended:
            self._raise(f"{method}()")
        assert self._call is not None  # set before the training loop gets the port
        self._call(Called(method, arguments))

    def wait(self, ready: Callable[[], bool], whom: Callable[[], str], *, on_run: bool = True) -> None:
        self.poll()
        since = reported = time.monotonic()
        while not ready():
            with self._changed:
                if not self._items and not self._ended:
                    self._changed.wait(min(TELL_NODE_S, self._stall_s))
                stuck = not self._items
            if self._ended and stuck:
                self._raise(whom())
            now = time.monotonic()
            self._tell_node(on_run and stuck and now - since >= TELL_NODE_S)
            if stuck and now - reported >= self._stall_s:
                reported = now
                self._recorder.record("waiting", "warning", whom=whom(), seconds=now - since)
            self.poll()
        self._tell_node(False)

    def _tell_node(self, waits: bool) -> None:
        """That the training loop waits; not of the waits of every step, which are short."""
        if waits != self._node_knows and self._call is not None:
            self._node_knows = waits
            self._call(Called("waits", (waits,)))

    def listen(self, listener: Callable[[Any], None]) -> None:
        self._listener = listener

    def poll(self) -> None:
        while self._items and self._listener is not None:
            self._listener(self._items.popleft())

    def outcome(self, within_s: float) -> GeomxError | None:
        with self._changed:
            if self._changed.wait_for(lambda: self._ended, within_s):
                self._heard.set()
        return self._error if isinstance(self._error, GeomxError) else None

    def end(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._ended, LAST_WORD_S)

    def unheard(self, within_s: float) -> GeomxError | None:
        """For another thread: the node's error, if the training thread has not got it so many seconds after the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._ended)
        if not isinstance(self._error, GeomxError) or self._heard.wait(within_s):
            return None
        return self._error

    def note(self, name: str, level: str = "debug", /, **fields: Any) -> None:
        self._recorder.record(name, level, **fields)

    def _raise(self, what: str) -> None:
        self._heard.set()
        if isinstance(self._error, GeomxError):
            raise self._error
        raise RunFailed(
            self._name, f"its node stopped unexpectedly, while the script waited for {what}"
        ) from self._error

    # -- the node's side ----------------------------------------------------------------------------------------

    def connect(self, call: Callable[[Called], object]) -> None:
        self._call = call

    def give(self, item: Any) -> None:
        with self._changed:
            self._items.append(item)
            self._changed.notify_all()

    def ended(self, error: BaseException | None) -> None:
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()


class NodeThread(ABC):
    """A thread with an event loop, on which the nodes of `drivers()` run."""

    def __init__(self, name: str, recorder: RecordSink, stall_s: float) -> None:
        self.port = ThreadPort(name, recorder, stall_s)
        self._recorder = recorder
        self._loop: asyncio.AbstractEventLoop | None = None
        self._running = threading.Event()
        self._thread = threading.Thread(target=self._main, name=f"geomx {name}", daemon=True)

    def start(self) -> None:
        """Start the node; it connects while the training loop prepares."""
        reuse_freed_blocks()
        self._thread.start()
        self._running.wait()

    def stop(self, timeout_s: float = 10.0) -> None:
        """Wait until the node has ended."""
        self._thread.join(timeout_s)

    @abstractmethod
    def drivers(self) -> list[Driver]:
        """The nodes that this thread runs."""

    def _main(self) -> None:
        error: BaseException | None = None
        try:
            run_loop(self._run())
        except BaseException as caught:  # handed to the training thread, which raises it
            error = caught
        finally:
            self._running.set()
            self.port.ended(error)

    async def _run(self) -> None:
        *others, worker = self.drivers()
        loop = asyncio.get_running_loop()
        tasks = [loop.create_task(driver.run()) for driver in (*others, worker)]
        await asyncio.sleep(0)

        def call(event: Called) -> None:
            with suppress(RuntimeError):  # the loop is closed: the node has ended, which the port tells
                loop.call_soon_threadsafe(worker.deliver, event)

        self.port.connect(call)
        self._running.set()
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()


class WorkerThread(NodeThread):
    """A worker of a run, by name (`A/0`)."""

    def __init__(self, run: Run, name: str, recorder: RecordSink) -> None:
        super().__init__(name, recorder, run.limits.stall_s)
        self._run_description = run
        self._name = name

    def drivers(self) -> list[Driver]:
        run = self._run_description
        node = make_node(Topology.of(run, secret_of(run)), self._name, incarnation=time.time_ns())
        return [Driver(node, wire(run, self._name), self._recorder, self.port.give)]


class SoloThread(NodeThread):
    """A run of one: a worker and its root in this process, joined by a channel that copies nothing over sockets."""

    def __init__(self, recorder: RecordSink, stall_s: float = 30.0) -> None:
        super().__init__(Topology.solo().tree.workers[0], recorder, stall_s)

    def drivers(self) -> list[Driver]:
        topology, channel = Topology.solo(), InProc()
        (root,), (worker,) = topology.tree.shards, topology.tree.workers
        address = "solo:1"
        return [
            Driver(make_node(topology, root), Wiring(ListeningEdge(channel, address)), self._recorder),
            Driver(
                make_node(topology, worker),
                Wiring(peers={root: (channel, address)}),
                self._recorder,
                self.port.give,
            ),
        ]
