"""What became of payloads that went in datagrams: while a run goes on, and in its report.

A flow counts datagrams, both ways: each end tells how many it has sent, how often, and how many came (`flows` in a
node's `usage`). A node counts the blocks that it sends up, if the channel may lose some: its parent has told which of
them took part in their round (`blocks`). A block is one datagram unless the path takes only small ones. Payloads that
travel as they stand (all updates; contributions, where nothing may be lost) have no blocks. Where datagrams do not
pass, TCP carries everything, and nothing is lost.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal

from geomx.channels.contract import NOT_SENT
from geomx.config import Run
from geomx.config.compatibility.lossy_channels import classes_of
from geomx.config.tables import EdgeTable
from geomx.observe.rates import Rate
from geomx.observe.records import Record
from geomx.tree import TOP

Fields = dict[str, Any]
Tier = Literal["wan", "region", "lan"]

UNKNOWN = "·"
UNSENT = str(NOT_SENT)
LEAST_SHARE = 0.0005  # less would be shown as 0.0%
PATHS_SHOWN = 4
SENT_COUNTS = ("sent", "again")
CAME_COUNTS = ("came", "late")
BLOCK_COUNTS = ("given", "answered", "returned")
PARITY_COUNTS = ("parity", "rebuilt")  # of all classes: sent for others, and what was made from it
ALL_COUNTS = (*SENT_COUNTS, *CAME_COUNTS, *BLOCK_COUNTS)


class LostShares:
    """Of what a node sends up, or a global server down, over the last seconds: which share was lost."""

    def __init__(self) -> None:
        self.are_known = False  # whether it has sent any
        self.has_blocks = False  # of which some may be lost
        self._sendings, self._again = Rate(), Rate()  # datagrams
        self._answered, self._lost = Rate(), Rate()  # blocks

    def take(self, record: Record) -> None:
        """Learn from a record `usage`."""
        every = record.fields.get("flows", {})
        flows = [flow for peer, flow in every.items() if not peer.startswith(f"{record.node}/")]  # else down
        sent, again = (sum(sum(flow.get(name, {}).values()) for flow in flows) for name in ("sent", "again"))
        if not sent:
            return
        self.are_known = True
        self._sendings.reach(record.t, sent + again)
        self._again.reach(record.t, again)
        blocks = record.fields.get("blocks", {})
        self.has_blocks |= bool(_sent_of(blocks.get("given", {})))
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


class DatagramTotals:
    """Sums up the datagrams of a run.

    Attributes:
        paths: Each time that datagrams were found not to pass from one node to another, and that they pass again.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        # By node, of each of its processes: flows by peer, and blocks.
        self._flows: dict[str, list[dict[str, Fields]]] = defaultdict(lambda: [{}])
        self._blocks: dict[str, list[Fields]] = defaultdict(lambda: [{}])
        self.paths: list[Fields] = []

    def start(self, node: str) -> None:
        """A node has been started, maybe again: it counts from zero."""
        self._flows[node].append({})
        self._blocks[node].append({})

    def use(self, node: str, usage: Fields) -> None:
        """A node has told what it has counted since its start."""
        self._flows[node][-1] = usage.get("flows", {})
        self._blocks[node][-1] = usage.get("blocks", {})

    def path(self, record: Record) -> None:
        """A node has found out whether datagrams pass."""
        ends = {"node": record.node, "peer": record.fields["peer"]}
        was_blocked = any(path.items() >= ends.items() for path in self.paths)
        if was_blocked or not record.fields["passes"]:
            self.paths.append({**ends, "passes": record.fields["passes"], "why": record.fields["why"]})

    def by_tier(self) -> dict[Tier, dict[str, Fields]]:
        """By tier and server; tiers whose channel sends no datagrams are left out.

        Of each server: `classes` of what goes up, by name, with all counts; `up`, what parity was sent; `down`, the
        counts of datagrams that go down; `dropped_early`, datagrams of both; and `may_lose`, whether what goes up is
        cut into blocks that may be lost.
        """
        found: dict[Tier, dict[str, Fields]] = {}
        for server in self._run.tree.servers:
            for tier, channel, edges in self._edges(server):
                told, classes = self._told(edges), classes_of(channel)
                if classes is not None or told["classes"] or any(told["down"].values()):
                    told["may_lose"] = classes is not None and classes.loses
                    found.setdefault(tier, {})[server] = told
        return found

    def _edges(self, server: str) -> Iterator[tuple[Tier, EdgeTable, list[tuple[str, str]]]]:
        """A server's edges upward, and to its workers: child and parent."""
        tree, above = self._run.tree, self._run.edge_above(server)
        tier: Tier = "wan" if tree.parent(server) == TOP else "region"
        yield tier, above, [(server, parent) for parent in tree.parents(server)]
        if workers := [child for child in tree.children(server) if tree.is_worker(child)]:
            yield "lan", self._run.lan, [(worker, server) for worker in workers]

    def _told(self, edges: Sequence[tuple[str, str]]) -> Fields:
        lower = [flows.get(parent, {}) for child, parent in edges for flows in self._flows[child]]
        upper = [flows.get(child, {}) for child, parent in edges for flows in self._flows[parent]]
        blocks = [blocks for child in dict(edges) for blocks in self._blocks[child]]
        up = _by_class((SENT_COUNTS, lower), (CAME_COUNTS, upper), (BLOCK_COUNTS, blocks))
        down = _by_class((SENT_COUNTS, upper), (CAME_COUNTS, lower)).values()
        return {
            "classes": {
                _name(level): {name: counts[name] for name in ALL_COUNTS} for level, counts in up.items()
            },
            "up": _parity(lower, upper),
            "down": {name: sum(counts[name] for counts in down) for name in (*SENT_COUNTS, *CAME_COUNTS)}
            | _parity(upper, lower),
            "dropped_early": sum(flow.get("early", 0) for flow in (*lower, *upper)),
        }


