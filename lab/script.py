"""The events of a description on a clock: what holds on a pair and when that changes, and which sites rebind when.

What lies over what is the same as in a run's description: `geomx.config.link_changes.overlays`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from geomx.config.link_changes import overlays
from lab.describe import EventTable, Pair, RebindTable
from lab.link import Conditions

Subject = Pair | str  # a directed link whose conditions change, or a site that rebinds


class Script:
    """Plays events on a clock of its own, which stands still until `begin`. Times are in seconds."""

    def __init__(
        self, events: Sequence[EventTable], names: Sequence[str], rebinds: Sequence[RebindTable] = ()
    ) -> None:
        """`names`: of all sites."""
        spoken_of: dict[Pair, list[EventTable]] = defaultdict(list)
        for event in events:
            for pair in event.pairs(names):
                spoken_of[pair].append(event)
        moments: list[tuple[float, Subject, Mapping[str, Any]]] = [
            (at_s, pair, over) for pair, own in spoken_of.items() for at_s, over in overlays(own)
        ]
        moments += [(rebind.at_s, rebind.site, {}) for rebind in rebinds]
        self._moments = sorted(moments, key=lambda moment: moment[0])
        self._over: dict[Pair, Mapping[str, Any]] = {}  # what lies over a pair now
        self._began_at = inf
        self._next = 0

    def begin(self, now: float) -> set[Subject]:
        """The script's clock shows 0 at `now`; one that had begun begins again. What this touches."""
        touched: set[Subject] = set(self._over)
        self._over.clear()
        self._began_at = now
        self._next = 0
        return touched | self.due(now)

    def elapsed_s(self, now: float) -> float | None:
        """What its clock shows; None before `begin`."""
        return None if self._began_at == inf else now - self._began_at

    def next_at(self) -> float:
        """When it next has something to do; inf where it has not."""
        return self._began_at + self._moments[self._next][0] if self._next < len(self._moments) else inf

    def due(self, now: float) -> set[Subject]:
        """Play what is due; what this touches."""
        touched: set[Subject] = set()
        while self.next_at() <= now:
            _, subject, changes = self._moments[self._next]
            self._next += 1
            touched.add(subject)
            if not isinstance(subject, str):
                self._over[subject] = changes
        return touched

    def conditions(self, pair: Pair, base: Conditions) -> Conditions:
        """What holds on a pair for which `base` holds where no event does."""
        return base.changed(self._over.get(pair, {}))
