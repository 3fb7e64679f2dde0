"""What every training process of a benchmark shares: its job, and the watch that writes down its steps.

Runs in the environment of each system, so it imports nothing but the standard library. A process is started as
`python -m benchmarks.training JOB.json NAME`, which calls `main(job)` of its system; NAME is `A/0` for the first worker
of party A. A line of JSON for each step goes to the job's folder: `t` (the monotonic clock, which all processes share),
`step` (0 is the beginning), `sent` and `received` (bytes over the WAN devices of the process's namespace so far),
`accuracy` after an evaluation and `until`, when it ended, and a `note` for the readers of the figures.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import processes
from benchmarks.cells import Cell

RATE, SGD_RATE = 3e-3, 0.1  # Adam's, for every system alike; SGD's


@dataclass(frozen=True, slots=True)
class Job:
    """What a process is to do, and its place among the others. `options`: of the cell's configuration."""

    cell: Cell
    name: str
    folder: Path = Path()
    options: dict[str, Any] = field(default_factory=dict)
    addresses: dict[str, str] = field(default_factory=dict)

    @classmethod
    def here(cls) -> Job:
        """The one that this process was started for."""
        path, name = sys.argv[1:3]
        told = json.loads(Path(path).read_text())
        return cls(Cell(**told.pop("cell")), name, Path(path).parent, **told)

    @property
    def text(self) -> str:
        """As JSON, of every process of a turn."""
        return json.dumps({"cell": asdict(self.cell), "options": self.options, "addresses": self.addresses})

    @property
    def party(self) -> str:
        return self.name.partition("/")[0]

    @property
    def place(self) -> int:
        """This worker among all of the run."""
        return self.cell.worker_names.index(self.name)

    @property
    def everyone(self) -> int:
        """How many workers the run has."""
        return self.cell.parties * self.cell.workers


class Watch:
    """Writes down each step of one worker. `note`: goes with the next line."""

    def __init__(self, job: Job) -> None:
        self.note, self._job, self._step = "", job, 0
        self._file = record_path(job.folder, job.name).open("a", buffering=1)

    def steps(self, accuracy: Callable[[], float] | None = None) -> Iterator[int]:
        """The numbers of the job's steps, from 1; each is written down when the loop comes back."""
        self.start()
        for step in range(1, self._job.cell.steps + 1):
            yield step
            self.step(accuracy)

    def start(self) -> None:
        """The first step begins."""
        self._write()

    def step(self, accuracy: Callable[[], float] | None = None) -> None:
        """One step has ended. The first worker evaluates when it is due; all others stand still meanwhile."""
        self._step += 1
        line, every = self._write(), self._job.cell.evaluate_every
        if accuracy is not None and every and self._step % every == 0 and self._job.place == 0:
            with processes.others_stopped():
                value = accuracy()
            self._write(line | {"accuracy": value, "until": time.monotonic()})

    def _write(self, line: dict[str, Any] | None = None) -> dict[str, Any]:
        if line is None:
            sent, received = wan_counters()
            line = {"t": time.monotonic(), "step": self._step, "sent": sent, "received": received}
        note, self.note = {"note": self.note} if self.note else {}, ""
        self._file.write(json.dumps(line | note) + "\n")
        return line


def record_path(folder: Path, name: str) -> Path:
    """Where the steps of a worker are written down."""
    return folder / f"{name.replace('/', '.')}.steps.jsonl"


def wan_counters(devices: Path = Path("/proc/self/net/dev")) -> tuple[int, int]:
    """Bytes that have left and entered this process's namespace, over every device but the loopback."""
    lines = (line.partition(":") for line in devices.read_text().splitlines()[2:])
    counted = [numbers.split() for device, _, numbers in lines if device.strip() != "lo"]
    return sum(int(columns[8]) for columns in counted), sum(int(columns[0]) for columns in counted)


def synthetic_sizes(parameters: int) -> list[int]:
    """The elements of each tensor of a synthetic model: ten of nearly one size."""
    small, larger = divmod(parameters, 10)
    return [small + 1] * larger + ([small] * (10 - larger) if small else [])


def wait_for(path: Path, limit_s: float = 120.0) -> str:
    """The text of a file that another process will write; raises TimeoutError."""
    until = time.monotonic() + limit_s
    while not path.exists():
        if time.monotonic() >= until:
            raise TimeoutError(f"{path.name} was not written within {limit_s:.0f} s")
        time.sleep(0.02)
    return path.read_text()


def publish(path: Path, text: str) -> None:
    """Write a file that others `wait_for`, whole from the first moment."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)


if __name__ == "__main__":
    job = Job.here()
    importlib.import_module(f"benchmarks.systems.{job.cell.system}.train").main(job)
