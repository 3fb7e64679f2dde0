"""Turns of several slices that count as a whole: who is lost halfway through one counts in none of its slices.

Local steps change all weights of a worker at once, so a mean over some of its slices and not others would be of no
model that anybody has had. Each push of such a turn says which slices take part (a bitmap, slice 0 in the lowest bit of
the first byte), so that a server knows when it has all that it gathers of them, from everybody. Only then does any
close; on several shards, once the first has heard so of all that have slices of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from geomx.bits import places_of


class TurnTogether:
    """One such turn at one server. `needed`: its slices that are gathered here; `bitmap`: all of them."""

    __slots__ = ("_come", "bitmap", "is_named", "needed")

    def __init__(self, bitmap: bytes, gathered: frozenset[int]) -> None:
        self.bitmap = bitmap
        self.needed = gathered.intersection(places_of(bitmap))
        self.is_named = False  # it may close
        self._come: dict[str, set[int]] = {}  # by worker

    def came(self, origins: Iterable[str], index: int) -> None:
        """These have contributed to a slice."""
        for name in origins:
            self._come.setdefault(name, set()).add(index)

    def forget(self, names: Iterable[str]) -> None:
        """What these have contributed does not count."""
        for name in names:
            self._come.pop(name, None)

    def has_all_of(self, members: Set[str]) -> bool:
        """Whether all of these have contributed to all slices."""
        return bool(members) and all(self._come.get(name, set()) >= self.needed for name in members)
