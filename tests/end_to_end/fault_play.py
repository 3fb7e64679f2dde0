"""Plays a row of the table of faults."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from pathlib import Path

from fault_rows import BOUND_S, FOLDER, FOR_EVER, LAUNCHER_ENDS, LOST_S, SIGNALS, USUAL, Row
from fault_seen import Seen, await_end, first_word, last_word, named_by, see
from launched_runs import LAUNCHER, LaunchedRun, is_alive
from real_runs import Proxy, RealRun

MOVES_S = 60.0  # within so long a worker that takes part takes some steps


def play(row: Row, folder: Path) -> Seen:
    """Start a run, let the fault happen, and see how each of the others ends."""
    steps = FOR_EVER if row.fate == "gone" and row.when == "middle" else 150
    run = RealRun(folder, steps, workers=row.workers, shards=row.shards)
    if row.launched:
        return _play_launched(row, run)
    with closing(run), ExitStack() as links:
        struck_at, wrong = _strike(row, run, links)
        if row.what != "idle":
            run.let_go()
        if _is_endless(row) and row.fate == "goes on":
            wrong += _still(run, [worker for worker in run.workers if worker not in (*row.lost, *row.ended)])
            run.end_data()
        return see(row, run, struck_at, wrong)


def _is_endless(row: Row) -> bool:
    """Whether the data ends when those that go on have been seen to do so, and not before."""
    return row.continues and row.when in ("joining", "middle")


def _still(run: RealRun, workers: Iterable[str]) -> list[str]:
    """Of those workers that are to train, who does not, in words."""
    since = {worker: len(run.outputs[worker]) for worker in workers}
    return [f"{w} takes no steps" for w, lines in since.items() if not run.goes_on(w, lines, MOVES_S)]


def _play_launched(row: Row, run: RealRun) -> Seen:
    words = ["endless"] if row.continues else []
    # Each node imports PyTorch.
    slow = "limits.start_s=100", f"lan.timeout_s={LOST_S}", f"wan.timeout_s={LOST_S}"
    settings = tuple(each.replace(FOLDER, str(run.folder)) for each in (*USUAL, *row.settings, *slow))
    launched = LaunchedRun(run, *settings, words=words)
    wrong: list[str] = []
    try:
        launched.until(f"{run.workers[0]}.* step 10\n")
        pids = launched.pids() | {LAUNCHER: launched.process.pid}
        struck_at = time.monotonic()
        os.kill(pids[row.whom], SIGNALS[row.what])
        if row.fate == "goes on":
            wrong = _go_on(row, run, launched)
        status = launched.wait(BOUND_S)
        ended_s = time.monotonic() - struck_at
        while (left := [n for n, pid in pids.items() if n != LAUNCHER and is_alive(pid)]) and (
            time.monotonic() - struck_at < BOUND_S
        ):
            time.sleep(0.05)
        wrong += [f"{node} is left" for node in left]
        ends = LAUNCHER_ENDS[row.what] if row.whom == LAUNCHER else 1 if row.fate == "gone" else 0
        if status != ends:
            wrong.append(f"{LAUNCHER} {'hangs' if status is None else f'ends with {status}'}")
        named, said = named_by(launched.printed), last_word(launched.printed)
        if row.fate == "goes on":
            wrong += _misreported(row, run, launched) if status == 0 else []
        elif row.whom != LAUNCHER and named != [row.whom]:
            wrong.append(f"{LAUNCHER} names {', '.join(named) or 'nobody'}")
    finally:
        launched.close()
        run.close()
    noticed = first_word(launched.lines, frozenset(row.ends), struck_at)
    told = ({LAUNCHER: named}, {LAUNCHER: status}, {LAUNCHER: said})
    return Seen(row, "goes on" if status == 0 else "gone", noticed, None, 0, ended_s, *told, tuple(wrong))


def _go_on(row: Row, run: RealRun, launched: LaunchedRun) -> list[str]:
    """The others go on, and whoever is started again does; then the data ends. What is wrong with that."""
    others = [worker for worker in run.workers if not run.is_below(worker, row.cut_off)]
    wrong = [f"{worker} takes no steps" for worker in others if not launched.goes_on(worker, MOVES_S)]
    again, since = None, len(launched.lines)
    if row.what == "restart":
        again = launched.start_again(row.whom)
        launched.until(f"{row.whom} is back", since)
    run.end_data()
    if again is not None and (status := again.wait(BOUND_S)):
        wrong.append(f"{row.whom}, which was started again, ends with {status}")
    return wrong


def _misreported(row: Row, run: RealRun, launched: LaunchedRun) -> list[str]:
    """What is wrong with the report of a run that has gone on."""
    report, lost = launched.report, set() if row.what == "term" else {*row.ends, *row.lost} - {*run.shards}
    found = [] if report["lost"].keys() == lost else [f"lost are {report['lost']}"]
    if not isinstance(report["parameters_sha256"], str):
        found.append(f"other weights: {report['parameters_sha256']}")
    return found


# -- the fault ---------------------------------------------------------------------------------------------------


def _strike(row: Row, run: RealRun, links: ExitStack) -> tuple[float, list[str]]:
    """Bring the run to the moment, and do it; gives when, on the monotonic clock, and what is wrong meanwhile."""
    start = _starter(row, run)
    if row.what == "absent":
        start(node for node in run.nodes if node not in row.ends)
        return time.monotonic(), []
    if row.is_of_link:
        return _cut(row, run, start, links)
    _bring(row, run, start)
    struck_at, wrong = time.monotonic(), []
    if row.what == "idle":
        return struck_at, []
    for node in row.ends:
        run.signal(node, SIGNALS[row.what])
    if row.what == "restart":
        for node in row.ends:
            run.processes[node].join()
    if row.what in ("sleep", "restart"):
        time.sleep(row.for_s)  # a process that stands still has nothing to wait on
        wrong = _without(row, run)
    if row.what == "sleep":
        for node in row.ends:
            run.signal(node, signal.SIGCONT)
    elif row.what == "restart":
        start(row.ends, gates=False)
    if row.when == "joining":
        start(node for node in run.nodes if node not in run.processes and node not in row.without)
    return struck_at, wrong


def _without(row: Row, run: RealRun) -> list[str]:
    """What is wrong with those who are to go on without whoever is away."""
    is_lost = row.for_s > (0 if row.what == "restart" else LOST_S)
    if not (row.continues and row.fate == "goes on" and row.when == "middle" and is_lost) or row.is_awaited:
        return []
    return _still(run, [w for w in run.workers if w not in row.lost and not run.is_below(w, row.cut_off)])


def _starter(row: Row, run: RealRun, *more: str) -> Callable[..., None]:
    settings = tuple(each.replace(FOLDER, str(run.folder)) for each in (*USUAL, *row.settings, *more))
    words = (*row.words, *(["endless"] if _is_endless(row) else ["shard"] if row.continues else []))

    def start(nodes: Iterable[str], gates: bool = True) -> None:
        for node in nodes:
            held = [f"gate={place}" for who, place in _gates(row, run) if who == node and gates]
            run.start([node], *settings, script=[*words, *row.only.get(node, ()), *held])

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


def _cut(row: Row, run: RealRun, start: Callable[..., None], links: ExitStack) -> tuple[float, list[str]]:
    """Put a link between the two that can be cut, and cut it amid the steps."""
    dialler, server = row.ends
    link = links.enter_context(closing(Proxy(run.ports[server])))
    key = "global.addresses=[%s]" if server in run.shards else f"party.{server}.address=%s"
    start([node for node in run.nodes if node != dialler])
    _starter(row, run, key % f'"127.0.0.1:{link.port}"')([dialler])
    run.until(run.workers[0], "step 10\n")
    struck_at = time.monotonic()
    way = {"up": "up", "down": "down"}.get(row.what, "both")
    link.cut(reset=row.what == "reset", way=way)
    await_end(run, run.nodes, row.for_s)
    wrong = _without(row, run)
    link.heal()
    return struck_at, wrong
