"""What became of payloads that went in datagrams: while a run goes on, and in its report.

A flow counts datagrams; its sender tells how many left and how often, its receiver how many came (`flows` in a node's
`usage`). A node counts blocks: its parent has told which of them took part in their round (`blocks`). A block is one
datagram unless the path takes only small ones. Where datagrams do not pass, blocks go over TCP, and none is lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

from geomx.channels.contract import NOT_SENT
from geomx.config import Run
from geomx.observe.rates import Rate
from geomx.observe.records import Record

Fields = dict[str, Any]
Tier = Literal["wan", "lan"]

UNKNOWN = "·"
UNSENT = str(NOT_SENT)
LEAST_SHARE = 0.0005  # less would be shown as 0.0%
PATHS_SHOWN = 4
FLOW_COUNTS = ("sent", "again", "came", "late")
_SENT, _RECEIVED = ("sent", "again"), ("came", "late", "early")
BLOCK_COUNTS = ("given", "answered", "returned")


class Shares:
    """Of the datagrams and blocks that a node sends up: over the last seconds, which share was lost."""

    def __init__(self) -> None:
        self.are_known = False  # whether it has sent any
        self._sendings, self._again = Rate(), Rate()  # datagrams
        self._answered, self._lost = Rate(), Rate()  # blocks

    def take(self, record: Record) -> None:
        """Learn from a record `usage`."""
        flows = record.fields.get("flows", {}).values()
        sent, again = (sum(sum(flow.get(name, {}).values()) for flow in flows) for name in ("sent", "again"))
        if not sent:
            return
        self.are_known = True
        self._sendings.reach(record.t, sent + again)
        self._again.reach(record.t, again)
        blocks = record.fields.get("blocks", {})
        self._answered.reach(record.t, _sent_of(blocks.get("answered", {})))
        self._lost.reach(record.t, _sent_of(blocks.get("returned", {})))

    def again(self, now: float) -> float | None:
        """The share of datagrams that were sent before; None: none are sent."""
        sendings = self._sendings.at(now)
        return self._again.at(now) / sendings if sendings else None

    def lost(self, now: float) -> float | None:
        """The share of blocks that did not take part in their round; None: no round has ended."""
        answered = self._answered.at(now)
        return self._lost.at(now) / answered if answered else None

    def figures(self, now: float) -> tuple[str, str]:
        """Both as text."""
        both = (self.again(now), self.lost(now))
        again, lost = (UNKNOWN if share is None else percent(share) for share in both)
        return again, lost

    def words(self, now: float) -> str:
        """`, 0.5% of datagrams sent again, 3.1% of blocks lost`; empty where that is not known."""
        again, lost = self.again(now), self.lost(now)
        told = "" if again is None else f", {percent(again)} of datagrams sent again"
        return told + ("" if lost is None else f", {percent(lost)} of blocks lost")


class Datagrams:
    """Sums up the datagrams of a run.

    Attributes:
        paths: Each time that datagrams were found not to pass from one node to another, and that they pass again.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._flows: dict[str, dict[str, Fields]] = {}  # by node and peer
        self._blocks: dict[str, Fields] = {}  # by node
        self.paths: list[Fields] = []

    def use(self, node: str, usage: Fields) -> None:
        """A node has told what it has counted since its start."""
        self._flows[node] = usage.get("flows", {})
        self._blocks[node] = usage.get("blocks", {})

    def path(self, record: Record) -> None:
        """A node has found out whether datagrams pass."""
        ends = {"node": record.node, "peer": record.fields["peer"]}
        was_blocked = any(path.items() >= ends.items() for path in self.paths)
        if was_blocked or not record.fields["passes"]:
            self.paths.append({**ends, "passes": record.fields["passes"], "why": record.fields["why"]})

    def by_tier(self) -> dict[Tier, dict[str, Fields]]:
        """By tier and party; a tier or a party whose payloads were not cut into blocks is left out.

        Of each party: `classes`, by name, with all counts; and `dropped_early`, datagrams.
        """
        found: dict[Tier, dict[str, Fields]] = {}
        for party in self._run.servers:
            tiers: dict[Tier, Sequence[str]] = {"wan": (party,), "lan": self._run.workers_of(party)}
            for tier, senders in tiers.items():
                flows = [flow for sender in senders for flow in self._flows_of(sender)]
                blocks = [self._blocks.get(sender, {}) for sender in senders]
                if flows or any(blocks):
                    early = sum(flow.get("early", 0) for flow in flows)
                    told = {"classes": _by_class(flows, blocks), "dropped_early": early}
                    found.setdefault(tier, {})[party] = told
        return found

    def _flows_of(self, sender: str) -> Iterable[Fields]:
        """Of what a node sends up: its own counts of what left, and those of what came, of the nodes that receive it.

        Both ends of a flow send and receive: what updates make of the same counts is not in it.
        """
        below = self._run.workers_of(sender) if sender in self._run.servers else ()
        own, others = self._flows.get(sender, {}), self._flows.items()
        left = [(_SENT, flow) for peer, flow in own.items() if peer not in below]
        came = [(_RECEIVED, flows.get(sender, {})) for node, flows in others if node not in below]
        told = ({name: flow[name] for name in names if name in flow} for names, flow in [*left, *came])
        return [fields for fields in told if fields]


