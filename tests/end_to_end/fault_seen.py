"""What came of a fault: how each node ended, what it said, and what the workers' models and ledgers came to."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from fault_rows import BOUND_S, NODE, Fate, Row
from real_runs import RealRun

from geomx.observe.records import Record, RecordFiles

MOST_UNSURE = 2  # steps of a worker that was struck amid them: of the process before, and of the one behind


@dataclass(frozen=True)
class Seen:
    """What came of a row. `noticed_s`: until another node said a word of whoever was struck.

    `training_s`: until the steps went on, behind the longest pause. `again`: rounds that whoever was started again has
    repeated from its log.
    """

    row: Row
    fate: Fate
    noticed_s: float | None
    training_s: float | None
    again: int
    ended_s: float
    named: dict[str, list[str]]
    status: dict[str, int | None]
    said: dict[str, str]
    wrong: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        row = self.row
        return {
            "fault": str(row), "settings": list(row.settings), "fate": self.fate,
            "without": list(dict.fromkeys((*row.ended, *row.lost))) if self.fate == "goes on" else [],
            "noticed_s": self.noticed_s, "training_s": self.training_s, "again": self.again,
            "ended_s": round(self.ended_s, 2),
            "named": self.named, "status": self.status, "said": self.said, "wrong": list(self.wrong),
        }  # fmt: skip


def see(row: Row, run: RealRun, struck_at: float, wrong: Sequence[str] = ()) -> Seen:
    """Await the end of all nodes, and compare it with what is promised. `wrong`: what has been found before."""
    others = [node for node in run.nodes if node not in (*row.without, *row.ended)]
    held = [row.whom] if row.what == "idle" else []  # in the script's own code: it hears nothing
    hung = await_end(run, [node for node in others if node not in held], BOUND_S)
    ended_s = time.monotonic() - struck_at
    run.let_go()
    hung += await_end(run, held, BOUND_S)
    status = {node: run.processes[node].exitcode for node in others}
    printed = {node: run.printed(node) for node in others}
    named = {node: named_by(printed[node]) for node in others if status[node]}
    said = {node: last_word(printed[node]) for node in others if status[node]}
    is_gone = hung or any(status[node] for node in others if node not in (*row.lost, *row.either))
    fate: Fate = "gone" if is_gone else "goes on"
    found = [*wrong, *(f"{node} hangs" for node in hung)]
    if fate != row.fate:
        found.append(f"the run {'is gone' if fate == 'gone' else 'goes on'}")
    must_end = others if row.fate == "gone" and row.when in ("joining", "middle") else row.lost
    found += [f"{node} ends as if all were well" for node in must_end if status.get(node) == 0]
    for node, names in named.items():
        if node in hung:
            continue
        if not names:
            found.append(f"{node} names nobody: {said[node]}")
        elif not row.blamed.issuperset(names):
            found.append(f"{node} names {', '.join(names)}")
    found += [f"{node} prints a traceback" for node in others if "Traceback" in printed[node]]
    if row.continues and fate == row.fate == "goes on":
        found += _differences(row, run, [worker for worker in run.workers if status.get(worker) == 0])
    noticed = first_word((line for node in others for line in run.outputs[node]), row.blamed, struck_at)
    training_s = None
    if fate == "goes on" and row.when == "middle":
        training_s = goes_on(
            (run.outputs[worker] for worker in run.workers if worker not in row.ended), struck_at
        )
    again = sum(bool(record.fields.get("again")) for record in RecordFiles(run.records).new())
    return Seen(row, fate, noticed, training_s, again, ended_s, named, status, said, tuple(found))


def await_end(run: RealRun, nodes: Iterable[str], within_s: float) -> list[str]:
    """Those that have not ended in time."""
    deadline = time.monotonic() + within_s
    nodes = list(nodes)
    for node in nodes:
        run.processes[node].join(max(0.0, deadline - time.monotonic()))
    return [node for node in nodes if run.processes[node].is_alive()]


def _differences(row: Row, run: RealRun, workers: Sequence[str]) -> list[str]:
    """Between the models of these workers, which have ended well; and between what was counted and what they gave."""
    records = RecordFiles(run.records).new()
    finished = {record.node: record.fields for record in records if record.name == "finished"}
    if lacking := [worker for worker in workers if worker not in finished]:
        return [f"{', '.join(lacking)} did not finish"]
    found = []
    for what in ("parameters_sha256", "ledger"):
        by_cohort = {(finished[worker]["cohort"], str(finished[worker][what])) for worker in workers}
        if len(by_cohort) > len({cohort for cohort, _ in by_cohort}):
            found.append(f"{what} differs: {[(worker, finished[worker][what]) for worker in workers]}")
    if not row.is_in_step:
        for worker in workers:
            gave, ledger = finished[worker]["contributions"], finished[worker]["ledger"]
            counted = ledger[run.workers.index(worker)]
            if gave != counted and not run.is_below(worker, row.cut_off):
                found.append(f"{worker} gave {gave}, and the ledger says {counted}")
        return found
    for place, worker in enumerate(run.workers):
        ledger = finished[workers[0]]["ledger"][place]
        gave = steps_in(run.former.get(worker, ()))
        gave += (
            finished[worker]["contributions"] if worker in finished else steps_in(run.outputs.get(worker, ()))
        )
        in_rounds = _rounds_with(worker, records)
        unsure = MOST_UNSURE if run.is_below(worker, row.cut_off) else 0
        unwritten = MOST_UNSURE if "global/0" in row.ended else 0  # rounds that it had no time to record
        if abs(gave - ledger) > unsure or not -unwritten <= in_rounds - ledger <= unsure:
            found.append(f"{worker} gave {gave}, {in_rounds} rounds had it, and the ledger says {ledger}")
    return found


def _rounds_with(worker: str, records: Iterable[Record]) -> int:
    """In how many rounds the first shard has counted a worker."""
    rounds = (r.fields for r in records if r.name == "round" and r.node == "global/0")
    return sum(worker not in fields.get("absent", "").split(", ") for fields in rounds)


def steps_in(lines: Iterable[tuple[float, str]]) -> int:
    """How many steps a worker has told of."""
    return sum(line.startswith("step ") for _, line in lines)


def first_word(lines: Iterable[tuple[float, str]], blamed: frozenset[str], since: float) -> float | None:
    """How long after a fault somebody first said a word of whoever was struck."""
    times = [
        at - since
        for at, line in lines
        if at >= since and blamed.intersection(NODE.findall(line)) and "joined" not in line
    ]
    return round(min(times), 2) if times else None


def goes_on(workers: Iterable[Sequence[tuple[float, str]]], since: float) -> float | None:
    """How long after a fault the longest pause between two steps of a worker ended."""
    pauses = [
        (later - at, later - since)
        for lines in workers
        for at, later in pairwise([at for at, line in lines if line.startswith("step ")])
        if later > since
    ]
    return round(max(pauses)[1], 2) if pauses else None


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
