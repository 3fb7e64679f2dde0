"""Who takes part, as a run's records tell it: one list of changes, for the report and for whoever watches.

The first shard decides who takes part (`roster`), so its records alone say who is lost, back or awaited; every other
server notes the same rosters. A turn is torn for the whole run as soon as one server says so (`torn`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from geomx.config import Run
from geomx.config.compatibility.choice_rules import LOSSLESS
from geomx.observe.records import Record
from geomx.observe.sentences import are, counted, sentence
from geomx.rounds.roster import are_there, is_awaited, is_lost
from geomx.sync import policies

Kind = Literal["lost", "back", "left", "roster", "torn", "restarted"]


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the list.

    Attributes:
        t: When, in seconds of the records' clock.
        kind: "lost": workers take no part any more. "back": they do again, or are no longer awaited. "left": they were
            asked to leave, and have left in order. "roster": they are lost and remain in, and the run waits for them.
            "torn": slices of a turn's step are means over different workers. "restarted": a global server goes on from
            its log.
        who: The workers; of what is "restarted", the server.
        text: The whole in plain words.
        workers: How many take part since.
        cohort: Of which cohort `turn` is one.
        turn: The first turn of which it holds, or the torn one; None where workers of several cohorts are concerned.
    """

    t: float
    kind: Kind
    who: tuple[str, ...]
    text: str
    workers: int
    cohort: str | None = None
    turn: int | None = None


class MemberChanges:
    """Takes the records of a run.

    Attributes:
        changes: The list, in the order of time.
        out: The workers that take no part.
        left: The workers that have left early.
    """

    def __init__(self, run: Run) -> None:
        self.changes: list[Change] = []
        self.out: frozenset[str] = frozenset()
        self.left: frozenset[str] = frozenset()
        self._tree, self._described = run.open_tree, len(run.workers)
        self._loses = {name for name in run.tree.nodes if codec_above(run, name) not in LOSSLESS}
        self._group = policies.make(run.sync.policy).sync_group
        self._workers = self._described  # that take part
        self._began: float | None = None
        self._awaited: dict[str, tuple[str, ...]] = {}  # by node: its workers that take part nevertheless
        self._torn: dict[tuple[str, int], int] = {}  # by cohort and turn: its place in the list
        self._take: dict[str, Callable[[Record], None]] = {
            "attached": self._attached,
            "roster": self._roster,
            "left": self._left_early,
            "torn": lambda record: self._tear(record.t, record.fields),
            "restored": self._restarted,
            "joined": self._connected,
            "resumed": self._connected,
        }

    def take(self, record: Record) -> Sequence[Change]:
        """Learn from a record; gives what is new in the list."""
        before = len(self.changes)
        if (take := self._take.get(record.name)) is not None:
            take(record)
        return self.changes[before:]

    def is_out(self, node: str) -> bool:
        """Whether a worker takes no part, or nobody below a server does."""
        leaves = self._tree.leaves(node)
        return bool(leaves) and self.out.issuperset(leaves)

    def told(self) -> list[dict[str, Any]]:
        """The list for the report. `at_s`: since `attach` has returned to the first worker; None: to none has it."""
        return [
            {
                "at_s": None if self._began is None else round(change.t - self._began, 6),
                "kind": change.kind, "who": list(change.who), "text": change.text,
                "cohort": change.cohort, "turn": change.turn, "workers": change.workers,
            }
            for change in self.changes
        ]  # fmt: skip

    def _attached(self, record: Record) -> None:
        if self._began is None:
            self._began = record.t

    def _left_early(self, record: Record) -> None:
        who = tuple(name for name in _names(record.fields["peer"]) if name not in self.left)
        if who and record.node == self._tree.shards[0] and record.fields.get("early"):
            self.left |= set(who)
            self._workers -= len(self.left.intersection(who) - self.out)
            have = "has" if len(who) == 1 else "have"
            self._moved(record.t, "left", who, f"{', '.join(who)} {have} left")

    def _roster(self, record: Record) -> None:
        if "members" in record.fields and record.node == self._tree.shards[0]:  # a worker's says less
            self._decided(record)

    def _restarted(self, record: Record) -> None:
        self._add(
            record.t, "restarted", (record.node,), f"{record.node} {sentence('restored', record.fields)}"
        )

    def _decided(self, record: Record) -> None:
        fields = record.fields
        before, self.out = self.out, frozenset(_names(fields["out"]))
        self._workers = fields["members"]
        gone = tuple(name for name in self._tree.workers if name in self.out - before)
        if joined := _names(fields["joined"]):
            self._moved(record.t, "back", joined, are_there(joined), fields["turns"])
        if gone:
            why = self._why_lost(fields["lost"], gone) + self._without_its_residual((*gone, *fields["lost"]))
            self._moved(record.t, "lost", gone, why, fields["turns"])
        self._awaited = {node: who for node, who in self._awaited.items() if not self.is_out(node)}
        for node, why in fields["awaited"].items():
            if not self.is_out(node) and node not in self._awaited:  # it is told again and again
                self._awaited[node] = tuple(name for name in self._tree.leaves(node) if name not in self.out)
                self._add(record.t, "roster", self._awaited[node], is_awaited(node, why))

    def _why_lost(self, lost: Mapping[str, str], gone: tuple[str, ...]) -> str:
        """Of those of which this roster says that they are; a roster before may have settled others."""
        parts, left = [], set(gone)
        for node, why in lost.items():
            if not left.isdisjoint(self._tree.leaves(node)):
                parts.append(is_lost(node, why))
                left.difference_update(self._tree.leaves(node))
        if not parts:
            return f"{are(gone)} lost"
        return "; ".join([*parts, *([f"{counted(len(left), 'more worker')} lost"] if left else [])])

    def _without_its_residual(self, nodes: Iterable[str]) -> str:
        """What is lost with nodes whose codecs hold something back."""
        return "" if self._loses.isdisjoint(nodes) else ", and so is what its codec held back"

    def _moved(
        self, t: float, kind: Kind, who: tuple[str, ...], why: str, turns: Mapping[str, int] | None = None
    ) -> None:
        cohort, turn = self._since(who, turns or {})
        take = "takes" if self._workers == 1 else "take"
        of = f" of {self._described}" if self._workers <= self._described else ""
        text = f"{why}; {self._workers}{of} workers {take} part"
        if turn is not None:
            text += f" from turn {turn} {f'of {cohort} ' if cohort else ''}on"
        self._add(t, kind, who, text, cohort, turn)

    def _since(self, who: Iterable[str], turns: Mapping[str, int]) -> tuple[str | None, int | None]:
        """The cohort in which all of these take their steps, and its first turn of which a roster holds."""
        first, *others = {self._tree.cohort(name, self._group) for name in who}
        return (None, None) if others or first not in turns else (first, turns[first])

    def _tear(self, t: float, fields: Mapping[str, Any]) -> None:
        """Of one turn, several servers may tell, each of its own workers."""
        cohort, turn = key = fields["cohort"], fields["turn"]
        told = self.changes[self._torn[key]].who if key in self._torn else ()
        whom = {*told, *_names(fields["whom"])}
        who = tuple(name for name in self._tree.workers if name in whom)
        text = sentence("torn", {**fields, "whom": ", ".join(who)})
        if key in self._torn:
            place = self._torn[key]
            self.changes[place] = replace(self.changes[place], who=who, text=text)
        else:
            self._torn[key] = len(self.changes)
            self._add(t, "torn", who, text, cohort, turn)

    def _connected(self, record: Record) -> None:
        node = record.fields["peer"]
        if node in self._awaited and node in self._tree.children(record.node):
            self._add(record.t, "back", self._awaited.pop(node), f"{node} is back, and is no longer awaited")

    def _add(
        self,
        t: float,
        kind: Kind,
        who: tuple[str, ...],
        text: str,
        cohort: str | None = None,
        turn: int | None = None,
    ) -> None:
        self.changes.append(Change(t, kind, who, text, self._workers, cohort, turn))