def _by_class(flows: Iterable[Fields], blocks: Iterable[Fields]) -> dict[str, dict[str, int]]:
    """All counts of each class, the reliable one first and what was not sent last."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for names, counted in ((FLOW_COUNTS, flows), (BLOCK_COUNTS, blocks)):
        for name, each in ((name, each) for each in counted for name in names):
            for level, count in each.get(name, {}).items():
                totals[level][name] += count
    order = sorted(totals, key=lambda level: (level == UNSENT, int(level)))
    return {_name(level): {n: totals[level][n] for n in (*FLOW_COUNTS, *BLOCK_COUNTS)} for level in order}


def _name(level: str) -> str:
    return {"0": "reliable", UNSENT: "not sent"}.get(level, f"class {level}")


def _sent_of(by_class: Mapping[str, int]) -> int:
    return sum(count for level, count in by_class.items() if level != UNSENT)


def percent(share: float) -> str:
    """`3.1%`; `<0.1%` where that would read as none."""
    return "<0.1%" if 0 < share < LEAST_SHARE else f"{share:.1%}"


def datagram_lines(parties: Mapping[str, Fields], paths: Iterable[Fields] = ()) -> str:
    """What the closing table says: what was sent, what was lost, and where datagrams did not pass; a line each."""
    totals: dict[str, Counter[str]] = {}
    for party in parties.values():
        for name, counts in party["classes"].items():
            totals.setdefault(name, Counter()).update(counts)
    return "\n".join(filter(None, [_sendings(totals), _losses(totals), _blocked(paths)]))


def _sendings(totals: Mapping[str, Counter[str]]) -> str:
    """`reliable 1,234 sent (+56 again), class 1 160 sent`."""
    told = []
    for name, counts in totals.items():
        again = f" (+{counts['again']:,} again)" if counts["again"] else ""
        if counts["sent"]:
            told.append(f"{name} {counts['sent']:,} sent{again}")
    unsent = totals.get("not sent", Counter())["given"]
    return ", ".join([*told, f"{unsent:,} blocks not sent"] if unsent else told)


def _losses(totals: Mapping[str, Counter[str]]) -> str:
    """Which share of the blocks that were sent took no part in their round, and whether all of it went back."""
    sent = [counts for name, counts in totals.items() if name != "not sent"]
    answered, lost = (sum(counts[name] for counts in sent) for name in ("answered", "returned"))
    if not answered:
        return ""
    unknown = sum(counts["given"] - counts["answered"] for counts in totals.values())
    told = f"{percent(lost / answered)} of blocks lost" if lost else "no blocks lost"
    if unknown:
        return f"{told}, {unknown:,} not answered when the run ended"
    return f"{told}, all returned to their senders" if lost else told


def _blocked(paths: Iterable[Fields]) -> str:
    """`not passing from A to global/0: TCP carries everything`."""
    last = {(path["node"], path["peer"]): path["passes"] for path in paths}
    told = [
        f"did not pass from {node} to {peer} for a while: TCP carried everything then"
        if passes
        else f"do not pass from {node} to {peer}: TCP carries everything"
        for (node, peer), passes in last.items()
    ]
    more = [f"{len(told) - PATHS_SHOWN} more"] if len(told) > PATHS_SHOWN else []
    return "\n".join([*told[:PATHS_SHOWN], *more])
