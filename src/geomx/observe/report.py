"""What remains of a run: the report, a dict for JSON, and the table that a run ends with.

Sources: workers' `finished` (or, of a worker that did not get that far, its `step`s) and `log`; local servers' `usage`
for bytes, counted on the socket, headers included; `round` of local servers for how many synchronization rounds there
were and how long one took, from its first contribution to its last answer; their `link` for what events have changed.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from statistics import fmean, median
from typing import Any, Literal

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from geomx.config import Run
from geomx.observe.files import write_whole
from geomx.observe.progress import wan_bytes
from geomx.observe.records import Record
from geomx.observe.sentences import counted, sentence

Fields = dict[str, Any]
Report = dict[str, Any]
How = Literal["well", "interrupted", "failed"]

LEAST_SAVED = 0.005  # less would be shown as 0%
CHANGES_SHOWN = 4
SCRIPT = ("optimizer", "keeps", "elementwise", "on_server", "clips")  # what a worker tells of its script


class Totals:
    """Sums up the records of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.finished: dict[str, Fields] = {}
        self.usage: dict[str, Fields] = {}
        self.rss_mb: dict[str, float] = defaultdict(float)
        self.made: Counter[str] = Counter()  # steps of each worker
        self.samples: Counter[str] = Counter()
        self.loss: dict[str, float | None] = {}
        self.accuracy: dict[str, float | None] = {}
        self.parameters = 0
        self.script: Fields = {}  # what a worker told of it as it attached
        self.round_s: dict[str, list[float]] = defaultdict(list)
        self.answered: Counter[tuple[str, str]] = Counter()  # rounds, by server and cohort
        self.compute_s: dict[str, list[float]] = defaultdict(list)  # of each worker's steps
        self.backward_s: dict[str, list[float]] = defaultdict(list)
        self.staleness: list[int] = []  # of each round of the global servers
        self.link_changes: list[Fields] = []
        self.skipped: dict[str, set[int]] = defaultdict(
            set
        )  # by node: the steps of which it has left something out
        self._take: dict[str, Callable[[Record], None]] = {
            "finished": self._finished,
            "usage": self._usage,
            "step": self._step,
            "log": self._log,
            "attached": self._attached,
            "round": self._round,
            "link": self._link,
            "skipped": self._skipped,
        }

    def take(self, record: Record) -> None:
        """Count a record in."""
        take = self._take.get(record.name)
        if take is not None:
            take(record)

    @property
    def rounds(self) -> int:
        """Synchronization rounds, of the cohort that has had most."""
        return max(self.answered.values(), default=0)

    @property
    def round_s_median(self) -> float | None:
        seconds = [s for server in self._run.servers for s in self.round_s[server]]
        return median(seconds) if seconds else None

    def steps_of(self, worker: str) -> int:
        return int(self.finished[worker]["steps"]) if worker in self.finished else self.made[worker]

    def samples_of(self, worker: str) -> int:
        return int(self.finished[worker]["samples"]) if worker in self.finished else self.samples[worker]

    def traffic(self) -> dict[str, int]:
        """Bytes over the WAN and LAN edges of all parties; up is towards the root."""
        sums = dict.fromkeys(("wan_bytes_up", "wan_bytes_down", "lan_bytes_up", "lan_bytes_down"), 0)
        for server in self._run.servers:
            usage = self.usage.get(server, {"sent": {}, "received": {}})
            up, down = wan_bytes(usage)
            sums["wan_bytes_up"] += up
            sums["wan_bytes_down"] += down
            sums["lan_bytes_up"] += sum(usage["received"].values()) - down
            sums["lan_bytes_down"] += sum(usage["sent"].values()) - up
        return sums

    def round_floor_s(self) -> float | None:
        """Seconds that a round takes at least on the slowest emulated link: bytes / rate, and one round trip.

        None where links have changed.
        """
        if self.link_changes:
            return None
        floors = []
        for server in self._run.servers:
            link, usage = self._run.link_of(server), self.usage.get(server)
            if link is not None and link.rate_mbps and usage is not None and self.rounds:
                megabits = 8e-6 * max(wan_bytes(usage)) / self.rounds
                floors.append(2e-3 * link.delay_ms + megabits / link.rate_mbps)
        return max(floors, default=None)

    def ledger(self) -> bool | None:
        """Whether each contribution was counted exactly once; None where there is no ledger, or not of every worker.

        A worker has seen all of its own cohort. Of others, that need not have come when it left.
        """
        ended = [self.finished[worker] for worker in self._run.workers if worker in self.finished]
        if len(ended) < len(self._run.workers) or not all(fields.get("ledger") for fields in ended):
            return None
        made = [fields["contributions"] for fields in ended]
        return all(
            fields["ledger"][place] == made[place]
            for fields in ended
            for place, other in enumerate(ended)
            if other["cohort"] == fields["cohort"]
        )

    @property
    def cohorts(self) -> list[str]:
        """Those of the workers that have finished, in their order."""
        return list(dict.fromkeys(fields["cohort"] for fields in self.finished.values()))

    def weights(self) -> str | dict[str, str] | None:
        """The one hash of all workers; that of each cohort, or where workers of one differ of each worker."""
        by_cohort: dict[str, set[str]] = defaultdict(set)
        for fields in self.finished.values():
            if (
                fields["parameters_sha256"] is not None
            ):  # else it holds a part, and the first of its party tells
                by_cohort[fields["cohort"]].add(fields["parameters_sha256"])
        if any(len(hashes) > 1 for hashes in by_cohort.values()):
            found = {node: fields["parameters_sha256"] for node, fields in sorted(self.finished.items())}
            return {node: sha256 for node, sha256 in found.items() if sha256 is not None}
        every = {cohort: next(iter(hashes)) for cohort, hashes in sorted(by_cohort.items())}
        return every if len(every) > 1 else next(iter(every.values()), None)

    def _finished(self, record: Record) -> None:
        self.finished[record.node] = record.fields

    def _usage(self, record: Record) -> None:
        self.usage[record.node] = record.fields
        self.rss_mb[record.node] = max(self.rss_mb[record.node], record.fields["rss_mb"])

    def _step(self, record: Record) -> None:
        self.samples[record.node] += record.fields["samples"]
        self.made[record.node] += 1
        for of_steps, key in ((self.compute_s, "compute_s"), (self.backward_s, "backward_s")):
            if record.fields.get(key) is not None:
                of_steps[record.node].append(record.fields[key])

    def _log(self, record: Record) -> None:
        if "loss" in record.fields:
            self.loss[record.node] = record.fields["loss"]
        if "accuracy" in record.fields:
            self.accuracy[record.node] = record.fields["accuracy"]

    def _attached(self, record: Record) -> None:
        self.parameters = max(self.parameters, record.fields["parameters"])
        self.script = {key: record.fields[key] for key in SCRIPT if key in record.fields}

    def _link(self, record: Record) -> None:
        if record.node == record.fields["party"]:  # the other end tells the same
            self.link_changes.append(record.fields)

    def _skipped(self, record: Record) -> None:
        self.skipped[record.node].add(record.fields["step"])

    def _round(self, record: Record) -> None:
        if record.fields.get("kind", "gradient") == "gradient":
            self.round_s[record.node].append(record.fields["seconds"])
            self.answered[record.node, record.fields.get("cohort", "")] += 1
            if record.node in self._run.shard_names:
                self.staleness.append(record.fields.get("staleness", 0))


