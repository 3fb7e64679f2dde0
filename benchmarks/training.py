"""What every training process of a benchmark shares: its job, and the watch that writes down its steps.

Runs in the environment of each system, so it imports nothing but the standard library. A process is started as
`python train.py JOB.json NAME`; NAME is `A/0` for the first worker of party A.

One line of JSON for each step goes to the job's folder: `t` (seconds of the monotonic clock, which all processes of the
machine share), `step` (from 1), `sent` and `received` (bytes over the WAN devices of this process's namespace so far),
`accuracy` after an evaluation and `until`, when it ended, and a `note` where there is something that readers of the
figures must know. Step 0 is the beginning.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks import processes

DEVICES = Path("/proc/self/net/dev")
SYNTHETIC_TENSORS = 10
RATE, SGD_RATE = 3e-3, 0.1  # Adam's, for every system alike; SGD's


@dataclass(frozen=True, slots=True)
class Job:
    """What a training process is to do, and its place among the others."""

    name: str
    party: int
    rank: int
    parties: int
    workers: int
    workload: str
    parameters: int
    batch: int
    step_ms: float
    steps: int
    evaluate_every: int
    target_accuracy: float | None
    options: dict[str, Any]
    addresses: dict[str, str]
    folder: Path

    @property
    def place(self) -> int:
        """This worker among all of the run."""
        return self.party * self.workers + self.rank

    @property
    def everyone(self) -> int:
        """How many workers the run has."""
        return self.parties * self.workers


def begin(argv: list[str] | None = None) -> tuple[Job, Watch]:
    """The job that this process was started for, and a watch for it."""
    path, name = (sys.argv if argv is None else argv)[1:3]
    fields = json.loads(Path(path).read_text())
    party, _, rank = name.partition("/")
    place = {"party": fields.pop("party_names").index(party), "rank": int(rank)}
    job = Job(name=name, folder=Path(path).parent, **place, **fields)
    return job, Watch(job)


@dataclass
class Watch:
    """Writes down each step of one process."""

    job: Job
    step_count: int = 0
    note: str = ""  # goes with the next line
    _file: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        self._file = record_path(self.job.folder, self.job.name).open("a", buffering=1)

    def steps(self, accuracy: Callable[[], float] | None = None) -> Iterator[int]:
        """The numbers of the job's steps, from 1; each is written down when the loop comes back."""
        self.start()
        for step in range(1, self.job.steps + 1):
            yield step
            self.step(accuracy)

    def start(self) -> None:
        """The first step begins."""
        self._write(self._line())

    def step(self, accuracy: Callable[[], float] | None = None) -> None:
        """One step has ended. The first worker evaluates when it is due; all others stand still meanwhile."""
        self.step_count += 1
        line = self._line()
        self._write(line)
        every = self.job.evaluate_every
        if accuracy is not None and every and self.job.place == 0 and self.step_count % every == 0:
            with processes.others_stopped():
                value = accuracy()
            self._write(line | {"accuracy": value, "until": time.monotonic()})

    def _line(self) -> dict[str, Any]:
        sent, received = wan_counters()
        return {"t": time.monotonic(), "step": self.step_count, "sent": sent, "received": received}

    def _write(self, line: dict[str, Any]) -> None:
        if self.note:
            line, self.note = line | {"note": self.note}, ""
        self._file.write(json.dumps(line) + "\n")


def record_path(folder: Path, name: str) -> Path:
    """Where the steps of a worker are written down."""
    return folder / f"{name.replace('/', '.')}.steps.jsonl"


def wan_counters(devices: Path = DEVICES) -> tuple[int, int]:
    """Bytes that have left and entered this process's namespace, over every device but the loopback."""
    sent = received = 0
    for line in devices.read_text().splitlines()[2:]:
        device, _, numbers = line.partition(":")
        if device.strip() != "lo":
            columns = numbers.split()
            received, sent = received + int(columns[0]), sent + int(columns[8])
    return sent, received


def synthetic_sizes(parameters: int) -> list[int]:
    """The elements of each tensor of a synthetic model: ten of nearly one size."""
    small, larger = divmod(parameters, SYNTHETIC_TENSORS)
    sizes = [small + (place < larger) for place in range(SYNTHETIC_TENSORS)]
    return [size for size in sizes if size]


def wait_for(path: Path, limit_s: float = 120.0) -> str:
    """The text of a file that another process will write; raises TimeoutError."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if path.exists():
            return path.read_text()
        time.sleep(0.02)
    raise TimeoutError(f"{path.name} was not written within {limit_s:.0f} s")


def publish(path: Path, text: str) -> None:
    """Write a file that others `wait_for`, whole from the first moment."""
    part = path.with_suffix(".part")
    part.write_text(text)
    part.rename(path)
