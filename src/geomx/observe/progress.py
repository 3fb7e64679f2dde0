"""How far a run is: what the records so far say, party by party."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from geomx.config import Run
from geomx.observe.datagrams import LostShares
from geomx.observe.members import Change, MemberChanges
from geomx.observe.rates import Rate
from geomx.observe.records import Record, number
from geomx.tree import Tree

FEW = 2
HEARD = {"lost": False, "awaited": False, "joined": True, "resumed": True}  # whether the peer is there


@dataclass(slots=True)
class Loading:
    """How much of the first weights has come to a party."""

    arrived_mb: float = 0.0
    of_mb: float = 0.0
    rate: Rate = field(default_factory=Rate)  # MB

    @property
    def share(self) -> float:
        return self.arrived_mb / self.of_mb if self.of_mb else 1.0

    def left_s(self, now: float) -> float | None:
        """Seconds until all has come, at the rate of the last seconds; None: that is not known."""
        rate = self.rate.at(now)
        return (self.of_mb - self.arrived_mb) / rate if rate else None


@dataclass(slots=True)
class PartyProgress:
    """A party's row of the live view, or a region's."""

    name: str
    children: Mapping[str, frozenset[str]]  # and the workers below each
    leaves: frozenset[str]
    above: tuple[str, ...]  # see `ends_above`
    absent: set[str]  # children that have not joined yet
    answered: Counter[str] = field(default_factory=Counter)  # rounds, by cohort
    has_no_model: bool = False  # its workers make calls, or use tables, alone
    losses: dict[str, float] = field(default_factory=dict)  # the last one of each worker
    samples: float = 0.0
    samples_rate: Rate = field(default_factory=Rate)
    up_rate: Rate = field(default_factory=Rate)  # WAN, bytes
    down_rate: Rate = field(default_factory=Rate)
    shares: LostShares = field(default_factory=LostShares)  # of its datagrams over the WAN
    loading: Loading | None = None  # None: no model has attached yet
    waits_for: str = ""
    away: dict[str, str] = field(default_factory=dict)  # node that is away -> why
    is_lost: bool = False  # whoever it hangs on hears nothing of it, and nothing is decided, or it is awaited
    lost: set[str] = field(default_factory=set)  # children likewise
    out: frozenset[str] = frozenset()  # its workers that take no part
    finished: set[str] = field(default_factory=set)
    left: set[str] = field(default_factory=set)  # those of them that have left early
    described_link: str = ""
    link: str = ""  # what an event has made of it

    @property
    def rounds(self) -> int:
        """Synchronization rounds, of the cohort that has had most."""
        return max(self.answered.values(), default=0)

    @property
    def loss(self) -> float | None:
        """The mean of the last losses of its workers that take part."""
        there = [loss for worker, loss in self.losses.items() if worker not in self.out | self.left]
        return fmean(there or self.losses.values()) if self.losses else None

    @property
    def state(self) -> str:
        """What it does, or for whom it waits, and who of it takes no part."""
        if self.out >= self.leaves:
            return "out"
        if self.left >= self.leaves - self.out:
            return "left"
        if self.is_lost:
            return "lost"
        without = f", {few(self._names_out)} out" if self.out else ""
        without += f", {few(sorted(self.left))} left" if self.left else ""
        return f"{self._state_of_others}{without}"

    @property
    def _state_of_others(self) -> str:
        if lost := self._in(self.lost):
            return f"{few(lost)} lost"
        if away := self._in(self.away):
            return f"{few(away)} disconnected"
        if self.absent and not self.rounds:
            what = "workers" if self.has_workers else "servers"
            return f"starting, {len(self.children) - len(self.absent)} of {len(self.children)} {what}"
        if absent := self._in(self.absent):
            return f"waiting for {few(absent)}"
        if self.waits_for:
            return f"waiting for {few(self.waits_for.split(', '))}"
        if self.finished - self.left:
            return "finished" if self.finished >= self.leaves - self.out else "finishing"
        if self.rounds or self.samples:
            return "training"
        return "running" if self.has_no_model else "starting"

    def _in(self, names: Iterable[str]) -> list[str]:
        """Those of these nodes that take part, or below which somebody does."""
        return [name for name in sorted(names) if name not in self._names_out]

    @property
    def _names_out(self) -> list[str]:
        """Its children below which nobody takes part, and of others those workers that do not."""
        found = []
        for child, leaves in self.children.items():
            found += [child] if self.out >= leaves else sorted(self.out & leaves)
        return found

    def enroll(self, out: frozenset[str]) -> None:
        """These workers take no part. Whom it still waits for is told again."""
        before, self.out = self.out, self.leaves & out
        if self.out != before:
            self.waits_for = ""

    def has_left(self, child: str) -> bool:
        """Whether a child may go: all workers below it that take part have ended."""
        return child in self.children and self.children[child] - self.out <= self.finished

    @property
    def has_workers(self) -> bool:
        """Whether it is a party."""
        return self.children.keys() == self.leaves

    @property
    def is_calm(self) -> bool:
        """Whether nothing is wrong, nor late."""
        missing = self.is_lost or self.out or self.lost or self.away
        return not (missing or self.waits_for or (self.absent and self.rounds) or self.link)

    @property
    def loads(self) -> bool:
        """Whether its first weights are on their way; those of a server that was started again are none."""
        return self.loading is not None and self.loading.share < 1.0 and not self.rounds

    @property
    def standing(self) -> str:
        """The state, and what has become of its link."""
        return f"{self.state}; link {self.link}" if self.link else self.state


class RunProgress:
    """Takes records, and knows where each party stands."""

    def __init__(self, run: Run) -> None:
        self._tree = run.tree
        self._members = MemberChanges(run)
        self.parties = {name: _row(run.tree, name) for name in run.tree.servers}
        for name, party in self.parties.items():
            link = run.link_of(name)
            party.described_link = link.words if link else ""
        self._take: dict[str, Callable[[PartyProgress, Record], None]] = {
            "joined": _joined,
            "resumed": _back,
            "away": _away,
            "left": _left,
            "link": _link,
            "first_weights": _first_weights,
            "round": _round,
            "waiting": _waiting,
            "step": _step,
            "log": _log,
            "no_model": _no_model,
            "usage": _usage,
            "finished": _finished,
        }

    def take(self, record: Record) -> Sequence[Change]:
        """Learn from a record; gives what it says of who takes part."""
        changes = self._members.take(record)
        if record.name == "roster":
            for row in self.parties.values():
                row.enroll(self._members.out)
        elif record.name in HEARD:
            self._hears(record.node, record.fields["peer"], HEARD[record.name])
        party = self.parties.get(record.node.partition("/")[0])
        take = self._take.get(record.name)
        if party is not None and take is not None:
            take(party, record)
        elif record.name == "waiting":
            self._root_waits(record.fields["whom"])
        return changes

    def take_all(self, records: Iterable[Record]) -> list[Change]:
        """The same of several."""
        return [change for record in records for change in self.take(record)]

    def _hears(self, node: str, peer: str, again: bool) -> None:
        """Whether something is heard of a peer, by whoever it hangs on; what a node says of those above is no news."""
        if peer not in self._tree.children(node):
            return
        if peer in self.parties:
            self.parties[peer].is_lost = not again
        if node in self.parties:
            (set.discard if again else set.add)(self.parties[node].lost, peer)

    def _root_waits(self, whom: str) -> None:
        """A global server waits: so do the parties that have done their share."""
        late = {name.partition("/")[0] for name in whom.split(", ")}
        for party in self.parties.values():
            if party.name not in late:
                party.waits_for = whom

    @property
    def loads(self) -> bool:
        """Whether some party's first weights are on their way."""
        return any(party.loads for party in self.parties.values())

    @property
    def datagram_figures(self) -> int:
        """How many of `LostShares.figures` are of use: none without datagrams, the first where nothing may be lost."""
        shares = [party.shares for party in self.parties.values() if party.shares.are_known]
        return 1 + any(each.has_blocks for each in shares) if shares else 0

    @property
    def rounds(self) -> int:
        return max((party.rounds for party in self.parties.values()), default=0)


