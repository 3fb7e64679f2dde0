"""The events of a description, as a function of time: what holds on a pair, and when that changes.

Events lie upon each other in the order of the file: while several of them last, the later ones win, key by
key. When one is over, what it covered shows again.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf

from lab.conditions import Conditions
from lab.describe import Event, Pair


class Script:
    """Plays events on a clock of its own, which stands still until `begin`. Times are in seconds."""

    def __init__(self, events: Sequence[Event]) -> None:
        self._events = tuple(events)
        times = {event.at_s for event in events} | {event.until_s for event in events}
        self._moments = sorted(times - {inf})
        self._began_at = inf
        self._next = 0

    def begin(self, now: float) -> None:
        """The script's clock shows 0 at `now`; a script that had begun begins again."""
        self._began_at = now
        self._next = 0

    def elapsed_s(self, now: float) -> float | None:
        """What its clock shows; None before `begin`."""
        return None if self._began_at == inf else now - self._began_at

    def next_at(self) -> float:
        """When it next has something to do; inf where it has not."""
        return self._began_at + self._moments[self._next] if self._next < len(self._moments) else inf

    def due(self, now: float) -> set[Pair]:
        """The pairs whose conditions may have changed since this was last asked."""
        touched: set[Pair] = set()
        while self.next_at() <= now:
            moment = self._moments[self._next]
            self._next += 1
            touched |= {
                pair
                for event in self._events
                if moment in (event.at_s, event.until_s)
                for pair in event.pairs
            }
        return touched

    def pairs(self) -> Iterable[Pair]:
        """Every pair that some event speaks of."""
        return {pair for event in self._events for pair in event.pairs}

    def conditions(self, pair: Pair, base: Conditions, now: float) -> Conditions:
        """`base` with every event that lasts at `now` laid upon it. Moments count as passed once `due` told them."""
        if self._began_at == inf:
            return base
        at_s = self._moments[self._next - 1] if self._next else -inf
        for event in self._events:
            if pair in event.pairs and event.at_s <= at_s < event.until_s:
                base = base.changed(event.changes)
        return base