def codec_above(run: Run, name: str) -> str:
    """What goes up from a node is encoded with; "dense" of a global server."""
    if run.tree.is_shard(name):
        return "dense"
    if run.tree.is_worker(name):
        return run.lan.codec_up
    above = run.tree.parent(name)
    return next((region.below.codec_up for region in run.regions if region.name == above), run.wan.codec_up)


def _names(listed: str) -> tuple[str, ...]:
    return tuple(filter(None, listed.split(", ")))


# -- of a report ------------------------------------------------------------------------------------------------


def out_at_end(told: Iterable[Mapping[str, Any]]) -> set[str]:
    """The workers that take no part in the end, by the list of a report."""
    return [set[str](), *_out(told)][-1]


def in_short(told: Sequence[Mapping[str, Any]], workers: int) -> str:
    """`3 workers lost, 3 back, 1 torn turn; 8 of 8 workers at the end`; empty where nothing has changed.

    `workers`: how many the run has.
    """
    if not told:
        return ""
    kinds, every = Counter(change["kind"] for change in told), [set[str](), *_out(told)]
    lost = sum(len(now - before) for before, now in pairwise(every))
    back = sum(len(before - now) for before, now in pairwise(every))
    words = [f"{counted(lost, 'worker')} lost, {back:,} back"] if lost else []
    left = {name for change in told if change["kind"] == "left" for name in change["who"]}
    words += [f"{counted(len(left), 'worker')} left"] if left else []
    words += [counted(kinds["roster"], "wait")] if kinds["roster"] else []
    words += [counted(kinds["torn"], "torn turn")] if kinds["torn"] else []
    restarts = kinds["restarted"]
    words += [f"a global server restarted {counted(restarts, 'time')}"] if restarts else []
    return (
        f"{', '.join(words)}; {workers - len(every[-1] | left):,} of {counted(workers, 'worker')} at the end"
    )


def _out(told: Iterable[Mapping[str, Any]]) -> Iterator[set[str]]:
    """Who takes no part, behind each change."""
    out: set[str] = set()
    for change in told:
        if change["kind"] == "lost":
            out = out | set(change["who"])
        elif change["kind"] == "back":
            out = out - set(change["who"])
        yield out
