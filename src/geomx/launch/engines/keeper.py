"""The keeper of a machine: starts the nodes of a run that are to run here, sees to them, and starts again who died.

    python keeper.py FOLDER [MACHINE] [HOST]      by keep.sh in the folder; see `on_machine.py` for what is in it

Nodes are its children, each in a group of its own, and what they print is appended to their logs. A node that was
killed, or lost the others (`LOST_STATUS`), is started again, as often as the job says. The keeper ends with the last of
its nodes. SIGTERM has it stop them: SIGINT to workers, then to servers, then SIGKILL. SIGUSR1 has them leave the run
(SIGTERM to each). When it is killed, the kernel kills its nodes.

Everything here is of Python's own library.
"""

from __future__ import annotations

import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

LOST_STATUS = 75  # EX_TEMPFAIL: of a node that lost the others, and may be started again
POLL_S = 0.1
BACKOFF_S = (1.0, 2.0, 4.0, 8.0, 15.0, 30.0)
PR_SET_PDEATHSIG = 1


def keep(place: str, machine: str = "0", host: str = "") -> None:
    """Start the folder's nodes of a machine and see to them until the last has ended. `host`: of the first machine."""
    folder = Path(place).absolute()
    lock = (folder / f"lock{machine}").open("a+")
    _take(lock, folder)
    lock.truncate(0)
    lock.write(f"{os.getpid()} {socket.gethostname()}")
    lock.flush()
    job = json.loads((folder / "job.json").read_text())
    stops: list[float] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stops.append(time.monotonic()))
    leaves: list[int] = []
    signal.signal(signal.SIGUSR1, lambda *_: leaves.append(1))
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    mine = [node for node in job["nodes"] if node["machine"] == int(machine)]
    threads = max(1, len(os.sched_getaffinity(0)) // max(1, len(mine)))
    kept = [Kept(folder, node, float(job["within_s"]), threads, host) for node in mine]
    while not all(node.is_over for node in kept):
        time.sleep(POLL_S)
        for node in kept:
            node.look(bool(stops or leaves))
            if leaves and not stops:
                node.signal(signal.SIGTERM)
        if stops:
            _stop(kept, time.monotonic() - stops[0], float(job["stop_s"]))


def _take(lock: Any, folder: Path) -> None:
    """Who only asks whether it is taken has it for a moment."""
    for _ in range(20):
        with suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(POLL_S)
    raise SystemExit(f"another keeper has {folder}")


def _stop(kept: list[Kept], since_s: float, stop_s: float) -> None:
    workers_run = any(node.is_running and not node.serves for node in kept)
    for node in kept:
        if since_s >= stop_s:
            node.signal(signal.SIGKILL)
        elif not (node.serves and workers_run and since_s < stop_s / 2):
            node.signal(signal.SIGINT)


class Kept:
    """One node: its process, and how often it was started again."""

    def __init__(self, folder: Path, node: Any, within_s: float, threads: int, host: str) -> None:
        self.name, self.serves = node["name"], node["serves"]
        self._folder, self._node, self._threads = folder, node, threads
        self._most, self._within_s = int(node["most"]), within_s
        self._host = host
        self._restarts: list[float] = []
        self._process: subprocess.Popen[bytes] | None = None
        self._again_at: float | None = None
        self._sent = 0
        self._untold = ""  # of its state, for lack of room
        self.is_over = False
        self._begin()

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def _begin(self) -> None:
        self._again_at = None
        given = {name: self._said(value) for name, value in self._node["environment"].items()}
        environment = {**os.environ, "PYTHONUNBUFFERED": "1", **given}
        if not any(os.environ.get(name) for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")):
            environment["OMP_NUM_THREADS"] = str(self._threads)
        keeper = os.getpid()
        try:
            with self._log().open("ab") as log:
                self._process = subprocess.Popen(
                    [self._said(word) for word in self._node["argv"]],
                    cwd=str(self._folder / "work"),
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                    preexec_fn=lambda: die_with(keeper),  # noqa: PLW1509 (the keeper has one thread)
                )
        except OSError as error:  # no room on the disk, or for a process: there may be some later
            self._again_at = time.monotonic() + BACKOFF_S[-1]
            self._tell("waiting", f"could not be started: {error.strerror or error}")
            return
        self._tell("running")

    def _said(self, word: str) -> str:
        """A word with what only this machine knows: `PYTHON`, and `{HOST}` within it."""
        return sys.executable if word == "PYTHON" else word.replace("{HOST}", self._host)

    def look(self, stopping: bool) -> None:
        """Note that it has ended, and start it again where it is to be."""
        now = time.monotonic()
        if self._untold:
            self._write()
        if self._process is not None:
            if self._process.poll() is None:
                return
            status = self._process.returncode
            _signal_group(self._process.pid, signal.SIGKILL)  # what it has left behind
            self._process = None
            self._take_end(status, now, stopping)
        elif stopping and self._again_at is not None:
            self._again_at, self.is_over = None, True
            self._tell("stopped")
        elif self._again_at is not None and now >= self._again_at:
            self._begin()

    def _take_end(self, status: int, now: float, stopping: bool) -> None:
        how = _how(status)
        recent = [at for at in self._restarts if now - at < self._within_s]
        was_lost = status < 0 or status == LOST_STATUS
        if stopping or not was_lost or len(recent) >= self._most:
            self.is_over = True
            given_up = was_lost and not stopping and self._most > 0
            more = (
                f", and was started again {len(recent)} times within {self._within_s:g} s" if given_up else ""
            )
            self._tell(
                "stopped" if stopping else "failed" if status else "ended", how + more if status else ""
            )
            return
        self._again_at = now + BACKOFF_S[min(len(recent), len(BACKOFF_S) - 1)]
        self._restarts.append(now)
        with suppress(OSError), self._log().open("a") as log:
            log.write(f"keeper: {self.name} {how}; it is started again\n")
        self._tell("waiting", how)

    def signal(self, number: int) -> None:
        """Once each."""
        if self._process is not None and number != self._sent:
            self._sent = number
            _signal_group(self._process.pid, number)

    def _log(self) -> Path:
        return self._folder / "logs" / str(self._node["file"])

    def _tell(self, state: str, how: str = "") -> None:
        told = {
            "state": state,
            "how": how,
            "since": time.time(),
            "restarts": len(self._restarts),
            "pid": self._process.pid if self._process else None,
            "host": os.environ.get("SLURMD_NODENAME") or socket.gethostname(),
        }
        self._untold = json.dumps(told)
        self._write()

    def _write(self) -> None:
        path = self._folder / "state" / self._node["file"]
        new = path.with_name(path.name + ".new")
        with suppress(OSError):
            new.write_text(self._untold)
            new.replace(path)
            self._untold = ""


def _how(status: int) -> str:
    if status >= 0:
        return f"ended with status {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


def _signal_group(group: int, number: int) -> None:
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def die_with(keeper: int) -> None:
    """In the child: have the kernel kill it when its keeper ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != keeper:
            os._exit(1)


if __name__ == "__main__":
    os.umask(0o077)
    keep(*sys.argv[1:])
