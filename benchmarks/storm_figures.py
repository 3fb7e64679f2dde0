"""From what a run of `storm.py` has left to its figures. Pure: no process, no clock.

A round counts if it closed at the global server behind the first one and before the data ended. Who took part in it is
what the server says (in its record `round`, `counted` is how many, and `absent` names who did not), or where it does
not, its weight by that of one contribution.

A worker *lives* in a round if no fault lay upon it at any moment since the round before had closed. A fault lies upon
it until it is undone: until a worker that was started again has attached, a stopped one goes on, a link is whole, a
server that was started again has done its imports. What is not known is None.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from statistics import fmean
from typing import Any, NamedTuple

from benchmarks.storm_faults import Act, Fault
from geomx.observe.records import Record

Line = dict[str, Any]
Row = dict[str, Any]

GLOBAL = "global/0"
LOST = {"lost": "peer", "awaited": "peer", "failed": "node"}  # records that say so, and of which field
LAST_SHARE = 0.1  # of the samples so far: over these the training loss is averaged
POINTS = 100  # of a curve


class Round(NamedTuple):
    """`t`: when it closed. `weight`: samples. `origins`: the workers that took part."""

    t: float
    turn: int
    weight: float
    origins: frozenset[str] | None


@dataclass(slots=True)
class Seen:
    """What one run has left. Times in seconds of the monotonic clock.

    `ended`: of each node that ended badly and by itself, how. `unit`: samples of a whole contribution. `began`: when
    the first round closed, 0 if none did; `until`: when the data ended. `acts`: what was done of the faults. `lines`:
    by worker, see `storm_train.py`.
    """

    ended: dict[str, str]
    workers: Sequence[str]
    unit: float
    began: float
    until: float
    faults: Sequence[Fault]
    acts: Sequence[Act]
    records: Sequence[Record]
    lines: dict[str, list[Line]]

    @property
    def all_rounds(self) -> list[Round]:
        """Those that closed at the global server, in the order of time."""
        found = []
        for record in self.records:
            fields = record.fields
            if record.name == "round" and record.node == GLOBAL and fields.get("kind") == "gradient":
                found.append(Round(record.t, fields["turn"], fields["weight"], self._origins(fields)))
        return found

    def _origins(self, fields: Line) -> frozenset[str] | None:
        """Who took part in a round by what the global server says of it; None where it does not say."""
        cohort = fields.get("cohort", "")
        all_of = {worker for worker in self.workers if cohort in ("", worker, worker.partition("/")[0])}
        absent = set(fields["absent"].split(", ")) if "absent" in fields else set()
        took_part = frozenset(all_of - absent)
        return took_part if len(took_part) == fields.get("counted") else None

    @property
    def rounds(self) -> list[Round]:
        """Those that count."""
        return [r for r in self.all_rounds if self.began < r.t <= self.until and r.weight > 0]

    def time_of(self, fault: int, what: str) -> float | None:
        """When that was done of a fault."""
        return next((act.t for act in self.acts if act.fault == fault and act.what == what), None)


# -- a whole run ------------------------------------------------------------------------------------------------


def figures(seen: Seen) -> Row:
    """Of one run, without its last weights' loss."""
    rounds, curve = seen.rounds, curve_of(seen)
    shares = list(shares_of_living(seen))
    return {
        "state": next(iter(seen.ended.values()), "ok"),
        "ended": seen.ended,
        "rounds": len(rounds),
        "contributions": sum(contributions(seen, each) for each in rounds),
        "living_share_mean": fmean(shares) if shares else None,
        "living_share_least": min(shares, default=None),
        "longest_without_round_s": longest_gap_s(seen),
        "samples": curve[-1][0] if curve else 0,
        "curve": curve,
        "ledger": ledger(seen),
        "faults": [fault_figures(seen, number) for number in range(len(seen.faults))],
    }


def contributions(seen: Seen, closed: Round) -> float:
    """How many a round had."""
    return closed.weight / seen.unit if closed.origins is None else float(len(closed.origins))


def longest_gap_s(seen: Seen) -> float | None:
    """The longest time between two rounds, or to the end of the data."""
    moments = [seen.began, *(each.t for each in seen.rounds), seen.until]
    return max(b - a for a, b in itertools.pairwise(moments)) if seen.began else None


