"""The processes of a turn, with all that they start: what they use, and their end.

Each is started with a variable in its environment that its descendants inherit, whatever process group, session or
namespace they move to. So a turn's processes are found in /proc, and none is left behind.
"""

from __future__ import annotations

import bisect
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

MARK = "GEOMX_BENCH_NODE"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6
GRACE_S = 5.0


@dataclass
class Meter:
    """Follows the processes of one turn, whose marks are `TURN:NODE`."""

    turn: str
    peak_mb: dict[str, float] = field(default_factory=dict)
    samples: list[tuple[float, dict[str, float]]] = field(default_factory=list)
    _cpu_s: dict[tuple[int, str], tuple[str, float]] = field(default_factory=dict)  # by pid and start time

    def mark(self, node: str) -> dict[str, str]:
        """The variable by which a node's processes are known."""
        return {MARK: f"{self.turn}:{node}"}

    def sample(self) -> None:
        """Look at every process now."""
        now, rss_mb = time.monotonic(), dict[str, float]()
        for pid, node in self.living().items():
            stat = _stat(pid)
            if stat is not None:
                self._cpu_s[pid, stat[19]] = node, (int(stat[11]) + int(stat[12])) / TICKS_PER_S
                rss_mb[node] = rss_mb.get(node, 0.0) + int(stat[21]) * PAGE_MB
        for node, size in rss_mb.items():
            self.peak_mb[node] = max(size, self.peak_mb.get(node, 0.0))
        sums: dict[str, float] = {}
        for node, seconds in self._cpu_s.values():
            sums[node] = sums.get(node, 0.0) + seconds
        self.samples.append((now, sums))

    def cpu_s(self, begin: float, end: float) -> dict[str, float]:
        """CPU seconds by node between two moments of the monotonic clock; between two samples they grow evenly.

        Empty where the first worker has ended before the last one had warmed up.
        """
        if not self.samples or end <= begin:
            return {}
        first, last = self._cpu_at(begin), self._cpu_at(end)
        return {node: last[node] - first.get(node, 0.0) for node in sorted(last)}

    def _cpu_at(self, moment: float) -> dict[str, float]:
        """CPU seconds by node so far; before the first sample as in it, behind the last one as in that."""
        place = bisect.bisect(self.samples, moment, key=lambda sample: sample[0])
        since, before = self.samples[max(place - 1, 0)]
        until, behind = self.samples[min(place, len(self.samples) - 1)]
        share = (moment - since) / (until - since) if until > since else 0.0
        return {node: used + (behind.get(node, used) - used) * share for node, used in before.items()}

    def living(self) -> dict[int, str]:
        """The node of each process that lives."""
        return _living(self.turn)

    def end_all(self, grace_s: float = GRACE_S) -> None:
        """End every process that is left: politely, then not."""
        for number, patience_s in ((signal.SIGTERM, grace_s), (signal.SIGKILL, grace_s)):
            until = time.monotonic() + patience_s
            left = self.living()
            for pid in left:
                _signal(pid, number)
            while left and time.monotonic() < until:
                time.sleep(0.05)
                left = self.living()
            if not left:
                return


@contextmanager
def others_stopped() -> Iterator[None]:
    """Within it, every other process of this process's turn stands still; outside a turn there are none."""
    turn, _, _ = os.environ.get(MARK, "").partition(":")
    others = _living(turn).keys() - {os.getpid()} if turn else set()
    try:
        for pid in others:
            _signal(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in others:
            _signal(pid, signal.SIGCONT)


def _living(turn: str) -> dict[int, str]:
    """The node of each process of a turn."""
    found = {}
    want = f"{MARK}={turn}:".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit() and (mark := _mark(folder, want)) is not None:
            found[int(folder.name)] = mark
    return found


def _mark(folder: Path, want: bytes) -> str | None:
    """The node that a process belongs to; None for the processes of others, and for those that have ended."""
    try:
        environment = (folder / "environ").read_bytes()
    except OSError:
        return None
    start = environment.find(want)
    if start < 0:
        return None
    return environment[start + len(want) :].split(b"\0", 1)[0].decode()


def _stat(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat behind the name: [0] is the state."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else fields


def _signal(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