def _row(tree: Tree, name: str) -> PartyProgress:
    children = {child: frozenset(tree.leaves(child)) for child in tree.children(name)}
    return PartyProgress(name, children, frozenset(tree.leaves(name)), ends_above(tree, name), set(children))


def few(names: Sequence[str]) -> str:
    """The first names, and how many more there are."""
    named = ", ".join(names[:FEW])
    return named if len(names) <= FEW else f"{named} and {len(names) - FEW} more"


def ends_above(tree: Tree, node: str) -> tuple[str, ...]:
    """With whom a server speaks upward: its parents, and by an overlay others of its tier."""
    return (*tree.parents(node), *tree.children(tree.parent(node)))


def bytes_above(usage: dict[str, Any], ends: Sequence[str]) -> tuple[int, int]:
    """What a node's `usage` says of its edges to these: bytes up, bytes down."""
    up, down = (sum(usage[way].get(end, 0) for end in ends) for way in ("sent", "received"))
    return up, down


def _is_server(party: PartyProgress, record: Record) -> bool:
    return record.node == party.name


def _joined(party: PartyProgress, record: Record) -> None:
    if _is_server(party, record):
        party.absent.discard(record.fields["peer"])
    _back(party, record)


def _back(party: PartyProgress, record: Record) -> None:
    party.away.pop(record.fields["peer"], None)


