"""The engine `local`: nodes on this machine, which go on when the terminal is closed."""

from __future__ import annotations

import subprocess
import sys

from geomx.launch.engines.contract import Job
from geomx.launch.engines.machines import OnMachines, Shell


class Local(OnMachines):
    """Every node of a job on this machine."""

    def __init__(self, job: Job) -> None:
        super().__init__(job, [Here()])


class Here(Shell):
    """This machine's own shell."""

    name = "this machine"
    python = sys.executable

    def run(self, command: str, data: bytes) -> tuple[int, bytes, str]:
        """See `Shell`."""
        done = subprocess.run(["sh", "-c", command], input=data, capture_output=True, check=False)
        return done.returncode, done.stdout, done.stderr.decode("utf-8", "replace")

    def by_hand(self, command: str) -> str:
        """See `Shell`."""
        return f"nohup setsid {command} &"
