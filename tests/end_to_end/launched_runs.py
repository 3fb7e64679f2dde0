"""`geomx run` as a user starts it, and the processes of its nodes."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from real_runs import BOUND_S, RealRun, tail

LAUNCHER = "geomx run"


class LaunchedRun:
    """The run of a `RealRun`'s description and script.

    `lines`: what it has printed, and when, on the monotonic clock. `words`: what the script is told.
    """

    def __init__(self, run: RealRun, *settings: str, words: Sequence[str] = ()) -> None:
        self._folder = run.folder
        self._train = [str(run.folder / "train.py"), f"steps={run.steps}", *words]
        self._report = run.folder / "report.json"
        self._again: list[subprocess.Popen[bytes]] = []
        script = (f"run.script={self._train[0]}", f"run.arguments={json.dumps(self._train[1:])}")
        options = ("--plain", "--report", str(self._report))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "geomx", "run", str(run.toml), *settings, *script, *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "TMPDIR": str(run.folder)},  # where it makes the folder of its run
        )
        self.lines: list[tuple[float, str]] = []
        self._changed = threading.Condition()
        self._has_ended = False
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append((time.monotonic(), line))
                self._changed.notify_all()
        with self._changed:
            self._has_ended = True
            self._changed.notify_all()

    def until(self, pattern: str, since: int = 0) -> None:
        """Wait until it has printed something behind so many lines."""

        def found() -> bool:
            return any(re.search(pattern, line) for _, line in self.lines[since:])

        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or found(), BOUND_S)
        assert found(), f"never printed {pattern!r}:\n{tail(self.printed)}"

    @property
    def printed(self) -> str:
        return "".join(line for _, line in self.lines)

    def goes_on(self, worker: str, within_s: float, steps: int = 3) -> bool:
        """Wait until a worker takes some steps more; whether it does."""
        since = len(self.lines)

        def taken() -> int:
            return sum(bool(re.match(rf"{worker} .* step ", line)) for _, line in self.lines[since:])

        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or taken() >= steps, within_s)
        return taken() >= steps

    def start_again(self, worker: str) -> subprocess.Popen[bytes]:
        """Start a worker by hand, with the description in the run's folder."""
        folder = next(self._folder.glob("geomx-real-*"))
        party, rank = worker.split("/")
        place = [str(folder / "run.json"), "--party", party, "--rank", rank]
        command = [sys.executable, "-m", "geomx", "worker", *place, "--", sys.executable, *self._train]
        environment = {**os.environ, "GEOMX_RECORDS": str(folder / "records")}
        self._again.append(subprocess.Popen(command, stdout=subprocess.DEVNULL, env=environment))
        return self._again[-1]

    @property
    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads(self._report.read_text())
        return report

    def pids(self) -> dict[str, int]:
        """The processes of its nodes, which are its children, by the file of their records."""
        found = {}
        for folder in Path("/proc").iterdir():
            with suppress(OSError, IndexError):
                parent = (folder / "stat").read_text().rpartition(")")[2].split()[1]
                if int(parent) == self.process.pid:
                    environment = (folder / "environ").read_bytes().decode()
                    records = Path(environment.split("GEOMX_RECORDS=")[1].split("\0")[0])
                    found[records.stem.replace(".", "/")] = int(folder.name)
        return found

    def wait(self, within_s: float) -> int | None:
        """Its exit status; None: it has not ended in time."""
        with suppress(subprocess.TimeoutExpired):
            status = self.process.wait(within_s)
            self._reader.join(within_s)
            return status
        return None

    def close(self) -> None:
        for process in (self.process, *self._again):
            process.kill()  # and with it, by the kernel, the nodes
            process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only its entry in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
