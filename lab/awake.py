"""No core sleeps while something is measured.

A core without work sleeps, and a virtual machine's wakes up when its host lets it: milliseconds late on some, whatever
the priority of who waits. A packet comes late then, BBR takes the burst behind it for what the link carries, and a
round of raw sockets takes 1.13 × the floor in place of 1.08. So each core has a process that is busy as long as nobody
else wants it (SCHED_IDLE), and gives way at once. It counts in the machine's load, and in nobody's CPU time.

It is of the session that measures: between sessions Linux divides a core evenly, whatever their processes want.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")
_TURNS = 1_000_000  # between two looks at whether the parent is still there


@contextmanager
def cores() -> Iterator[bool]:
    """Within the context they are awake; False where not, as this control group's time is counted out."""
    may = hasattr(os, "SCHED_IDLE") and not _has_quota()
    processes: list[subprocess.Popen[bytes]] = []
    try:
        for core in os.sched_getaffinity(0) if may else ():
            processes.append(_busy())
            os.sched_setscheduler(processes[-1].pid, os.SCHED_IDLE, os.sched_param(0))
            os.sched_setaffinity(processes[-1].pid, {core})
        yield bool(processes)
    finally:
        for process in processes:
            process.kill()
            process.wait()


def _has_quota() -> bool:
    return _QUOTA.exists() and not _QUOTA.read_text().startswith("max")


def _busy() -> subprocess.Popen[bytes]:
    command = [sys.executable, "-I", str(Path(__file__).resolve()), str(os.getpid())]
    return subprocess.Popen(command, process_group=0)  # out of reach of Ctrl-C


def main() -> None:
    """Be busy until the parent is gone: `awake.py PARENT`."""
    while os.getppid() == int(sys.argv[1]):
        for _ in range(_TURNS):
            pass


if __name__ == "__main__":
    main()
