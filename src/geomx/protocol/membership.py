"""Who belongs to a run, and who takes part in which turn.

The members are the workers, the leaves of the tree, in the order of the run's description. Every node counts
leaves, never children: an aggregate that was merged on the way still names the workers inside it.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

from geomx.errors import ProtocolError


class Members:
    """The leaves below one node, in the order in which contributions are added."""

    def __init__(self, names: Iterable[str]) -> None:
        self.order: dict[str, int] = {name: place for place, name in enumerate(names)}
        self._everyone = frozenset(self.order)
        self._left: dict[str, int] = {}  # the last turn of each that has left
        self._last_turns: list[int] = []  # the same, in order
        self._remaining: dict[int, frozenset[str]] = {0: self._everyone}  # once so many are gone

    def expected(self, turn: int) -> frozenset[str]:
        """The members of one turn: those that have not left before it."""
        gone = bisect_left(self._last_turns, turn)
        if gone not in self._remaining:
            self._remaining[gone] = self._everyone - {
                name for name, last in self._left.items() if last < turn
            }
        return self._remaining[gone]

    def leave(self, names: Iterable[str], last_turn: int) -> None:
        """These members take no part in turns after `last_turn`. Saying it twice changes nothing."""
        for name in names:
            if name not in self.order:
                raise ProtocolError(f"{name} leaves a run of which it is no member")
            self._left.setdefault(name, last_turn)
        self._last_turns = sorted(self._left.values())
        self._remaining = {0: self._everyone}

    def has_left(self, names: Iterable[str]) -> bool:
        """Whether all of these have left."""
        return all(name in self._left for name in names)

    @property
    def all_left(self) -> bool:
        return len(self._left) == len(self._everyone)

    def first(self, origins: Iterable[str]) -> int:
        """The place of the lowest origin: contributions are added in this order."""
        return min(self.order[name] for name in origins)
