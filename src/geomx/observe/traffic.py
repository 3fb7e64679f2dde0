"""What has crossed the edges of a run, and how much of that were the first weights.

All bytes are counted on the sockets, headers included: a local server tells those of its edges (`usage`). What crosses
them before a step, it tells of its edge to the WAN when it sends up its first contribution to a step (`first_step`);
over the LAN its workers have begun by then, and tell for themselves.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any, Literal

from geomx.config import Run
from geomx.observe.progress import wan_bytes

Tier = Literal["wan", "lan"]


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
        self._run = run
        self._all: dict[Tier, dict[str, Crossed]] = {"wan": {}, "lan": {}}  # by local server
        # By local server over the WAN, by worker over the LAN: of all times that it was started.
        self._first: dict[Tier, dict[str, Crossed]] = {
            "wan": defaultdict(Crossed),
            "lan": defaultdict(Crossed),
        }

    def use(self, node: str, usage: dict[str, Any]) -> None:
        """A node has told what has crossed its edges."""
        if node in self._run.servers:
            self._all["wan"][node] = wan = Crossed(*wan_bytes(usage))
            self._all["lan"][node] = Crossed(
                sum(usage["received"].values()), sum(usage["sent"].values())
            ) - Crossed(wan.down, wan.up)

    def begin(self, node: str, usage: dict[str, Any]) -> None:
        """A node sends what belongs to a step for the first time since it was started: until then this has crossed."""
        if node in self._run.servers:
            self._first["wan"][node] += Crossed(*wan_bytes(usage))
        elif node in self._run.workers:
            self._first["lan"][node] += Crossed(sum(usage["sent"].values()), sum(usage["received"].values()))

    def all(self, tier: Tier) -> Crossed:
        """Over all edges of a tier."""
        return sum(self._all[tier].values(), Crossed())

    def first_weights(self, tier: Tier) -> Crossed | None:
        """What of `all` had crossed before the first step; None where not every node has told."""
        told = self._first[tier]
        nodes = self._run.servers if tier == "wan" else self._run.workers
        return sum(told.values(), Crossed()) if told.keys() >= set(nodes) else None

    def steps_wan_of(self, party: str) -> Crossed | None:
        """What has crossed a party's edge to the WAN since; None where that is not known."""
        if party not in self._first["wan"] or party not in self._all["wan"]:
            return None
        return self._all["wan"][party] - self._first["wan"][party]
