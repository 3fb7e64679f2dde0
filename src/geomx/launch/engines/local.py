"""The engine `local`: nodes on this machine, which go on when the terminal is closed."""

from __future__ import annotations

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

    def words(self, command: str) -> list[str]:
        """See `Shell`."""
        return ["sh", "-c", command]

    def by_hand(self, command: str) -> str:
        """See `Shell`."""
        return command
