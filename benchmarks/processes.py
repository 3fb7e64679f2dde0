"""The processes of a turn, with all that they start: what they use, and their end.

Each is started with a variable in its environment that its descendants inherit, whatever process group, session or
namespace they move to. So a turn's processes are found in /proc, and none is left behind.
"""

import os
import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

MARK = "GEOMX_BENCH_NODE"
TICKS_PER_S = os.sysconf("SC_CLK_TCK")
PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 1e6


class Meter:
    """Follows the processes of one turn, whose marks are `TURN:NODE`."""

    def __init__(self, turn: str) -> None:
        self.turn = turn
        self.peak_mb = Counter[str]()
        self.samples: list[tuple[float, dict[str, float]]] = []  # moments, and CPU seconds by node until then
        self._cpu_s: dict[
            tuple[int, str], tuple[str, float]
        ] = {}  # by pid and start time, of the ended as well

    def mark(self, node: str) -> dict[str, str]:
        """The variable by which a node's processes are known."""
        return {MARK: f"{self.turn}:{node}"}

    def sample(self) -> None:
        """Look at every process now."""
        now, rss_mb, cpu_s = time.monotonic(), Counter[str](), Counter[str]()
        for pid, node in living(self.turn).items():
            with suppress(OSError):
                # behind the name, which is in brackets; [0] is the state
                stat = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                if stat[0] != "Z":
                    self._cpu_s[pid, stat[19]] = node, (int(stat[11]) + int(stat[12])) / TICKS_PER_S
                    rss_mb[node] += int(stat[21]) * PAGE_MB
        for node, seconds in self._cpu_s.values():
            cpu_s[node] += seconds
        self.peak_mb |= rss_mb  # the larger of both
        self.samples.append((now, cpu_s))

    def cpu_s(self, begin: float, end: float) -> dict[str, float]:
        """CPU seconds by node between two moments of the monotonic clock; between two samples they grow evenly.

        Empty where the first worker has ended before the last one had warmed up.
        """
        from numpy import interp  # noqa: PLC0415 (whoever trains has no meter, and may have no numpy)

        if not self.samples or end <= begin:
            return {}
        moments = [moment for moment, _ in self.samples]
        used = {
            node: [cpu_s.get(node, 0.0) for _, cpu_s in self.samples] for node in sorted(self.samples[-1][1])
        }
        return {node: float(interp(end, moments, s) - interp(begin, moments, s)) for node, s in used.items()}

    def end_all(self, grace_s: float = 5.0) -> None:
        """End every process that is left: politely, then not."""
        for number in (signal.SIGTERM, signal.SIGKILL):
            until = time.monotonic() + grace_s
            left = living(self.turn)
            _signal(left, number)
            while left and time.monotonic() < until:
                time.sleep(0.05)
                left = living(self.turn)


@contextmanager
def others_stopped() -> Iterator[None]:
    """Within it, every other process of this process's turn stands still; outside a turn there are none."""
    turn, _, _ = os.environ.get(MARK, "").partition(":")
    others = living(turn).keys() - {os.getpid()} if turn else set()
    try:
        _signal(others, signal.SIGSTOP)
        yield
    finally:
        _signal(others, signal.SIGCONT)


def living(turn: str) -> dict[int, str]:
    """The node of each process of a turn that lives."""
    found, want = {}, f"{MARK}={turn}:".encode()
    for path in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # a process of somebody else, or one that has ended
            _, mark, behind = path.read_bytes().partition(want)
            if mark:
                found[int(path.parent.name)] = behind.split(b"\0", 1)[0].decode()
    return found


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, number)
