"""What an overlay has done: its tables, and what its members have carried for each other."""

from __future__ import annotations

from collections import Counter, defaultdict
from typing import Any

from geomx.config import Run
from geomx.observe.records import Record
from geomx.observe.sentences import counted

MOST_PAIRS = 3  # that the report's table lists


class OverlayTotals:
    """Sums up the overlays of a run."""

    def __init__(self, run: Run) -> None:
        self._tree = run.tree
        self._states: Counter[str] = Counter()
        self._last = ""
        self._sent: dict[
            str, dict[str, int]
        ] = {}  # by node: bytes to others of its tier, of its last process
        self._before: dict[tuple[str, str], int] = defaultdict(int)  # and of those before

    def take(self, record: Record) -> None:
        """A holder has said something of its tables."""
        self._states[record.fields["state"]] += 1
        if record.fields["state"] != "used":
            self._last = record.fields["reason"]

    def start(self, node: str) -> None:
        """A node has been started, maybe again: it counts from zero."""
        for peer, size in self._sent.pop(node, {}).items():
            self._before[node, peer] += size

    def use(self, node: str, usage: dict[str, Any]) -> None:
        """A node has told what has crossed its edges."""
        if self._tree.is_shard(node) or node not in self._tree.nodes:
            return
        tier = self._tree.children(self._tree.parent(node))
        self._sent[node] = {peer: size for peer, size in usage["sent"].items() if peer in tier}

    def told(self) -> dict[str, Any] | None:
        """For the report; None: there was none. `between`: bytes by sender and receiver."""
        pairs = defaultdict(int, self._before)
        for node, sent in self._sent.items():
            for peer, size in sent.items():
                pairs[node, peer] += size
        if not self._states and not pairs:
            return None
        between: dict[str, dict[str, int]] = {}
        for (node, peer), size in sorted(pairs.items()):
            between.setdefault(node, {})[peer] = size
        states = {state: self._states[state] for state in ("used", "void", "left", "star")}
        return {"tables": states, "last_reason": self._last, "between": between}


def overlay_lines(told: dict[str, Any] | None) -> str:
    """The same for people: how often a table was used, and who has sent most to whom."""
    if told is None:
        return ""
    tables = told["tables"]
    pairs = [(size, node, peer) for node, sent in told["between"].items() for peer, size in sent.items()]
    first = counted(tables["used"], "table")
    first += f", {tables['void']} void" if tables["void"] else ""
    first += f", {tables['left']} left" if tables["left"] else ""
    if not tables["used"]:
        first = f"no table: {told['last_reason']}" if told["last_reason"] else "no table"
    if not pairs:
        return first
    largest = sorted(pairs, reverse=True)[:MOST_PAIRS]
    listed = ", ".join(f"{node} → {peer} {size / 1e6:,.3g} MB" for size, node, peer in largest)
    more = f" and {len(pairs) - len(largest)} more" if len(pairs) > len(largest) else ""
    return f"{first}\n{sum(size for size, _, _ in pairs) / 1e6:,.3g} MB for each other: {listed}{more}"