def _away(party: PartyProgress, record: Record) -> None:
    if _is_server(party, record) and not party.has_left(record.fields["peer"]):
        party.away[record.fields["peer"]] = record.fields["reason"]


def _left(party: PartyProgress, record: Record) -> None:
    if _is_server(party, record):
        for worker in record.fields["peer"].split(", "):
            party.finished.add(worker)
            if record.fields.get("early"):
                party.left.add(worker)


def _link(party: PartyProgress, record: Record) -> None:
    if _is_server(party, record):
        state = record.fields["state"]
        party.link = "" if state == party.described_link else state


def _first_weights(party: PartyProgress, record: Record) -> None:
    if _is_server(party, record):
        loading = party.loading = party.loading or Loading()
        loading.arrived_mb, loading.of_mb = record.fields["arrived_mb"], record.fields["of_mb"]
        loading.rate.reach(record.t, loading.arrived_mb)
        if loading.arrived_mb:
            party.waits_for = ""


def _round(party: PartyProgress, record: Record) -> None:
    if _is_server(party, record) and record.fields.get("kind", "gradient") == "gradient":
        party.answered[record.fields.get("cohort", "")] += 1
        party.waits_for = ""


def _waiting(party: PartyProgress, record: Record) -> None:
    party.waits_for = record.fields["whom"]


def _step(party: PartyProgress, record: Record) -> None:
    party.samples += record.fields["samples"]
    party.samples_rate.reach(record.t, party.samples)


def _no_model(party: PartyProgress, _: Record) -> None:
    party.has_no_model = True


def _log(party: PartyProgress, record: Record) -> None:
    loss = number(record.fields.get("loss"))
    if loss is not None:
        party.losses[record.node] = loss


def _usage(party: PartyProgress, record: Record) -> None:
    if _is_server(party, record):
        up, down = bytes_above(record.fields, party.above)
        party.up_rate.reach(record.t, up)
        party.down_rate.reach(record.t, down)
        party.shares.take(record)


def _finished(party: PartyProgress, record: Record) -> None:
    party.finished.add(record.node)
