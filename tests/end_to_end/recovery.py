"""How long a run needs to recover, as real processes show it on this machine.

    python tests/end_to_end/recovery.py [--times N] [--only WORDS]

A run of two parties with three workers, each step 20 ms long, on loopback; the settings are geomx's own. Processes are
forked from one that has imported PyTorch, so the seconds are without imports. `noticed`: until another node has said
so. `training`: until whoever was struck, or came, has taken a step; of a server, until all workers have. `paused`: the
longest pause between two steps of the others. Medians; `out/recovery.json` has every value.
"""

from __future__ import annotations

import argparse
import json
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from itertools import pairwise
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1])]

from fault_seen import first_word  # noqa: E402
from real_runs import RealRun  # noqa: E402
from test_standby import Pair  # noqa: E402

from geomx.launch.local.ports import Ports  # noqa: E402

OUT = Path("out/recovery.json")
OWN = ("lan.timeout_s=5", "wan.timeout_s=15", "lan.heartbeat_s=1", "wan.heartbeat_s=3")
CONTINUE = (*OWN, "run.on_loss=continue", "limits.start_s=60")
Times = dict[str, float | None]


def seconds(run: RealRun, since: float, struck: str, who: Iterable[str]) -> Times:
    """`who`: the workers whose next step counts."""
    workers, others = list(who), [worker for worker in run.workers if worker != struck]
    steps = {
        worker: [at for at, line in run.outputs[worker] if line.startswith("step ")] for worker in run.outputs
    }
    pauses = [b - a for worker in others for a, b in pairwise(steps[worker]) if b > since]
    words = (line for node in run.outputs if node != struck for line in run.outputs[node])
    return {
        "noticed": first_word(words, frozenset([struck]), since),
        "training": max(_next(steps[worker], since, worker in others) for worker in workers) - since,
        "paused": max(pauses),
    }


def _next(steps: list[float], since: float, goes_on: bool) -> float:
    """The first step behind a moment; of whoever goes on, behind its longest pause."""
    if not goes_on:
        return min(at for at in steps if at > since)
    return max((b - a, b) for a, b in pairwise(steps) if b > since)[1]


def restarted(node: str, *settings: str, shards: int = 1) -> Callable[[Path], Times]:
    """A node is killed, and started again at once."""

    def measure(folder: Path) -> Times:
        run = RealRun(folder, workers=(2, 1), shards=shards)
        every = (*CONTINUE, *(setting.format(folder=folder) for setting in settings))
        with closing(run):
            run.start(run.nodes, *every, script=["endless"])
            run.until("A/1", "step 20\n")
            since = time.monotonic()
            run.signal(node, signal.SIGKILL)
            run.processes[node].join()
            run.start([node], *every, script=["endless"] if node in run.workers else [])
            who = [node] if node in run.workers else run.workers
            _go_on(run, who, since)
            return seconds(run, since, node, who)

    return measure


def takes_over(folder: Path) -> Times:
    """A global server is killed for which another stands by."""
    run = Pair(folder)
    run.settings = (*run.settings, *OWN, "store.lease_s=4")
    with closing(run):
        run.start(run.nodes, *run.settings, script=["endless"])
        run.stand_by()
        run.until("standby", "stands by")
        run.until("B/0", "step 20\n")
        since = time.monotonic()
        run.signal("global/0", signal.SIGKILL)
        _go_on(run, run.workers, since)
        return seconds(run, since, "global/0", run.workers)


def comes(folder: Path) -> Times:
    """A party comes that nobody's description names."""
    run, settings = RealRun(folder, workers=(2, 1)), (*CONTINUE, "run.open=true")
    with closing(run), Ports() as ports:
        run.start(run.nodes, *settings, script=["endless"])
        run.until("A/1", "step 20\n")
        since = time.monotonic()
        run.start_guest(f"127.0.0.1:{ports.hold()}", *settings)
        run.until("guest-1/0", "step ")
        time.sleep(1.0)
        return seconds(run, since, "guest-1/0", ["guest-1/0"])


def stopped(node: str) -> Callable[[Path], Times]:
    """A node stands still: its connections stay."""

    def measure(folder: Path) -> Times:
        run = RealRun(folder, workers=(2, 1))
        with closing(run):
            run.start(run.nodes, *CONTINUE, script=["endless"])
            run.until("A/1", "step 20\n")
            since = time.monotonic()
            run.signal(node, signal.SIGSTOP)
            others = [worker for worker in run.workers if not worker.startswith(node)]
            _go_on(run, others, since, 25.0)
            return seconds(run, since, node, others)

    return measure


def _go_on(run: RealRun, workers: Iterable[str], since: float, within_s: float = 30.0) -> None:
    """Wait until these have taken steps behind a pause."""
    time.sleep(1.5)
    for worker in workers:
        lines = len(run.outputs[worker])
        assert run.goes_on(worker, lines, within_s), run.report()


CASES: dict[str, Callable[[Path], Times]] = {
    "worker restarted": restarted("A/1"),
    "local server restarted": restarted("A"),
    "global server restarted": restarted("global/0", "store.url=file://{folder}/store"),
    "one of two, by its copy": restarted("global/1", "run.replicas=1", shards=2),
    "standby takes over": takes_over,
    "newcomer joins": comes,
    "worker stopped (LAN)": stopped("A/1"),
    "local server stopped (WAN)": stopped("B"),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--times", type=int, default=10)
    parser.add_argument("--only", default="", help="cases whose name has these words")
    arguments = parser.parse_args()
    found: dict[str, list[Times]] = {}
    print(f"{'':28} {'noticed':>9} {'training':>9} {'paused':>9}   medians of {arguments.times}, in seconds")
    for name, measure in CASES.items():
        if arguments.only not in name:
            continue
        for _ in range(arguments.times):
            with tempfile.TemporaryDirectory() as folder:
                found.setdefault(name, []).append(measure(Path(folder)))
        print(
            f"{name:28} {' '.join(f'{_median(found[name], key):>9}' for key in found[name][0])}", flush=True
        )
    OUT.parent.mkdir(exist_ok=True)
    OUT.write_text(json.dumps(found, indent=1))


def _median(times: list[Times], key: str) -> str:
    values = [each[key] for each in times]
    known = [value for value in values if value is not None]
    return f"{statistics.median(known):.2f}" if known else "-"


if __name__ == "__main__":
    main()
