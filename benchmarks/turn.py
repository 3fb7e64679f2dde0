"""One turn of one cell: its processes are started, watched and ended, and what they wrote down is read."""

import math
import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.cells import OK, Cell
from benchmarks.grounds import Ground
from benchmarks.measures import Steps, Turn, measured_span, reached, read_steps
from benchmarks.processes import Meter
from benchmarks.systems.adapters import ROOT, Desk, Node, System
from benchmarks.training import Job

LOOK_S, LOOK_AT_STEPS_S = 0.25, 5.0
END_S = 30.0  # from the last step of all: some systems hang now and then while their nodes part
SERVERS_GRACE_S = 2.0
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
PASSED_ON = ("PATH", "HOME", "LANG", "TMPDIR")
NOT_BEGUN = "before all workers had begun"


def run_turn(cell: Cell, system: System, ground: Ground, python: Path, keep: bool = False) -> Turn:
    """Run a cell once. Whatever happens, none of its processes is left. `keep`: its folder, which is printed."""
    folder = Path(tempfile.mkdtemp(prefix="geomx-bench-"))
    load, at = os.getloadavg()[0], datetime.now(UTC).isoformat(timespec="seconds")
    desk, meter = Desk(cell, ground, python, folder, system.configs[cell.config]), Meter(folder.name)
    try:
        ground.begin()
        nodes, addresses = system.nodes(desk)
        desk.job.write_text(Job(cell, "", folder, desk.options, addresses).text)
        watched = _Watched(desk, meter, nodes)
        state, steps = watched.run(), read_steps(folder, cell.worker_names)
        span = measured_span(steps, cell)
        if state == OK and span is None and reached(steps, cell) is None:
            state = "it ended before a round could be measured"
        cpu_s = _modelled_cpu(steps, cell) or (meter.cpu_s(*span) if span else {})
        return Turn(at, load, state, steps, cpu_s, meter.peak_mb, watched.note)
    finally:
        if keep:
            print(f"  kept: {folder}")
        else:
            shutil.rmtree(folder, ignore_errors=True)


class _Watched:
    """The processes of one turn, from the first start until there is something to tell.

    `note`: of a turn that went well, but for what was noted.
    """

    def __init__(self, desk: Desk, meter: Meter, nodes: Sequence[Node]) -> None:
        self._desk, self._cell, self._meter, self._nodes = desk, desk.cell, meter, nodes
        self._running: dict[str, subprocess.Popen[Any]] = {}
        self.note = ""

    def run(self) -> str:
        """`ok`, or why there will be no figures."""
        look_at = time.monotonic() + LOOK_AT_STEPS_S
        until = time.monotonic() + self._cell.limit_s
        try:
            for node in self._nodes:
                self._start(node)
            while time.monotonic() < until:
                time.sleep(LOOK_S)
                self._meter.sample()
                if (state := self._state()) is not None:
                    return state
                if time.monotonic() >= look_at:
                    look_at = time.monotonic() + LOOK_AT_STEPS_S
                    if self._least_step() >= self._cell.steps:
                        look_at, until = math.inf, min(until, time.monotonic() + END_S)
            return self._overdue()
        finally:
            self._meter.end_all(SERVERS_GRACE_S)
            for process in self._running.values():
                process.wait()

    def _start(self, node: Node) -> None:
        env = {key: os.environ[key] for key in PASSED_ON if key in os.environ}
        env |= THREADS | {"PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        env |= self._meter.mark(node.name) | dict(node.env)
        with self._output(node).open("wb") as out:
            pipes = {"stdin": subprocess.DEVNULL, "stdout": out, "stderr": out}
            self._running[node.name] = self._desk.ground.start(node.site, node.argv, env=env, **pipes)

    def _state(self) -> str | None:
        """None while the turn goes on."""
        ended = {node.name: self._running[node.name].poll() for node in self._nodes}
        for node in self._nodes:
            if ended[node.name]:
                return f"{node.name} ended with status {ended[node.name]}: {self._last_words(node)}"
        if all(ended[node.name] is not None for node in self._nodes if not node.serves):
            return OK
        if self._cell.target_accuracy is None:
            return None
        first = read_steps(self._desk.folder, self._cell.worker_names[:1])
        return OK if reached(first, self._cell) else None

    def _overdue(self) -> str:
        """How far the workers had come, for a turn that was too slow or hung; `ok` if it hung behind its last step."""
        least, stopped = self._least_step(), f"it was stopped after {self._cell.limit_s:g} s"
        if least < 0:
            last = self._nodes[-1]
            return f"{stopped} {NOT_BEGUN}; {last.name}: {self._last_words(last)}"
        if least < self._cell.steps:
            return f"{stopped}, at step {least} of {self._cell.steps}"
        self.note = "all steps were made, but its processes did not end, and were stopped"
        return OK

    def _least_step(self) -> int:
        """To which step all workers have come; -1 before all have begun."""
        steps = read_steps(self._desk.folder, self._cell.worker_names)
        return min(steps[name][-1]["step"] if name in steps else -1 for name in self._cell.worker_names)

    def _output(self, node: Node) -> Path:
        return self._desk.folder / f"{node.name.replace('/', '.')}.out"

    def _last_words(self, node: Node) -> str:
        text = self._output(node).read_text("utf-8", "replace")
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        errors = [line for line in lines if "Error: " in line or "error: " in line or "Check failed" in line]
        return (errors or lines or ["it said nothing"])[-1][:300]


def _modelled_cpu(steps: Steps, cell: Cell) -> dict[str, float]:
    """What a simulated run says of its nodes in its measured rounds; empty for real ones."""
    told = [line["cpu"] for lines in steps.values() for line in lines if "cpu" in line]
    warm = min(cell.warmup * cell.every, len(told) - 1)
    return {node: told[-1][node] - told[warm][node] for node in told[-1]} if told else {}