def shares_of_living(seen: Seen) -> Iterator[float]:
    """Of each round: how many of those that lived through it took part; nothing of a round where none did."""
    spans: dict[str, list[tuple[float, float]]] = {worker: [] for worker in seen.workers}
    for number, fault in enumerate(seen.faults):
        since = seen.time_of(number, fault.acts[0])
        if since is not None and fault.worker in spans:
            spans[fault.worker].append((since, over(seen, number)))
    before = seen.began
    for closed in seen.rounds:
        living = {
            worker
            for worker, lying in spans.items()
            if not any(since < closed.t and until > before for since, until in lying)
        }
        before = closed.t
        if living:
            came = contributions(seen, closed) if closed.origins is None else len(closed.origins & living)
            yield min(1.0, came / len(living))


def counted_lines(lines: Sequence[Line]) -> Iterator[Line]:
    """A worker's contributions that the ledger had counted by the time it wrote them down; all without a ledger."""
    before: int | None = None
    for line in lines:
        now = line.get("counted")
        if "turn" in line and (now is None or before is None or now > before):
            yield line
        before = (now or 0) if "attached" in line else now


def curve_of(seen: Seen) -> list[tuple[float, float]]:
    """The training loss by samples: all that were counted up to some turn, and the mean loss since the point before."""
    turns: dict[int, list[Line]] = {}
    for lines in seen.lines.values():
        for line in counted_lines(lines):
            if line["samples"]:
                turns.setdefault(line["turn"], []).append(line)
    points, total, weighted, since = [], 0.0, 0.0, 0.0
    every = max(1, -(-len(turns) // POINTS))
    for number, turn in enumerate(sorted(turns), 1):
        total += sum(line["samples"] for line in turns[turn])
        weighted += sum(line["samples"] * line["loss"] for line in turns[turn])
        if number % every == 0 or number == len(turns):
            points.append((total, weighted / (total - since)))
            weighted, since = 0.0, total
    return points


def loss_at(curve: Sequence[Sequence[float]], samples: float) -> float | None:
    """The mean training loss over the last tenth of so many samples; None where there is no point in it."""
    edges = [0.0, *(point[0] for point in curve)]
    parts = [
        (upto - since, loss)
        for since, (upto, loss) in zip(edges, curve, strict=False)
        if (1.0 - LAST_SHARE) * samples < upto <= samples
    ]
    total = sum(weight for weight, _ in parts)
    return sum(weight * loss for weight, loss in parts) / total if total else None


def ledger(seen: Seen) -> Row:
    """Each worker's contributions as the ledger has them, and as they were counted beside it.

    `own`: what each worker has pushed, by its own lines and the end of its data. `rounds`: in how many rounds the
    global server names it; None where it names nobody. `in_doubt`: killed between a push and its line, at most one each
    time. `torn`: turns that it was lost amid, of which the ledger's slice and others may count different workers.
    `exact`: whether the ledger is the rounds' count, but for those turns; or, where nobody is named, no more than a
    worker may have pushed, and without faults as many; None where there is no ledger.
    """
    finished = {r.node: r.fields for r in seen.records if r.name == "finished"}
    told = [fields["ledger"] for fields in finished.values() if fields.get("ledger")]
    places = [max(column) for column in zip(*told, strict=True)]
    kept = dict(zip(seen.workers, places, strict=False)) if told else None
    own = {worker: _pushed(seen.lines.get(worker, []), finished.get(worker)) for worker in seen.workers}
    killed = [
        f.worker for n, f in enumerate(seen.faults) if seen.time_of(n, "kill") and f.what == "kill worker"
    ]
    in_doubt = {worker: killed.count(worker) for worker in seen.workers}
    every = [closed.origins for closed in seen.all_rounds]
    named = None
    if every and None not in every:
        named = {worker: sum(worker in origins for origins in every if origins) for worker in seen.workers}
    whom = [r.fields["whom"].split(", ") for r in seen.records if r.name == "torn" and r.node == GLOBAL]
    torn = {worker: sum(worker in names for names in whom) for worker in seen.workers}
    exact = None
    if kept is not None and named is not None:
        exact = all(abs(kept[worker] - named[worker]) <= torn[worker] for worker in seen.workers)
    elif kept is not None:
        most = {worker: own[worker] + in_doubt[worker] for worker in seen.workers}
        exact = kept == own if not seen.faults else all(kept[w] <= most[w] for w in seen.workers)
    return {"exact": exact, "kept": kept, "own": own, "rounds": named, "in_doubt": in_doubt, "torn": torn}


def _pushed(lines: Sequence[Line], finished: Row | None) -> int:
    """By all of a worker's processes; behind the end of the last one's data by what it says itself."""
    pushed = sum("turn" in line for line in lines)
    if finished is None:
        return pushed
    last = list(itertools.takewhile(lambda line: "attached" not in line, reversed(lines)))
    return int(pushed - len(last) + finished["contributions"])


# -- a fault ----------------------------------------------------------------------------------------------------


def fault_figures(seen: Seen, number: int) -> Row:
    """What became of one fault, in seconds.

    `noticed_s`: until some node said that the victim is lost. `others_next_s`: until the next round without it, or
    where it was back before, until the next one after it was noticed.
    `again_s`: from when its process was started again, went on, or its link was whole, until its next contribution
    that was counted; `again_after_imports_s`: from when its process had done its imports. `trains_s`: from there, or
    where no process was started from the same moment as `again_s`, until its first step that counts for one. None where
    the party's next fault came before that, too.
    """
    fault = seen.faults[number]
    since = seen.time_of(number, fault.acts[0])
    row: Row = {"what": fault.what, "party": fault.party, "at_s": fault.at_s}
    names = ("noticed_s", "others_next_s", "again_s", "again_after_imports_s", "trains_s")
    if since is None:
        return row | dict.fromkeys(names)
    later = [
        seen.time_of(n, f.acts[0]) for n, f in enumerate(seen.faults) if f.party == fault.party and n > number
    ]
    next_fault = min((t for t in later if t is not None), default=inf)
    noticed = next(
        (r.t for r in seen.records if since <= r.t < next_fault and _says_lost(r, fault.node)), None
    )
    others_next = _others_next(seen, fault, since, noticed, next_fault)
    undone = seen.time_of(number, fault.acts[1])
    again = None if undone is None else _again(seen, fault.worker, max(undone, since), next_fault)
    imported = None if undone is None or fault.acts[1] != "start" else _clock(seen, fault.node, undone)
    if imported is not None and again is not None and imported > again:
        imported = None
    ready = imported or undone
    trains = None if ready is None else _trains(seen, fault.worker, max(ready, since), next_fault)
    values = (noticed, others_next, again, again, trains)
    starts = (since, since, undone, imported, ready)
    return row | {
        name: None if value is None or start is None else value - start
        for name, value, start in zip(names, values, starts, strict=True)
    }


def over(seen: Seen, number: int) -> float:
    """From when on a fault lies upon nobody any more; see the module's text."""
    fault = seen.faults[number]
    undone = seen.time_of(number, fault.acts[1])
    if undone is None:
        return inf
    if fault.what == "kill worker":
        attached = (line["t"] for line in seen.lines.get(fault.worker, []) if "attached" in line)
        return next((t for t in attached if t > undone), inf)
    if fault.what == "kill server":
        imported = _clock(seen, fault.node, undone)
        return inf if imported is None else imported
    return undone


def _clock(seen: Seen, node: str, since: float) -> float | None:
    """When a process that was started then had done its imports: it begins its records."""
    clocks = (r.t for r in seen.records if r.name == "clock" and r.node == node and r.t > since)
    return next(clocks, None)


def _says_lost(record: Record, node: str) -> bool:
    return record.name in LOST and record.fields.get(LOST[record.name]) == node


def _others_next(
    seen: Seen, fault: Fault, since: float, noticed: float | None, before: float
) -> float | None:
    """See `fault_figures`."""
    closed = [each for each in seen.all_rounds if since < each.t < before]
    without = [each.t for each in closed if _misses(seen, each, fault)]
    behind = [each.t for each in closed if noticed is not None and each.t > noticed]
    return next(iter(without or behind), None)


def _misses(seen: Seen, closed: Round, fault: Fault) -> bool:
    if closed.origins is None:
        return contributions(seen, closed) < len(seen.workers) - 0.5
    return fault.worker not in closed.origins


def _trains(seen: Seen, worker: str, since: float, before: float) -> float | None:
    """When a worker took a step behind its return: behind the roster that let it in, if there was one."""
    let_in = [
        r.t for r in seen.records if r.name == "roster" and worker in r.fields.get("joined", "").split(", ")
    ]
    since = max((t for t in let_in if since < t < before), default=since)
    steps = (r.t for r in seen.records if r.name == "step" and r.node == worker and since < r.t < before)
    return next(steps, None)


def _again(seen: Seen, worker: str, since: float, before: float) -> float | None:
    """When a round closed with this worker; where nobody is named, in which the ledger counted it."""
    closed_at = {closed.turn: closed.t for closed in seen.all_rounds}
    moments = [closed.t for closed in seen.all_rounds if closed.origins and worker in closed.origins]
    if not moments:
        lines = counted_lines(seen.lines.get(worker, []))
        moments = [closed_at.get(line["turn"], line["t"]) for line in lines]
    return next((t for t in moments if since < t < before), None)
