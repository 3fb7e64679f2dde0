"""Who takes part, as a run's records tell it: one list of changes, for the report and for whoever watches.

The first shard decides who takes part (`roster`), so its records alone say who is lost, back or awaited; every other
server notes the same rosters. A turn is torn for the whole run as soon as one server says so (`torn`). That comes right
before the roster which made it so, and stands behind it in the list.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any, Literal

from geomx.config import Run
from geomx.observe.records import Record
from geomx.observe.sentences import are, counted, sentence
from geomx.sync import policies

Kind = Literal["lost", "back", "roster", "torn"]

LOST, AWAITED = " is lost (", " is awaited: "  # behind a node's name in a roster's reason


@dataclass(frozen=True, slots=True)
class Change:
    """One entry of the list.

    Attributes:
        t: When, in seconds of the records' clock.
        kind: "lost": workers take no part any more. "back": they do again, or are no longer awaited. "roster": they
            are lost and remain in, and the run waits for them. "torn": slices of a turn's step are means over different
            workers.
        who: The workers.
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


class Members:
    """Takes the records of a run.

    Attributes:
        changes: The list, in the order of time.
        out: The workers that take no part.
    """

    def __init__(self, run: Run) -> None:
        self.changes: list[Change] = []
        self.out: frozenset[str] = frozenset()
        self._tree = run.tree
        self._group = policies.make(run.sync.policy).sync_group
        self._workers = len(run.workers)  # that take part
        self._began: float | None = None
        self._awaited: dict[str, tuple[str, ...]] = {}  # by node: its workers that take part nevertheless
        self._torn: dict[tuple[str, int], int] = {}  # by cohort and turn: its place in the list
        self._held: dict[str, list[Record]] = defaultdict(list)  # by node: torn turns, until its roster comes
        self._take: dict[str, Callable[[Record], None]] = {
            "attached": self._attached,
            "roster": self._roster,
            "torn": lambda record: self._held[record.node].append(record),
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

    def _roster(self, record: Record) -> None:
        if "members" not in record.fields:  # a worker's, which says less
            return
        if record.node == self._tree.shards[0]:
            self._decided(record)
        for torn in self._held.pop(record.node, ()):
            self._tear(record.t, torn.fields)

    def _decided(self, record: Record) -> None:
        fields = record.fields
        before, self.out = self.out, frozenset(_names(fields["out"]))
        self._workers = fields["members"]
        gone = tuple(name for name in self._tree.workers if name in self.out - before)
        lost, awaited, back = self._parts(fields["reason"], gone)
        if joined := _names(fields["joined"]):
            self._moved(record, "back", joined, back or f"{are(joined)} back")
        if gone:
            self._moved(record, "lost", gone, lost or f"{are(gone)} lost")
        self._awaited = {node: who for node, who in self._awaited.items() if not self.is_out(node)}
        for node, why in awaited.items():
            if not self.is_out(node) and node not in self._awaited:  # it is told again and again
                self._awaited[node] = tuple(name for name in self._tree.leaves(node) if name not in self.out)
                self._add(record.t, "roster", self._awaited[node], why)

    def _parts(self, reason: str, gone: Iterable[str]) -> tuple[str, dict[str, str], str]:
        """A roster's reason taken apart: who is lost, who is awaited, who is back."""
        lost, awaited, back = [], {}, []
        for part in reason.split("; "):
            node, is_lost, _ = part.partition(LOST)
            if is_lost:
                if not set(gone).isdisjoint(self._tree.leaves(node)):  # else a roster before has settled it
                    lost.append(part)
            elif AWAITED in part:
                awaited[part.partition(AWAITED)[0]] = part
            else:
                back.append(part)
        return "; ".join(lost), awaited, "; ".join(back)

    def _moved(self, record: Record, kind: Kind, who: tuple[str, ...], why: str) -> None:
        cohort, turn = self._since(who, record.fields["turns"])
        take = "takes" if self._workers == 1 else "take"
        text = f"{why}; {self._workers} of {len(self._tree.workers)} workers {take} part"
        if turn is not None:
            text += f" from turn {turn} {f'of {cohort} ' if cohort else ''}on"
        self._add(record.t, kind, who, text, cohort, turn)

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
    words += [counted(kinds["roster"], "wait")] if kinds["roster"] else []
    words += [counted(kinds["torn"], "torn turn")] if kinds["torn"] else []
    return f"{', '.join(words)}; {workers - len(every[-1]):,} of {counted(workers, 'worker')} at the end"


def _out(told: Iterable[Mapping[str, Any]]) -> Iterator[set[str]]:
    """Who takes no part, behind each change."""
    out: set[str] = set()
    for change in told:
        if change["kind"] == "lost":
            out = out | set(change["who"])
        elif change["kind"] == "back":
            out = out - set(change["who"])
        yield out
