"""What has crossed the edges of a run, and how much of that were the first weights.

Edges are of three tiers: the WAN's end at the global servers, a region's at its server, and the LAN's are between
workers and their local servers. With an overlay, what servers of one tier send each other counts once, as up. All bytes
are counted on the sockets, headers included: a server tells those of its edges (`usage`). What crosses them before a
step, it tells of its edge upward when it sends up its first contribution to a step (`first_step`); over the LAN its
workers have begun by then, and tell for themselves.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from geomx.config import Run
from geomx.observe.progress import bytes_above, ends_above
from geomx.tree import TOP

Tier = Literal["wan", "region", "lan"]


@dataclass(frozen=True, slots=True)
class Crossed:
    """Bytes over edges of one tier; up is towards the root."""

    up: int = 0
    down: int = 0

    @property
    def total(self) -> int:
        return self.up + self.down

    def __add__(self, other: Crossed) -> Crossed:
        return Crossed(self.up + other.up, self.down + other.down)

    def __sub__(self, other: Crossed) -> Crossed:
        return Crossed(self.up - other.up, self.down - other.down)


class Traffic:
    """See the module's text."""

    def __init__(self, run: Run) -> None:
        self._tree = tree = run.tree
        self._above: dict[str, Tier] = {
            server: "wan" if tree.parent(server) == TOP else "region" for server in tree.servers
        }
        self._crossed: dict[str, Crossed] = {}  # by node, over its edges upward
        self._before: dict[str, Crossed] = {}  # the same, of processes before
        self._first: dict[str, Crossed] = defaultdict(Crossed)  # the same, of all times that it was started

    def start(self, node: str) -> None:
        """A node has been started, maybe again: it counts from zero."""
        for lower in (node, *self._workers(node)):
            if node in self._above and lower in self._crossed:
                self._before[lower] = self._crossed[lower]

    def use(self, node: str, usage: dict[str, Any]) -> None:
        """A node has told what has crossed its edges; of a worker's, its local server tells."""
        if node in self._above:
            self._cross(node, *self._upward(node, usage))
            for child in self._workers(node):
                self._cross(child, usage["received"].get(child, 0), usage["sent"].get(child, 0))

    def _cross(self, lower: str, up: int, down: int) -> None:
        self._crossed[lower] = self._before.get(lower, Crossed()) + Crossed(up, down)

    def _upward(self, node: str, usage: dict[str, Any]) -> tuple[int, int]:
        up, _ = bytes_above(usage, ends_above(self._tree, node))
        _, down = bytes_above(usage, self._tree.parents(node))
        return up, down

    def _workers(self, node: str) -> list[str]:
        return [child for child in self._tree.children(node) if self._tree.is_worker(child)]

    def begin(self, node: str, usage: dict[str, Any]) -> None:
        """A node sends what belongs to a step for the first time since it was started: until then this has crossed."""
        if node not in self._tree.shards:
            self._first[node] += Crossed(*self._upward(node, usage))

    def all(self, tier: Tier) -> Crossed:
        """Over all edges of a tier."""
        return sum((self._crossed[node] for node in self._nodes(tier) if node in self._crossed), Crossed())

    def first_weights(self, tier: Tier) -> Crossed | None:
        """What of `all` had crossed before the first step; None where not every node has told."""
        nodes = self._nodes(tier)
        return sum((self._first[node] for node in nodes), Crossed()) if self._first.keys() >= nodes else None

    def steps_above(self, server: str) -> Crossed | None:
        """What has crossed a server's edge to its parents since; None where that is not known."""
        if server not in self._first or server not in self._crossed:
            return None
        return self._crossed[server] - self._first[server]

    def _nodes(self, tier: Tier) -> set[str]:
        """The lower ends of its edges."""
        if tier == "lan":
            return set(self._tree.workers)
        return {server for server, above in self._above.items() if above == tier}
