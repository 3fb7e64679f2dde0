"""Training loops on the virtual clock: each in a thread of its own, one at a time, in a fixed order."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from geomx.errors import GeomxError, RunFailed
from geomx.node.contract import Note


class AbandonedError(BaseException):
    """Raised in a program whose simulation has ended: it unwinds, and nothing is reported."""


class Program:
    """A `Port` for a program, and a baton for the simulator: `advance` returns when the program waits or has ended."""

    def __init__(
        self,
        name: str,
        function: Callable[[Program], None],
        call: Callable[[str, tuple[Any, ...]], None],
        clock: Callable[[], float],
        note: Callable[[Note], None],
    ) -> None:
        self.name = name
        self.error: BaseException | None = None
        self.finished = False
        self._call = call
        self._clock = clock
        self._note = note
        self._items: deque[Any] = deque()
        self._listener: Callable[[Any], None] | None = None
        self._ready: Callable[[], bool] | None = None
        self._wakes_at: float | None = None
        self._node_stopped = False
        self._node_error: GeomxError | None = None
        self._abandoned = False
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._main, args=(function,), name=name, daemon=True)
        self._started = False

    # -- the program's side: geomx.node.port.Port --------------------------------------------------------

    def call(self, method: str, *arguments: Any) -> None:
        self._call(method, arguments)

    def wait(self, ready: Callable[[], bool], whom: Callable[[], str], *, on_run: bool = True) -> None:
        self.poll()
        if ready():
            return
        self._call("waits", (on_run,))
        while not ready():
            if self._node_stopped:
                raise self._node_error or RunFailed(self.name, f"the node stopped while waiting for {whom()}")
            self._ready = ready
            self._yield()
            self.poll()
        self._call("waits", (False,))

    def listen(self, listener: Callable[[Any], None]) -> None:
        self._listener = listener

    def poll(self) -> None:
        while self._items and self._listener is not None:
            self._listener(self._items.popleft())

    def outcome(self, within_s: float) -> GeomxError | None:
        self.sleep(within_s)
        return self._node_error

    def end(self) -> None:
        """A program does not end before its node."""

    def note(self, name: str, level: str = "debug", /, **fields: Any) -> None:
        self._note(Note(name, fields, level))

    def sleep(self, seconds: float) -> None:
        """Compute for so long."""
        self._wakes_at = self._clock() + seconds
        self._yield()

    @property
    def now(self) -> float:
        """The virtual clock."""
        return self._clock()

    # -- the simulator's side ----------------------------------------------------------------------------------

    def give(self, item: Any) -> None:
        self._items.append(item)

    def stopped(self, error: GeomxError | None) -> None:
        self._node_stopped, self._node_error = True, error

    def advance(self) -> float | None:
        """Run the program if it can go on; returns for how long it wants to sleep, if it does."""
        while not self.finished and self._can_go():
            self._wakes_at = self._ready = None
            self._hand_over()
            if self._wakes_at is not None:
                return max(0.0, self._wakes_at - self._clock())
        return None

    def abandon(self) -> None:
        """End the program's thread."""
        self._abandoned = True
        if self._started and not self.finished:
            self._hand_over()

    def _can_go(self) -> bool:
        if not self._started:
            return True
        if self._wakes_at is not None:
            return self._clock() >= self._wakes_at
        return bool(self._items) or self._node_stopped

    def _hand_over(self) -> None:
        if not self._started:
            self._started = True
            self._thread.start()
        else:
            self._go.release()
        self._back.acquire()

    def _yield(self) -> None:
        self._back.release()
        self._go.acquire()
        if self._abandoned:
            raise AbandonedError

    def _main(self, function: Callable[[Program], None]) -> None:
        try:
            function(self)
        except AbandonedError:
            pass
        except BaseException as error:  # handed to whoever asks for `program.error`
            self.error = error
        finally:
            self.finished = True
            self._back.release()
