"""`geomx run` as a user starts it, and the processes of its nodes."""

from __future__ import annotations

import re
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path

from real_runs import BOUND_S, RealRun, tail

LAUNCHER = "geomx run"


class LaunchedRun:
    """The run of a `RealRun`'s description and script.

    `lines`: what it has printed, and when, on the monotonic clock.
    """

    def __init__(self, run: RealRun, *settings: str) -> None:
        self._records = run.records
        script = (f"run.script={run.folder / 'train.py'}", f'run.arguments=["steps={run.steps}"]')
        self.process = subprocess.Popen(
            [sys.executable, "-m", "geomx", "run", str(run.toml), *settings, *script, "--plain"],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
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

    def until(self, pattern: str) -> None:
        """Wait until it has printed something."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_ended or re.search(pattern, self.printed), BOUND_S)
        assert re.search(pattern, self.printed), f"never printed {pattern!r}:\n{tail(self.printed)}"

    @property
    def printed(self) -> str:
        return "".join(line for _, line in self.lines)

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
        self.process.kill()  # and with it, by the kernel, the nodes
        self.process.wait()


def is_alive(pid: int) -> bool:
    """Whether a process is there, and not only its entry in the table."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
