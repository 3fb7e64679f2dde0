"""Kills what a launcher leaves behind when it is killed itself.

Runs as a script of its own. The launcher writes `+PID` for each process group that it starts and `-PID` for each that
is gone. When the pipe closes, the launcher has ended: whatever group is still there is killed.
"""

import os
import signal
import sys
from contextlib import suppress
from typing import TextIO


def guard(launcher: TextIO) -> None:
    """Wait for the launcher's end, then kill the process groups that it has left."""
    groups: set[int] = set()
    for line in launcher:
        change = groups.add if line[0] == "+" else groups.discard
        change(int(line[1:]))
    for group in groups:
        with suppress(ProcessLookupError):
            os.killpg(group, signal.SIGKILL)


if __name__ == "__main__":
    guard(sys.stdin)
