"""Watches the processes of a run: shows what they write, and sees to it that all of them end.

Theory of operation. One thread, one loop. Every process leads a group of its own. One that ends by itself and not well
has failed, unless the run goes on without it, while a worker is left: then it is *lost*, which is said, and nobody is
stopped for it. One that can be started *again* is, which is said as well. A run ends in one of six ways:

    all well      the workers end with status 0; the servers, which see that, end within `end_s`
    a failure     a process ends with another status. The others have `GRACE_S` to hear of it through the run
                  and to end by themselves, each with its own last word; then they are stopped. When a
                  signal killed it, they are stopped at once
    a lack        a worker ends well, but has not done what it had to; as a failure
    somebody late the workers have ended, a server has not, or a worker that the run went on without: it is
                  stopped, and counts as failed, or as lost where others are lost already
    Ctrl-C        (or SIGTERM, SIGHUP) they are stopped; a second Ctrl-C kills
    enough        `stop` was called: they are stopped

That processes are being stopped, and why, is said as it begins, since it may take `stop_s`.

To *stop* is: SIGINT to the workers, and when all of them have ended to the servers, which workers may need to end well;
after half of `stop_s` SIGTERM to the workers, and SIGINT to servers all the same, since SIGTERM may only ask them to
leave a run that goes on; SIGKILL after `stop_s`. When a process has ended, what it has started and left behind is
killed. When the launcher itself is killed, the kernel kills the processes (PR_SET_PDEATHSIG), and the guardian what
these had started.
"""

from __future__ import annotations

import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import FrameType, TracebackType
from typing import Self

from geomx.errors import RunFailed
from geomx.launch.local import guardian
from geomx.launch.local.child import Child, Command, Ended

POLL_S = 0.1
GRACE_S = 5.0

Show = Callable[[str, str, bool], None]  # (node, line, whether it was written to stderr)


@dataclass(frozen=True, slots=True)
class Outcome:
    """How a run of processes ended. `failures`: those that ended by themselves and not well, the first first.

    `stopped_at`: when the others were stopped, on the monotonic clock; None: all have ended by themselves.
    `well`: the workers that ended with status 0. `lost`: those without which the run went on.
    """

    failures: tuple[Ended, ...]
    interrupted: bool
    stopped_at: float | None = field(default=None, compare=False)
    well: frozenset[str] = field(default=frozenset(), compare=False)
    lost: tuple[Ended, ...] = ()


