"""One fault in one run of real processes: what is done to whom, and what the others then do and say.

A run has party A with two workers and party B with one. A fault strikes one node, or one link, at one of these:

    joining   a server that listens, and nobody has come yet; a worker that has joined, and whose model the others await
    middle    amid the steps
    end       a worker that has trained and not yet left, when the others have; a server with one worker left below it
    left      a worker that has left, and whose process goes on
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from launched_runs import LAUNCHER, LaunchedRun, is_alive
from real_runs import Proxy, RealRun

What = Literal[
    "interrupt", "kill", "stop", "term", "sleep", "restart", "cut", "reset", "up", "down", "absent", "idle"
]
When = Literal["joining", "middle", "end", "left"]
Fate = Literal["gone", "goes on"]

BOUND_S = 150.0  # after a fault and the end of what it lasts: who has not ended by then hangs
TIMEOUT_S = 2.0
USUAL = (f"lan.timeout_s={TIMEOUT_S}", f"wan.timeout_s={TIMEOUT_S}", "limits.start_s=12", "limits.stop_s=5")
PATIENT = ("lan.timeout_s=100", "wan.timeout_s=100", "limits.start_s=100", "limits.stop_s=100")
FOR_EVER = 1_000_000
NODE = re.compile(r"(?<![\w/])(global/\d+|[AB](?:/\d+)?)(?![\w/])")
SIGNALS = {
    "kill": signal.SIGKILL,
    "restart": signal.SIGKILL,
    "stop": signal.SIGSTOP,
    "sleep": signal.SIGSTOP,
    "term": signal.SIGTERM,
    "interrupt": signal.SIGINT,
}

LAUNCHER_ENDS = {"kill": -signal.SIGKILL, "interrupt": 130, "term": 130}


@dataclass(frozen=True)
class Row:
    """A fault, and what is promised of it.

    `whom`: a node, or the two ends of a link as `A/0-A`, whoever dials first. `for_s`: how long a cut lasts, a stopped
    process stays so, a killed one is away. Who may be named for it is the node, or the link's two ends.
    """

    what: What
    whom: str
    when: When = "middle"
    fate: Fate = "gone"
    after: str = "step 10"  # where the last worker is, in the middle
    for_s: float = 0.0
    settings: tuple[str, ...] = ()
    words: tuple[str, ...] = ()
    only: dict[str, tuple[str, ...]] = field(default_factory=dict, hash=False)  # words of one worker's own
    workers: tuple[int, ...] = (2, 1)
    shards: int = 1
    without: tuple[str, ...] = ()  # nodes that are never started
    launched: bool = False  # by `geomx run`, which tells what came of it
    note: str = ""

    def __str__(self) -> str:
        for_s = f" {self.for_s:g} s" if self.for_s else ""
        note = self.note or ("geomx run" if self.launched and self.whom != LAUNCHER else "")
        note = f" ({note})" if note else ""
        return f"{self.what}{for_s} {self.whom} {self.when}{note}"

    @property
    def ends(self) -> tuple[str, ...]:
        return tuple(self.whom.split("-"))

    @property
    def victim_ends(self) -> bool:
        """Whether the node that is struck ends by that."""
        return self.what in ("kill", "stop", "term", "absent")


@dataclass(frozen=True)
class Seen:
    """What came of a row. `noticed_s`: until another node said a word of whoever was struck."""

    row: Row
    fate: Fate
    noticed_s: float | None
    ended_s: float
    named: dict[str, list[str]]
    status: dict[str, int | None]
    said: dict[str, str]
    wrong: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        row = self.row
        return {
            "fault": str(row), "settings": list(row.settings), "fate": self.fate,
            "noticed_s": self.noticed_s, "ended_s": round(self.ended_s, 2),
            "named": self.named, "status": self.status, "said": self.said, "wrong": list(self.wrong),
        }  # fmt: skip


def play(row: Row, folder: Path) -> Seen:
    """Start a run, let the fault happen, and see how each of the others ends."""
    steps = FOR_EVER if row.fate == "gone" and row.when == "middle" else 150
    run = RealRun(folder, steps, workers=row.workers, shards=row.shards)
    if row.launched:
        return _play_launched(row, run)
    try:
        struck_at = _strike(row, run)
        if row.what != "idle":
            run.let_go()
        return _see(row, run, struck_at)
    finally:
        run.close()


def _play_launched(row: Row, run: RealRun) -> Seen:
    launched = LaunchedRun(run, *USUAL, "limits.start_s=100", *row.settings)  # each imports PyTorch
    try:
        launched.until(f"{run.workers[0]}.* step 10\n")
        pids = launched.pids() | {LAUNCHER: launched.process.pid}
        struck_at = time.monotonic()
        os.kill(pids[row.whom], SIGNALS[row.what])
        status = launched.wait(BOUND_S)
        ended_s = time.monotonic() - struck_at
        while (left := [n for n, pid in pids.items() if n != LAUNCHER and is_alive(pid)]) and (
            time.monotonic() - struck_at < BOUND_S
        ):
            time.sleep(0.05)
    finally:
        launched.close()
        run.close()
    wrong = [f"{node} is left" for node in left]
    if status != (LAUNCHER_ENDS[row.what] if row.whom == LAUNCHER else 1):
        wrong.append(f"{LAUNCHER} {'hangs' if status is None else f'ends with {status}'}")
    named, said = named_by(launched.printed), last_word(launched.printed)
    if row.whom != LAUNCHER and named != [row.whom]:
        wrong.append(f"{LAUNCHER} names {', '.join(named) or 'nobody'}")
    noticed = _first_word(launched.lines, frozenset(row.ends), struck_at)
    told = ({LAUNCHER: named}, {LAUNCHER: status}, {LAUNCHER: said})
    return Seen(row, "gone", noticed, ended_s, *told, tuple(wrong))


# -- the fault ---------------------------------------------------------------------------------------------------


def _strike(row: Row, run: RealRun) -> float:
    """Bring the run to the moment, and do it; gives when, on the monotonic clock."""
    start = _starter(row, run)
    if row.what == "absent":
        start(node for node in run.nodes if node != row.whom)
        return time.monotonic()
    if row.what in ("cut", "reset", "up", "down"):
        return _cut(row, run, start)
    _bring(row, run, start)
    struck_at = time.monotonic()
    if row.what == "idle":
        return struck_at
    run.signal(row.whom, SIGNALS[row.what])
    if row.what == "sleep":
        time.sleep(row.for_s)  # a process that stands still has nothing to wait on
        run.signal(row.whom, signal.SIGCONT)
    elif row.what == "restart":
        run.processes[row.whom].join()
        time.sleep(row.for_s)
        start([row.whom], gates=False)
    if row.when == "joining":
        start(node for node in run.nodes if node not in run.processes and node not in row.without)
    return struck_at


def _starter(row: Row, run: RealRun, *more: str) -> Callable[..., None]:
    settings = (*USUAL, *row.settings, *more)

    def start(nodes: Iterator[str] | list[str], gates: bool = True) -> None:
        for node in nodes:
            held = [f"gate={place}" for who, place in _gates(row, run) if who == node and gates]
            run.start([node], *settings, script=[*row.words, *row.only.get(node, ()), *held])

    return start


def _gates(row: Row, run: RealRun) -> list[tuple[str, str]]:
    """Which worker waits where until the fault has happened."""
    if row.when == "joining" and row.whom in run.workers:
        return [(row.whom, "joined")]
    if row.when == "middle" and row.what == "idle":
        return [(row.whom, "step 10")]
    if row.when == "end":
        return [(_last(row, run), "trained")]
    return [(row.whom, "closed")] if row.when == "left" else []


def _last(row: Row, run: RealRun) -> str:
    """The worker that has not left yet in the end: the one that is struck, or one below the server that is."""
    if row.whom in run.workers:
        return row.whom
    return next(w for w in reversed(run.workers) if row.whom in run.shards or w.startswith(f"{row.whom}/"))


def _bring(row: Row, run: RealRun, start: Callable[..., None]) -> None:
    """To the moment of the fault."""
    if row.when == "joining" and row.whom in run.servers:
        first = [node for node in run.servers if row.whom not in run.shards or node == row.whom]
        start(first)
        for node in first:
            run.until(node, "listening")
        for party in set(first) - set(run.shards) if row.whom not in run.shards else ():
            run.until("global/0", f" {party} joined")
        return
    started = [node for node in run.nodes if node not in row.without]
    start(started)
    if row.when == "joining":
        for worker in run.workers:
            if worker in started:
                run.until(worker, "joined\n")
                run.until(
                    worker.partition("/")[0], f" {worker} joined"
                )  # the script may be ahead of its node
    elif row.when == "middle":
        run.until(run.workers[-1], f"{row.after}\n")
    elif row.when == "left":
        run.until(row.whom, "closed\n")
    else:
        last = _last(row, run)
        run.until(last, "trained\n")
        for worker in run.workers:
            if worker != last:
                run.until(worker, "closed\n")


def _cut(row: Row, run: RealRun, start: Callable[..., None]) -> float:
    """Put a link between the two that can be cut, and cut it amid the steps."""
    dialler, server = row.ends
    with _proxy(run.ports[server]) as link:
        key = "global.addresses=[%s]" if server in run.shards else f"party.{server}.address=%s"
        start([node for node in run.nodes if node != dialler])
        _starter(row, run, key % f'"127.0.0.1:{link.port}"')([dialler])
        run.until(run.workers[0], "step 10\n")
        struck_at = time.monotonic()
        way = {"up": "up", "down": "down"}.get(row.what, "both")
        link.cut(reset=row.what == "reset", way=way)
        _await_end(run, run.nodes, row.for_s)
        link.heal()
        _await_end(run, run.nodes, BOUND_S)
    return struck_at


@contextmanager
def _proxy(target: int) -> Iterator[Proxy]:
    link = Proxy(target)
    try:
        yield link
    finally:
        link.close()


# -- what is seen of it ---------------------------------------------------------------------------------------------


def _await_end(run: RealRun, nodes: list[str], within_s: float) -> list[str]:
    """Those that have not ended in time."""
    deadline = time.monotonic() + within_s
    for node in nodes:
        run.processes[node].join(max(0.0, deadline - time.monotonic()))
    return [node for node in nodes if run.processes[node].is_alive()]


def _see(row: Row, run: RealRun, struck_at: float) -> Seen:
    others = [
        node for node in run.nodes if node not in row.without and not (row.victim_ends and node == row.whom)
    ]
    held = [row.whom] if row.what == "idle" else []  # in the script's own code: it hears nothing
    hung = _await_end(run, [node for node in others if node not in held], BOUND_S)
    ended_s = time.monotonic() - struck_at
    run.let_go()
    hung += _await_end(run, held, BOUND_S)
    blamed = frozenset(row.ends)
    status = {node: run.processes[node].exitcode for node in others}
    printed = {node: run.printed(node) for node in others}
    named = {node: named_by(printed[node]) for node in others if status[node]}
    said = {node: last_word(printed[node]) for node in others if status[node]}
    fate: Fate = "gone" if any(status.values()) or hung else "goes on"
    wrong = [f"{node} hangs" for node in hung]
    if fate != row.fate:
        wrong.append(f"the run {'is gone' if fate == 'gone' else 'goes on'}")
    if row.fate == "gone" and row.when in ("joining", "middle"):  # else workers, and servers, may have left
        wrong += [f"{node} ends as if all were well" for node in others if status[node] == 0]
    for node, names in named.items():
        if node in hung:
            continue
        if not names:
            wrong.append(f"{node} names nobody: {said[node]}")
        elif not blamed.issuperset(names):
            wrong.append(f"{node} names {', '.join(names)}")
    wrong += [f"{node} prints a traceback" for node in others if "Traceback" in printed[node]]
    noticed = _first_word((line for node in others for line in run.outputs[node]), blamed, struck_at)
    return Seen(row, fate, noticed, ended_s, named, status, said, tuple(wrong))


def _first_word(lines: Iterable[tuple[float, str]], blamed: frozenset[str], since: float) -> float | None:
    """How long after a fault somebody first said a word of whoever was struck."""
    times = [
        at - since
        for at, line in lines
        if at >= since and blamed.intersection(NODE.findall(line)) and "joined" not in line
    ]
    return round(min(times), 2) if times else None


def last_word(printed: str) -> str:
    """A node's last line of its own failure, as it was printed."""
    return ([line for line in printed.splitlines() if line.startswith("geomx: ")] or [""])[-1]


def named_by(printed: str) -> list[str]:
    """Whom a node's last word holds responsible."""
    word = last_word(printed)
    ways = (
        r"geomx: (\S+)(?: and (\S+))? is lost:",
        r"geomx: \S+ refused (\S+):",
        r" waited [\d.]+ s for (.*) to join",
        r"geomx: the run failed at (\S+)(?: and (\S+))?:",
        r"geomx: (\S+) was asked to end",
    )
    found = next((found for way in ways if (found := re.search(way, word))), None)
    names = " ".join(name or "" for name in found.groups()) if found else ""
    return NODE.findall(re.sub(r"\([^)]*\)", "", names))