def make_report(
    run: Run, records: Iterable[Record], wall_s: float, ended: How = "well", failure: str | None = None
) -> Report:
    """The report of a run, or of what one has done that did not end well.

    `wall_s`: from the first process's start to the last one's end, in seconds. `failure`: what it failed with.
    """
    totals = Totals(run)
    for record in records:
        totals.take(record)
    finished = totals.finished.values()
    return {
        "ended": ended,
        "failure": failure,
        "algorithm": run.sync.policy,
        "codec_up": run.wan.codec_up,
        "codec_down": run.wan.codec_down,
        "parties": len(run.parties),
        "workers": len(run.workers),
        "shards": run.run.shards,
        "steps": max(map(totals.steps_of, run.workers)),
        "rounds": totals.rounds,
        "samples": sum(map(totals.samples_of, run.workers)),
        "wall_s": _rounded(wall_s),
        "train_s": _rounded(max((fields["train_s"] for fields in finished), default=None)),
        "final_loss": _mean(totals.loss),
        "final_accuracy": _mean(totals.accuracy),
        **totals.traffic(),
        "parameters": max((fields["parameters"] for fields in finished), default=totals.parameters),
        "parameters_sha256": totals.weights(),
        "script": totals.script,
        "cohorts": totals.cohorts,
        "staleness_mean": _rounded(fmean(totals.staleness)) if totals.staleness else None,
        "staleness_max": max(totals.staleness, default=None),
        "round_s_median": _rounded(totals.round_s_median),
        "round_floor_s": _rounded(totals.round_floor_s()),
        "link_changes": totals.link_changes,
        "compute_s_median": _medians(totals.compute_s),
        "backward_s_median": _medians(totals.backward_s),
        "skipped": {node: len(steps) for node, steps in sorted(totals.skipped.items())},
        "counted_exactly_once": totals.ledger(),
        "node_cpu_s": {node: fields["cpu_s"] for node, fields in sorted(totals.usage.items())},
        "node_rss_mb": dict(sorted(totals.rss_mb.items())),
        "config": run.as_dict(),
    }


def _medians(of_workers: dict[str, list[float]]) -> dict[str, float]:
    return {worker: round(median(seconds), 6) for worker, seconds in sorted(of_workers.items())}


def _rounded(seconds: float | None) -> float | None:
    """To microseconds: clocks know no more."""
    return None if seconds is None else round(seconds, 6)


def _mean(last: dict[str, float | None]) -> float | None:
    """The mean over the workers that told a number; None where one of them is not finite, or none told one."""
    values = list(last.values())
    if not values or any(value is None or not math.isfinite(value) for value in values):
        return None
    return fmean(value for value in values if value is not None)


