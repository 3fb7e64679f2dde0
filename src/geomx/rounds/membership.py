"""Who belongs to a run, who moves in step with whom, and who takes part in which turn.

The members are the workers, the leaves of the tree, in the order of the run's description. Every node counts
leaves, never children: an aggregate that was merged on the way still names the workers inside it.

Turns are counted in each cohort by itself. Cohorts are those of `geomx.tree`: the whole run (`""`), the workers of a
region or of a party (`"A"`), or one worker (`"A/0"`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping

from geomx.errors import ProtocolError
from geomx.tree import EVERYONE, Tree


class Members:
    """The leaves below one node, in the order in which contributions are added."""

    def __init__(self, tree: Tree, node: str) -> None:
        self.tree = tree
        self.order: dict[str, int] = {name: place for place, name in enumerate(tree.leaves(node))}
        self._cohorts: dict[str, frozenset[str]] = {EVERYONE: frozenset(self.order)}
        self._left: dict[str, Mapping[str, int]] = {}  # of each that has left: its last turn in each cohort
        self._last_turns: dict[str, list[int]] = {}  # of a cohort, in order
        self._remaining: dict[tuple[str, int], frozenset[str]] = {}  # of a cohort, once so many are gone

    def of(self, cohort: str) -> frozenset[str]:
        """The members of a cohort, whether they have left or not; raises `ProtocolError` where there are none."""
        if cohort not in self._cohorts:
            found = frozenset(self.order).intersection(self.tree.leaves(cohort))
            if not found:
                raise ProtocolError(f"nobody here belongs to the cohort {cohort!r}")
            self._cohorts[cohort] = found
        return self._cohorts[cohort]

    def expected(self, turn: int, cohort: str = EVERYONE) -> frozenset[str]:
        """The members of one turn of a cohort: those that have not left before it."""
        if cohort not in self._last_turns:
            self._last_turns[cohort] = sorted(
                self._last(name, cohort) for name in self.of(cohort) & self._left.keys()
            )
        gone = bisect_left(self._last_turns[cohort], turn)
        if (cohort, gone) not in self._remaining:
            self._remaining[cohort, gone] = self.of(cohort) - {
                name for name in self._left if self._last(name, cohort) < turn
            }
        return self._remaining[cohort, gone]

    def leave(self, names: Iterable[str], last_turns: Mapping[str, int]) -> None:
        """These members take no part in turns after the last of each cohort. Saying it twice changes nothing."""
        for name in names:
            if name not in self.order:
                raise ProtocolError(f"{name} leaves a run of which it is no member")
            self._left.setdefault(name, last_turns)
        self._last_turns, self._remaining = {}, {}

    def has_all_of(self, cohort: str) -> bool:
        """Whether a whole cohort is below this node: here, and nowhere above, its mean is known."""
        return len(self.of(cohort)) == len(self.tree.leaves(cohort))

    def has_left(self, names: Iterable[str]) -> bool:
        """Whether all of these have left."""
        return all(name in self._left for name in names)

    @property
    def all_left(self) -> bool:
        return len(self._left) == len(self.order)

    def first(self, origins: Iterable[str]) -> int:
        """The place of the lowest origin: contributions are added in this order."""
        return min(self.order[name] for name in origins)

    def _last(self, name: str, cohort: str) -> int:
        return self._left[name].get(cohort, -1)
