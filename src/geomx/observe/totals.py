"""What the records of a run sum up to.

Sources: workers' `finished` (or, of a worker that did not get that far, its `step`s) and `log`; local servers' `round`
for how many synchronization rounds there were and how long one took, from its first contribution to its last answer;
their `link` for what events have changed; for bytes, see `traffic.py`, for datagrams `datagrams.py`, for who took part
`members.py`, for overlays `overlays.py`. A process that was started again counts from zero, and begins with a `clock`.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable
from statistics import median
from typing import Any

from geomx.config import Run
from geomx.observe.datagrams import DatagramTotals
from geomx.observe.members import MemberChanges
from geomx.observe.overlays import OverlayTotals
from geomx.observe.records import CLOCK, Record, number
from geomx.observe.traffic import Crossed, Traffic
from geomx.tree import TOP

Fields = dict[str, Any]

LOGGED = ("loss", "validation_loss", "accuracy")  # what scripts give to `run.log`
SCRIPT = ("optimizer", "keeps", "momentum", "elementwise", "clips")  # what a worker tells of its script


class Totals:
    """Sums up the records of a run."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self.members = MemberChanges(run)
        self.finished: dict[str, Fields] = {}
        self._apart: set[str] = set()  # workers whose last steps are in no mean over the run
        self._starts: Counter[str] = Counter()  # of each node
        self._late: set[str] = set()  # workers that have joined a run that had begun
        self._cpu_s_before: dict[str, float] = defaultdict(float)  # of each node's processes before the last
        self.usage: dict[str, Fields] = {}
        self.traffic = Traffic(run)
        self.datagrams = DatagramTotals(run)
        self.overlays = OverlayTotals(run)
        self.rss_mb: dict[str, float] = defaultdict(float)
        self.made: Counter[str] = Counter()  # steps of each worker
        self.samples: Counter[str] = Counter()
        self.logged: dict[str, dict[str, float | None]] = {value: {} for value in LOGGED}  # by worker
        self.parameters = 0
        self.script: Fields = {}  # what a worker told of it as it attached
        self.trained_bytes = 0
        self._attached_at: dict[str, float] = {}  # by node, the first time
        self._loaded_at: dict[str, float] = {}  # by node, when it had the first weights
        self.round_s: dict[str, list[float]] = defaultdict(list)
        self.answered: Counter[tuple[str, str]] = Counter()  # rounds, by server and cohort
        self.compute_s: dict[str, list[float]] = defaultdict(list)  # of each worker's steps
        self.backward_s: dict[str, list[float]] = defaultdict(list)
        self.staleness: list[int] = []  # of each round of the global servers
        self._later_s: dict[str, list[float]] = defaultdict(
            list
        )  # of each round, by the party that came last
        self.link_changes: list[Fields] = []
        self.skipped: dict[str, set[int]] = defaultdict(
            set
        )  # by node: the steps of which it has left something out
        self._take: dict[str, Callable[[Record], None]] = {
            CLOCK: self._started,
            "finished": self._finished,
            "apart": self._ended_apart,
            "usage": self._usage,
            "datagrams": self.datagrams.path,
            "overlay": self.overlays.take,
            "first_weights": self._first_weights,
            "first_step": self._first_step,
            "step": self._step,
            "log": self._log,
            "attached": self._attached,
            "round": self._round,
            "link": self._link,
            "skipped": self._skipped,
        }

    def take(self, record: Record) -> None:
        """Count a record in."""
        self.members.take(record)
        take = self._take.get(record.name)
        if take is not None:
            take(record)

    @property
    def rounds(self) -> int:
        """Synchronization rounds, of the cohort that has had most."""
        return max(self.answered.values(), default=0)

    @property
    def round_s_median(self) -> float | None:
        seconds = [s for server in self._run.tree.parties for s in self.round_s[server]]
        return median(seconds) if seconds else None

    def steps_of(self, worker: str) -> int:
        return int(self.finished[worker]["steps"]) if self._tells_all(worker) else self.made[worker]

    def samples_of(self, worker: str) -> int:
        return int(self.finished[worker]["samples"]) if self._tells_all(worker) else self.samples[worker]

    def _is_away(self, worker: str) -> bool:
        """Whether a worker takes no part in the end."""
        return self.members.is_out(worker) or worker in self.members.left

    def of_those_there(self, last: dict[str, float | None]) -> dict[str, float | None]:
        """What workers have told that take part in the end; of all, where none of these has told anything."""
        return {worker: told for worker, told in last.items() if not self._is_away(worker)} or last

    def _tells_all(self, worker: str) -> bool:
        """Whether a worker's last word is of all that it has done."""
        return worker in self.finished and self._starts[worker] < 2

    def cpu_s(self) -> dict[str, float]:
        """Processor seconds of each node."""
        return {
            node: fields["cpu_s"] + self._cpu_s_before[node] for node, fields in sorted(self.usage.items())
        }

    def slowest_party(self) -> dict[str, Any] | None:
        """Which party or region came last most often at the global servers, in which share of rounds, by how much."""
        rounds = sum(map(len, self._later_s.values()))
        if not rounds:
            return None
        party, later_s = max(self._later_s.items(), key=lambda each: len(each[1]))
        return {"party": party, "share": len(later_s) / rounds, "later_s_median": median(later_s)}

    def round_floor(self) -> tuple[str, float] | None:
        """The party or region with the slowest emulated link, and the seconds that a round takes there at least.

        That is bytes / rate, and one round trip. None where links have changed.
        """
        if self.link_changes or not self.rounds:
            return None
        floors: list[tuple[str, float]] = []
        for server in self._run.tree.servers:
            link, crossed = self._run.link_of(server), self.traffic.steps_above(server)
            if link is not None and link.rate_mbps and crossed is not None:
                megabits = 8e-6 * max(crossed.up, crossed.down) / self.rounds
                floors.append((server, 2e-3 * link.delay_ms + megabits / link.rate_mbps))
        return max(floors, key=lambda floor: floor[1], default=None)

    def wan_bytes_without_local_servers(self) -> int | None:
        """What steps would have sent over the WAN if each worker had sent and got what the server above did for all.

        A server passes on once what is of one cohort: where each worker is a cohort, it spares nothing.
        """
        return self._sum_below_top(
            lambda server, crossed: (
                crossed.total * len(self._run.tree.leaves(server)) // len(self._cohorts_of(server))
            )
        )

    def wan_bytes_dense(self) -> int | None:
        """What steps would have sent over the WAN, had each been a round and no codec made its bytes fewer.

        That is the trained weights, once up and once down, for every step of each cohort below each global server.
        """
        return self._sum_below_top(lambda server, _: 2 * self.trained_bytes * self._cohort_steps(server))

    def first_weights_s(self) -> float | None:
        """From when the last worker had attached until the last one had its first weights."""
        workers = self._run.workers
        if not self._loaded_at.keys() >= set(workers):
            return None
        attached_at = max(self._attached_at[worker] for worker in workers)
        return max(0.0, max(self._loaded_at[worker] for worker in workers) - attached_at)

    def _sum_below_top(self, bytes_of: Callable[[str, Crossed], int]) -> int | None:
        """Over all that hang on the global servers; None where one has not told, or has made no round."""
        total = 0
        for server in self._run.tree.children(TOP):
            crossed = self.traffic.steps_above(server)
            if crossed is None or not self._cohorts_of(server):
                return None
            total += bytes_of(server, crossed)
        return total

    def _cohorts_of(self, server: str) -> list[str]:
        """Those who move in step, as far as they are below a server."""
        return [cohort for other, cohort in self.answered if other == server]

    def _cohort_steps(self, server: str) -> int:
        """The steps below a server, where each cohort there makes its own."""
        tree = self._run.tree
        below = set(tree.leaves(server))
        return sum(
            max((self.steps_of(worker) for worker in below.intersection(tree.leaves(cohort))), default=0)
            for cohort in self._cohorts_of(server)
        )

    def ledger(self) -> bool | None:
        """Whether each contribution was counted exactly once; None where there is no ledger, or not of every worker.

        A worker has seen all of its own cohort. Of others, that need not have come when it left. Those that take no
        part in the end have no say.
        """
        workers = [worker for worker in self._run.workers if not self._is_away(worker)]
        ended = {worker: self.finished.get(worker, {}) for worker in workers}
        checked = self.ledger_workers()
        if not checked or not all(fields.get("ledger") for fields in ended.values()):
            return None
        return all(
            fields["ledger"][self._run.workers.index(other)] == ended[other]["contributions"]
            for fields in ended.values()
            for other in checked
            if ended[other]["cohort"] == fields["cohort"]
        )

    def ledger_workers(self) -> list[str]:
        """Those whom the ledger can be held against: they have taken part all the time, in one process.

        Some of what others have contributed was to count nothing, or nobody knows how much it was.
        """
        lost = {
            name for change in self.members.changes if change.kind in ("lost", "left") for name in change.who
        }
        late = lost | self._late
        return [name for name in self._run.workers if name not in late and self._starts[name] < 2]

    @property
    def cohorts(self) -> list[str]:
        """Those of the workers that have finished, in their order."""
        return list(dict.fromkeys(fields["cohort"] for fields in self.finished.values()))

    def weights(self) -> str | dict[str, str] | None:
        """The one hash of all workers; that of each cohort, or where workers of one differ of each worker."""
        by_cohort: dict[str, set[str]] = defaultdict(set)
        for worker, fields in self.finished.items():
            if (
                worker not in self.members.left and fields["parameters_sha256"] is not None
            ):  # else it holds a part, and the first of its party tells
                by_cohort[fields["cohort"]].add(fields["parameters_sha256"])
        if any(len(hashes) > 1 for hashes in by_cohort.values()):
            found = {
                node: fields["parameters_sha256"]
                for node, fields in sorted(self.finished.items())
                if node not in self.members.left
            }
            return {node: sha256 for node, sha256 in found.items() if sha256 is not None}
        every = {cohort: next(iter(hashes)) for cohort, hashes in sorted(by_cohort.items())}
        return every if len(every) > 1 else next(iter(every.values()), None)

    def rewritten(self) -> list[str]:
        """The workers whose scripts have changed their weights behind the last step: those are not compared."""
        return [worker for worker, fields in self.finished.items() if fields.get("rewritten")]

    def wrong(self) -> list[str]:
        """What a run promises and has not kept: what was counted, and weights of workers that end behind one step.

        Whoever was told that its last steps are in no mean may end with weights of its own.
        """
        ends: dict[tuple[str, int], set[str]] = defaultdict(set)
        for worker in self.ledger_workers():
            fields = self.finished.get(worker, {})
            if worker in self.members.left or worker in self._apart:
                continue
            if fields.get("parameters_sha256") is not None:
                ends[fields["cohort"], fields["steps"]].add(fields["parameters_sha256"])
        found = {
            "workers have different weights behind the same step": any(len(of) > 1 for of in ends.values()),
            "not every contribution was counted exactly once": self.ledger() is False,
        }
        return [told for told, is_so in found.items() if is_so]

    def _started(self, record: Record) -> None:
        node = record.node
        self._starts[node] += 1
        if node in self.usage:
            self._cpu_s_before[node] += self.usage[node]["cpu_s"]
        self.traffic.start(node)
        self.datagrams.start(node)
        self.overlays.start(node)

    def _ended_apart(self, record: Record) -> None:
        self._apart.add(record.node)

    def _finished(self, record: Record) -> None:
        self.finished[record.node] = record.fields

    def _usage(self, record: Record) -> None:
        self.usage[record.node] = record.fields
        self.traffic.use(record.node, record.fields)
        self.datagrams.use(record.node, record.fields)
        self.overlays.use(record.node, record.fields)
        self.rss_mb[record.node] = max(self.rss_mb[record.node], record.fields["rss_mb"])

    def _step(self, record: Record) -> None:
        self.samples[record.node] += record.fields["samples"]
        self.made[record.node] += 1
        for of_steps, key in ((self.compute_s, "compute_s"), (self.backward_s, "backward_s")):
            if record.fields.get(key) is not None:
                of_steps[record.node].append(record.fields[key])

    def _log(self, record: Record) -> None:
        for value, last in self.logged.items():
            if value in record.fields:
                last[record.node] = number(record.fields[value])

    def _attached(self, record: Record) -> None:
        self.parameters = max(self.parameters, record.fields["parameters"])
        self.script = {key: record.fields[key] for key in SCRIPT if key in record.fields}
        self.trained_bytes = max(self.trained_bytes, record.fields["trained_bytes"])
        if record.fields.get("goes_on"):
            self._late.add(record.node)

    def _first_weights(self, record: Record) -> None:
        self._attached_at.setdefault(record.node, record.t)
        if record.fields["share"] == 1.0:
            self._loaded_at.setdefault(record.node, record.t)

    def _first_step(self, record: Record) -> None:
        self.traffic.begin(record.node, record.fields)

    def _link(self, record: Record) -> None:
        if record.node == record.fields["party"]:  # the other end tells the same
            self.link_changes.append(record.fields)

    def _skipped(self, record: Record) -> None:
        self.skipped[record.node].add(record.fields["step"])

    def _round(self, record: Record) -> None:
        if record.fields.get("kind", "gradient") == "gradient":
            self.round_s[record.node].append(record.fields["seconds"])
            self.answered[record.node, record.fields.get("cohort", "")] += 1
            if self._run.tree.is_shard(record.node):
                self.staleness.append(record.fields.get("staleness", 0))
                if "last" in record.fields:
                    *_, below_top = self._run.open_tree.ancestors(record.fields["last"].partition(", ")[0])
                    self._later_s[below_top].append(record.fields["later_s"])