def write_report(report: Report, path: Path) -> None:
    """Write a report as JSON, which only the user may read: it has the script's arguments. Raises `FileUnwritable`."""
    write_whole(path, msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n", private=True)


def closing_table(report: Report) -> Table:
    """What a run ends with on the terminal."""
    table = Table(box=SIMPLE_HEAD, show_header=False, pad_edge=False)
    table.add_column(style="dim")
    table.add_column()
    for name, value in closing_rows(report):
        table.add_row(name, value)
    return table


def closing_rows(report: Report) -> list[tuple[str, str]]:
    """The closing table's rows; what is not known has none."""
    counts = ((report["parties"], "party"), (report["workers"], "worker"), (report["shards"], "shard"))
    rounds, train_s = report["rounds"], report["train_s"]
    rows = [
        (
            "run",
            f"{report['config']['run']['name']}, {report['algorithm']}, "
            + ", ".join(counted(*count) for count in counts),
        ),
        (
            "ended",
            "" if report["ended"] == "well" else f"{report['ended']}: this is what was done until then",
        ),
        ("steps", f"{report['steps']:,} of each worker" if report["steps"] != rounds else ""),
        ("rounds", f"{rounds:,}" + _if(report["round_s_median"], ", {:.4g} s each (median)")),
        (
            "samples",
            f"{report['samples']:,}" + _if(train_s and report["samples"] / train_s, ", {:,.0f} a second"),
        ),
        ("time", f"{report['wall_s']:.1f} s" + _if(train_s, ", of which training {:.1f} s")),
        ("loss", _if(report["final_loss"], "{:.4f}")),
        ("accuracy", _if(report["final_accuracy"], "{:.2%}")),
        ("WAN", _traffic(report, "wan", rounds)),
        ("LAN", _traffic(report, "lan", rounds)),
        ("saved", _saved(report)),
        ("cost", _cost(report)),
        ("links", _links(report)),
        ("staleness", _staleness(report)),
        ("skipped", _skipped(report)),
        ("parameters", f"{report['parameters']:,}  {_hash(report)}"),
        (
            "exactly once",
            {None: "", True: "proved by the ledger", False: "NO: the ledger differs"}[
                report["counted_exactly_once"]
            ],
        ),
    ]
    return [(name, value) for name, value in rows if value]


def _if(value: float | None, form: str) -> str:
    return "" if value is None else form.format(value)


def _traffic(report: Report, tier: str, rounds: int) -> str:
    up, down = report[f"{tier}_bytes_up"], report[f"{tier}_bytes_down"]
    each = f", {size((up + down) / rounds)} a round" if rounds else ""
    return f"{size(up)} up, {size(down)} down{each}"


def _saved(report: Report) -> str:
    """Without local servers, what crosses the LANs would cross the WAN."""
    wan = report["wan_bytes_up"] + report["wan_bytes_down"]
    flat = report["lan_bytes_up"] + report["lan_bytes_down"]
    saved = 1 - wan / flat if flat else 0.0
    if saved < LEAST_SAVED:
        return ""
    return f"{saved:.0%} of the {size(flat)} that would cross the WAN without local servers"


def _cost(report: Report) -> str:
    """How near a round comes to what its bytes take on the link."""
    round_s, floor_s = report["round_s_median"], report["round_floor_s"]
    if not round_s or not floor_s:
        return ""
    return f"a round takes {round_s / floor_s:.2f} × the {floor_s:.3g} s that the link needs for its bytes"


def size(count: float) -> str:
    """Bytes as people read them: `999 B`, `2.87 MB`."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:,.4g} GB"


def _staleness(report: Report) -> str:
    """How many updates of others a gradient has missed, where cohorts do not wait for each other."""
    if len(report["cohorts"]) < 2 or report["staleness_mean"] is None:
        return ""
    return f"{report['staleness_mean']:.2g} updates of others on average, at most {report['staleness_max']}"


def _skipped(report: Report) -> str:
    """What was left out for not being finite: `A/0 in 3 steps`."""
    each = [f"{node} in {counted(steps, 'step')}" for node, steps in report["skipped"].items()]
    return f"NaN or Inf: {', '.join(each)}" if each else ""


def _links(report: Report) -> str:
    """What events have made of links: `B from 30.0 s on: 5 Mbit/s, 20 ms one way`."""
    changes = [sentence("link", change).removeprefix("link of ") for change in report["link_changes"]]
    more = [f"{len(changes) - CHANGES_SHOWN} more"] if len(changes) > CHANGES_SHOWN else []
    return "; ".join([*changes[:CHANGES_SHOWN], *more])


def _hash(report: Report) -> str:
    sha256 = report["parameters_sha256"]
    if isinstance(sha256, dict):
        each = ", ".join(f"{name} {value[:12]}" for name, value in sha256.items())
        return (
            f"each its own: {each}"
            if list(sha256) == sorted(report["cohorts"])
            else f"workers DIFFER: {each}"
        )
    return f"sha256 {sha256[:12]}…" if sha256 else ""