class Supervisor:
    """Starts processes side by side and returns when all have ended. Must run in the main thread.

    `show` is given every line; `tick` is called about ten times a second. `say` is given what the user should know of
    the supervisor itself. `lack_of(worker)` says what a worker that has ended well has not done; "": nothing.
    `end_s`: how long others may go on behind the workers; None: `stop_s`. `goes_on(ended)`: what the run does now that
    a process is lost to it, in words; "": it has failed. `is_out(worker)`: whether the run has gone on without it.
    `again(ended)`: why a process is started again, in words; "": it is not.
    """

    def __init__(
        self,
        show: Show,
        tick: Callable[[], None],
        stop_s: float,
        say: Callable[[str], None] = lambda text: None,
        lack_of: Callable[[str], str] = lambda worker: "",
        end_s: float | None = None,
        goes_on: Callable[[Ended], str] = lambda ended: "",
        is_out: Callable[[str], bool] = lambda worker: False,
        again: Callable[[Ended], str] = lambda ended: "",
    ) -> None:
        self._show = show
        self._tick = tick
        self._stop_s = stop_s
        self._end_s = stop_s if end_s is None else end_s
        self._say = say
        self._lack_of = lack_of
        self._goes_on = goes_on
        self._is_out = is_out
        self._again = again
        self._commands: dict[str, Command] = {}
        self._interrupts_told = 0
        self._stop_told = False
        self._running: list[Child] = []
        self._failures: list[Ended] = []
        self._lost: list[Ended] = []
        self._interrupts: list[int] = []
        self._well: set[str] = set()
        self._stop_at: float | None = None
        self._late_at: float | None = None
        self._selector: selectors.BaseSelector = selectors.DefaultSelector()

    def run(self, commands: Iterable[Command]) -> Outcome:
        """Start the commands, watch them, and return when every one has ended."""
        with _noted(self._interrupts), _Guardian() as self._guardian, self._selector:
            try:
                for command in commands:
                    self._start(command)
                while self._running:
                    self._read_output()
                    self._reap()
                    self._judge(time.monotonic())
                    self._tick()
            finally:
                for child in list(self._running):
                    self._bury(child)
        failures, lost = tuple(self._failures), tuple(self._lost)
        return Outcome(failures, bool(self._interrupts), self._stop_at, frozenset(self._well), lost)

    def stop(self) -> None:
        """Stop every process: the run has done what it was for."""
        self._stop_at = self._stop_at or time.monotonic()

    def _start(self, command: Command) -> None:
        try:
            child = Child(command)
        except OSError as error:
            raise RunFailed(command.name, f"{command.argv[0]} cannot be started: {error}") from error
        self._commands[command.name] = command
        self._guardian.watch(child.pid)
        self._running.append(child)
        for pipe in child.pipes:
            self._selector.register(pipe, selectors.EVENT_READ, child)

    def _read_output(self) -> None:
        for key, _ in self._selector.select(POLL_S):
            self._read(key.data, key.fd)

    def _read(self, child: Child, pipe: int) -> None:
        is_error = child.is_error(pipe)
        for line in child.read(pipe):
            if not (
                is_error and self._is_stopping
            ):  # so many tracebacks of KeyboardInterrupt tell nobody anything
                self._show(child.name, line, is_error)
        if pipe not in child.pipes:
            self._selector.unregister(pipe)

    @property
    def _is_stopping(self) -> bool:
        return self._stop_at is not None and time.monotonic() >= self._stop_at

    def _reap(self) -> None:
        for child in [child for child in self._running if not child.is_running]:
            was_stopped = self._is_stopping
            status = self._bury(child)
            lack = "" if status or child.serves else self._lack_of(child.name)
            if status == 0 and not lack and not child.serves:
                self._well.add(child.name)
            if (status != 0 or lack) and not was_stopped:
                self._take_end(Ended(child.name, status, tuple(child.last_lines), lack=lack))

    def _take_end(self, ended: Ended) -> None:
        """Of a process that has not ended well: the run goes on without it, or has failed."""
        has_workers = self._well or any(not child.serves for child in self._running)
        may_go_on = has_workers and not ended.lack and not self._failures
        if may_go_on and not ended.overdue and (words := self._again(ended)):
            self._say(f"{ended.name} {ended.how}; {words}")
            self._start(self._commands[ended.name])
        elif may_go_on and (words := self._goes_on(ended)):
            self._lost.append(ended)
            self._say(f"{ended.name} {ended.how}; {words}")
        else:
            self._failures.append(ended)

    def _bury(self, child: Child) -> int:
        """End a process with all that it has started, and show what it has still written."""
        status = child.end()
        self._guardian.release(child.pid)
        for pipe in child.pipes:
            self._read(child, pipe)
        for pipe in child.pipes:  # held open by a process that has left the group
            self._selector.unregister(pipe)
        child.close()
        self._running.remove(child)
        return status

    def _judge(self, now: float) -> None:
        """Decide whether to stop, and stop."""
        if self._interrupts:
            self._stop_at = min(now, self._stop_at or now)
            self._tell_interrupts()
        elif self._failures and self._stop_at is None:
            was_killed = self._failures[0].status < 0  # nobody will hear of it from the process itself
            self._stop_at = now if was_killed else now + GRACE_S
        elif self._stop_at is None and all(map(self._is_behind, self._running)):
            self._late_at = self._late_at or now + self._end_s
            if now >= self._late_at:
                has_lost = self._lost or not all(child.serves for child in self._running)
                for child in self._running:
                    overdue = Ended(child.name, 0, tuple(child.last_lines), overdue=True)
                    if has_lost:
                        self._take_end(overdue)
                    else:
                        self._failures.append(overdue)
                self._stop_at = now
        if self._stop_at is not None and now >= self._stop_at:
            self._tell_stop()
            self._stop(now - self._stop_at)

    def _is_behind(self, child: Child) -> bool:
        """Whether a process has nothing left to do once all others have ended."""
        return child.serves or (bool(self._well) and self._is_out(child.name))

    def _tell_interrupts(self) -> None:
        """Say at once that a signal was heard, and what the next one does."""
        if self._interrupts_told == len(self._interrupts) or not self._running:
            return
        self._interrupts_told, self._stop_told = len(self._interrupts), True
        last = self._interrupts[-1]
        asked = "Ctrl-C" if last == signal.SIGINT else signal.Signals(last).name
        if self._interrupts_told == 1:
            self._say(f"{asked}: stopping every process of the run; once more kills them")
        else:
            self._say(f"{asked}: killing every process of the run")

    def _tell_stop(self) -> None:
        """Say why the others are being stopped."""
        if not self._stop_told and self._failures and self._running:
            first = self._failures[0]
            # Its last word tells why, also where it ended because of another one.
            why = f": {first.last_lines[-1].strip()}" if first.status > 0 and first.last_lines else ""
            self._say(f"{first.name} {first.how}{why}; stopping the processes that are left")
        self._stop_told = True

    def _stop(self, since_s: float) -> None:
        workers_run = any(not child.serves for child in self._running)
        for child in self._running:
            if since_s >= self._stop_s or len(self._interrupts) > 1:
                wanted = signal.SIGKILL
            elif since_s >= self._stop_s / 2:
                wanted = signal.SIGINT if child.serves else signal.SIGTERM
            elif child.serves and workers_run:
                continue
            else:
                wanted = signal.SIGINT
            if child.last_signal != wanted:
                child.signal_group(wanted)


@contextmanager
def _noted(interrupts: list[int]) -> Iterator[None]:
    """Note Ctrl-C, SIGTERM and SIGHUP instead of being thrown out of whatever is going on."""

    def note(number: int, _frame: FrameType | None) -> None:
        interrupts.append(number)

    before = {
        number: signal.signal(number, note) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    }
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


class _Guardian:
    """The process that outlives this one if this one is killed; see `guardian.py`."""

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", guardian.__file__],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        return self

    def watch(self, group: int) -> None:
        self._tell(f"+{group}\n")

    def release(self, group: int) -> None:
        self._tell(f"-{group}\n")

    def _tell(self, line: str) -> None:
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):
            self._process.stdin.write(line.encode())
            self._process.stdin.flush()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._process.communicate()