def _parity(senders: Sequence[Fields], receivers: Sequence[Fields]) -> dict[str, int]:
    """Parity pieces, and the pieces that were rebuilt from them."""
    ends = zip(PARITY_COUNTS, (senders, receivers), strict=True)
    return {name: sum(flow.get(name, 0) for flow in flows) for name, flows in ends}


def _by_class(*sources: tuple[Sequence[str], Iterable[Fields]]) -> dict[str, Counter[str]]:
    """Counts of each class, the reliable one first and what was not sent last. `sources`: names of counts, of whom."""
    totals: dict[str, Counter[str]] = defaultdict(Counter)
    for names, counted in sources:
        for name, each in ((name, each) for each in counted for name in names):
            for level, count in each.get(name, {}).items():
                totals[level][name] += count
    return {level: totals[level] for level in sorted(totals, key=lambda level: (level == UNSENT, int(level)))}


def _name(level: str) -> str:
    return {"0": "reliable", UNSENT: "not sent"}.get(level, f"class {level}")


def _sent_of(by_class: Mapping[str, int]) -> int:
    return sum(count for level, count in by_class.items() if level != UNSENT)


def percent(share: float) -> str:
    """`3.1%`; `<0.1%` where that would read as none."""
    return "<0.1%" if 0 < share < LEAST_SHARE else f"{share:.1%}"


def datagram_lines(parties: Mapping[str, Fields], paths: Iterable[Fields] = (), rounds: int = 0) -> str:
    """What the closing table says: what was sent, what was lost, and where datagrams did not pass; a line each.

    Args:
        parties: What `DatagramTotals.by_tier` has of a tier.
        paths: Its `paths`.
        rounds: How many the run has made; before the first one, none may be sent.
    """
    up: dict[str, Counter[str]] = {}
    parity: Counter[str] = Counter()
    down: Counter[str] = Counter()
    for party in parties.values():
        parity.update(party["up"])
        down.update(party["down"])
        for name, counts in party["classes"].items():
            up.setdefault(name, Counter()).update(counts)
    blocked = _blocked(paths)
    told = [_sendings("up: ", up, parity), _sendings("down: ", {"reliable": down}, down)]
    if any(told):
        told += [_whole(parties, up), *_losses(up, rounds)]
    elif parties and rounds:
        told = ["none sent" if blocked else "none sent: TCP carried everything"]
    return "\n".join(filter(None, [*told, blocked]))


def _sendings(way: str, totals: Mapping[str, Counter[str]], parity: Counter[str]) -> str:
    """`up: reliable 1,234 sent (+56 again), class 1 160 sent, 90 of parity (30 rebuilt)`."""
    told = []
    for name, counts in totals.items():
        again = f" (+{counts['again']:,} again)" if counts["again"] else ""
        if counts["sent"]:
            told.append(f"{name} {counts['sent']:,} sent{again}")
    if unsent := _unsent(totals):
        told.append(f"{unsent:,} blocks not sent")
    if parity["parity"]:
        told.append(f"{parity['parity']:,} of parity ({parity['rebuilt']:,} rebuilt)")
    return way + ", ".join(told) if told else ""


def _unsent(totals: Mapping[str, Counter[str]]) -> int:
    """Blocks that the channel has kept back. Those that were added went over TCP, in a payload as it stands."""
    counts = totals.get("not sent", Counter())
    return counts["given"] - counts["answered"] + counts["returned"]


def _whole(parties: Mapping[str, Fields], totals: Mapping[str, Counter[str]]) -> str:
    """Where blocks may be lost, and there are none."""
    has_blocks = any(counts["given"] for counts in totals.values())
    if has_blocks or not any(party["may_lose"] for party in parties.values()):
        return ""
    return "no payload was cut into blocks: each was sent until it had arrived"


def _losses(totals: Mapping[str, Counter[str]], rounds: int) -> Iterable[str]:
    """Which share of the blocks that were sent took no part in their round, and what became of it."""
    sent = [counts for name, counts in totals.items() if name != "not sent"]
    answered, lost = (sum(counts[name] for counts in sent) for name in ("answered", "returned"))
    unknown = sum(counts["given"] - counts["answered"] for counts in totals.values())
    ended = f", {unknown:,} not answered when the run ended" if unknown else ""
    if answered:
        yield (f"{percent(lost / answered)} of blocks lost" if lost else "no blocks lost") + ended
    returned = sum(counts["returned"] for counts in totals.values())
    if returned:
        what = [*["lost blocks"] * (lost > 0), *["blocks not sent"] * (returned > lost)]
        number = f" (about {max(1, round(returned / rounds)):,})" if rounds else ""
        yield f"{' and '.join(what)} go with the next contribution; the last one's{number} did not"


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
