"""One process of a run: started in a process group of its own, read line by line, ended whole."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

LINES_KEPT = 12
LONGEST_LINE_BYTES = 1 << 16
PIPE_BYTES = 1 << 20  # no pipe holds more: one read empties it
PR_SET_PDEATHSIG = 1

_libc = (
    ctypes.CDLL(None) if sys.platform == "linux" else None
)  # loaded before the fork, where loading is not safe


@dataclass(frozen=True, slots=True)
class Command:
    """What to start. `serves`: it is a server, which ends by itself once all others have ended."""

    name: str
    argv: tuple[str, ...]
    environment: Mapping[str, str]
    serves: bool = False
    folder: Path | None = None


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended. `status`: its exit status, or minus the signal that killed it.

    `last_lines`: of its stderr. `overdue`: it had to be ended. `lack`: what it has not done that it had to do.
    """

    name: str
    status: int
    last_lines: tuple[str, ...] = ()
    overdue: bool = False
    lack: str = ""

    @property
    def how(self) -> str:
        """`ended with status 3`, `was killed by SIGKILL`."""
        if self.overdue:
            return "did not end with the run"
        if self.lack:
            return f"ended {self.lack}"
        if self.status >= 0:
            return f"ended with status {self.status}"
        with suppress(ValueError):
            return f"was killed by {signal.Signals(-self.status).name}"
        return f"was killed by signal {-self.status}"


class Lines:
    """Cuts a pipe's bytes into lines of text. Of a line that was overwritten (a progress bar) the last form counts."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> Iterator[str]:
        """The lines that are complete now."""
        *whole, self._rest = (self._rest + data).split(b"\n")
        yield from map(_text, whole)
        if len(self._rest) > LONGEST_LINE_BYTES:
            self._rest = self._rest.rpartition(b"\r")[2]
        if len(self._rest) > LONGEST_LINE_BYTES:
            yield from self.end()

    def end(self) -> Iterator[str]:
        """What was not ended by a newline."""
        rest, self._rest = self._rest, b""
        if rest:
            yield _text(rest)


def _text(line: bytes) -> str:
    return line.rstrip(b"\r").rpartition(b"\r")[2].decode("utf-8", "replace")


class Child:
    """A running process. Somebody must `read` its pipes, or it will block. `last_lines`: of its stderr."""

    def __init__(self, command: Command) -> None:
        """Start it; raises OSError where it cannot be started."""
        launcher = os.getpid()
        self.name = command.name
        self.serves = command.serves
        self.last_signal = 0
        self.last_lines: deque[str] = deque(maxlen=LINES_KEPT)
        self._process = subprocess.Popen(
            command.argv,
            env=dict(command.environment),
            cwd=command.folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
            preexec_fn=lambda: _die_with(launcher),  # noqa: PLW1509 (the launcher has one thread)
        )
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self.pid = self._process.pid
        self._stderr = self._process.stderr.fileno()
        self._pipes = {self._process.stdout.fileno(): Lines(), self._stderr: Lines()}
        for pipe in self._pipes:
            os.set_blocking(pipe, False)

    @property
    def pipes(self) -> tuple[int, ...]:
        """File descriptors that may have something to read."""
        return tuple(self._pipes)

    def is_error(self, pipe: int) -> bool:
        return pipe == self._stderr

    def read(self, pipe: int) -> list[str]:
        """The lines that have come on a pipe; at its end it is none of `pipes` any more. Never blocks."""
        try:
            data = os.read(pipe, PIPE_BYTES)
        except BlockingIOError:
            return []
        return self._kept(pipe, self._pipes[pipe].feed(data) if data else self._pipes.pop(pipe).end())

    def _kept(self, pipe: int, lines: Iterator[str]) -> list[str]:
        found = list(lines)
        if self.is_error(pipe):
            self.last_lines.extend(line for line in found if line.strip())
        return found

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet. It is left unreaped, so that nobody else can get its id before `end`."""
        return os.waitid(os.P_PID, self.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None

    def signal_group(self, number: int) -> None:
        """Send a signal to the process and to all that it has started; those that are stopped go on, to take it."""
        self.last_signal = number
        with suppress(PermissionError):  # what Darwin says of a group whose last process is a zombie
            os.killpg(self.pid, number)
            os.killpg(self.pid, signal.SIGCONT)

    def end(self) -> int:
        """Kill what is left of it and of its group; gives its status. What its pipes hold may still be read."""
        self.signal_group(signal.SIGKILL)
        return self._process.wait()

    def close(self) -> None:
        """Let go of the pipes; after `end`."""
        for stream in (self._process.stdout, self._process.stderr):
            if stream is not None:
                stream.close()


def _die_with(launcher: int) -> None:
    """In the child: have the kernel kill it when its launcher ends."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != launcher:  # it ended before
            os._exit(1)
