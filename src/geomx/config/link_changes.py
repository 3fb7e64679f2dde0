"""What a run's events make of a party's emulated link, as a series of changes.

Events lie upon each other in the order of the file: while several of them last, the later ones win, key by key. When
one is over, what it covered shows again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import inf
from typing import Any

from geomx.channels.emulation.link import LinkSpec
from geomx.config.tables import EventTable, LinkTable

KEYS = (*LinkTable.model_fields, "cut")  # what an event may change


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
    for moment in sorted({event.at_s for event in events} | set(map(_until_s, events)) - {inf}):
        lasting = [event for event in events if event.at_s <= moment < _until_s(event)]
        given = [event.model_dump(exclude_none=True, include=set(KEYS)) for event in lasting]
        now = link.changed({key: value for keys in given for key, value in keys.items()})
        if now != last:
            yield LinkChange(moment, events[0].party, now)
        last = now


def _until_s(event: EventTable) -> float:
    return inf if event.for_s is None else event.at_s + event.for_s
