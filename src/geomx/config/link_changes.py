"""What events make of a link, as a series of changes: those of a run's description, and those of the lab's networks.

Events lie upon each other in the order of the file: while several of them last, the later ones win, key by key. When
one is over, what it covered shows again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf
from typing import Any, Protocol

from geomx.channels.emulation.link import LinkSpec
from geomx.config.tables import EventTable, LinkTable

KEYS = (*LinkTable.model_fields, "cut")  # what an event may change


class Event(Protocol):
    """From `at_s` on, for `for_s` seconds or for good, `changes` hold."""

    @property
    def at_s(self) -> float: ...

    @property
    def for_s(self) -> float | None: ...

    @property
    def changes(self) -> Mapping[str, Any]: ...


def overlays(events: Sequence[Event]) -> Iterator[tuple[float, dict[str, Any]]]:
    """What lies over a link from each moment on, in order of time. `events`: in the order of the file."""
    beginning = deque(sorted(enumerate(events), key=lambda numbered: numbered[1].at_s))
    lying: dict[
        str, list[tuple[int, float, Any]]
    ] = {}  # by key heaps of (-place, until, value): the last on top
    for moment in sorted({event.at_s for event in events} | set(map(_until_s, events)) - {inf}):
        while beginning and beginning[0][1].at_s <= moment:
            place, event = beginning.popleft()
            for key, value in event.changes.items():
                heappush(lying.setdefault(key, []), (-place, _until_s(event), value))
        for heap in lying.values():
            while heap and heap[0][1] <= moment:
                heappop(heap)
        yield moment, {key: heap[0][2] for key, heap in lying.items() if heap}


def _until_s(event: Event) -> float:
    return inf if event.for_s is None else event.at_s + event.for_s


@dataclass(frozen=True, slots=True)
class LinkChange:
    """How a party's link is from `at_s` seconds after the beginning of training on."""

    at_s: float
    party: str
    link: LinkSpec

    @property
    def fields(self) -> dict[str, Any]:
        """What is recorded of it."""
        told = {"party": self.party, "at_s": self.at_s, "state": self.link.words}
        return told | {key: getattr(self.link, key) for key in KEYS}


def changes_of(link: LinkSpec, events: Sequence[EventTable]) -> Iterator[LinkChange]:
    """Every change of a party's link, in order. `events`: of this party, in the order of the file."""
    last = link
    for at_s, changes in overlays(events):
        now = link.changed(changes)
        if now != last:
            yield LinkChange(at_s, events[0].party, now)
        last = now
