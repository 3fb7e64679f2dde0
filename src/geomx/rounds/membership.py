"""Who belongs to a run, who moves in step with whom, and who takes part in which turn.

The members are the workers, the leaves of the tree, in the order of the run's description. Every node counts
leaves, never children: an aggregate that was merged on the way still names the workers inside it.

Of the members, some may be *out*: lost, or not there yet. Whoever comes back *begins* with a turn of each of its
cohorts. A turn awaits those who are in and have begun; what others have contributed to it counts all the same.

Turns are counted in each cohort by itself. Cohorts are those of `geomx.tree`: the whole run (`""`), the workers of a
region or of a party (`"A"`), or one worker (`"A/0"`).
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Mapping

from geomx.errors import ProtocolError
from geomx.tree import EVERYONE, Tree


class Members:
    """The leaves below one node, in the order in which contributions are added."""

    def __init__(self, tree: Tree, node: str) -> None:
        self.tree = tree
        self.order: dict[str, int] = {name: place for place, name in enumerate(tree.leaves(node))}
        self.out: frozenset[str] = tree.guests.intersection(self.order)
        self._cohorts: dict[str, frozenset[str]] = {EVERYONE: frozenset(self.order)}
        self._left: dict[str, Mapping[str, int]] = {}  # of each that has left: its last turn in each cohort
        self._begins: dict[str, Mapping[str, int]] = {}  # of each that has come back: its first
        self._bounds: dict[
            str, list[int]
        ] = {}  # of a cohort, in order: turns from which on others are awaited
        self._awaited: dict[tuple[str, int], frozenset[str]] = {}  # of a cohort, behind so many bounds

    def of(self, cohort: str) -> frozenset[str]:
        """The members of a cohort, whether they take part or not; raises `ProtocolError` where there are none."""
        if cohort not in self._cohorts:
            found = frozenset(self.order).intersection(self.tree.leaves(cohort))
            if not found:
                raise ProtocolError(f"nobody here belongs to the cohort {cohort!r}")
            self._cohorts[cohort] = found
        return self._cohorts[cohort]

    def expected(self, turn: int, cohort: str = EVERYONE) -> frozenset[str]:
        """The members that a turn of a cohort awaits: those who are in, have begun, and have not left before it."""
        if cohort not in self._bounds:
            last = (self._last(name, cohort) + 1 for name in self.of(cohort) & self._left.keys())
            first = (self._first(name, cohort) for name in self.of(cohort) & self._begins.keys())
            self._bounds[cohort] = sorted({*last, *first})
        behind = bisect_right(self._bounds[cohort], turn)
        if (cohort, behind) not in self._awaited:
            not_left = {name for name in self._left if self._last(name, cohort) < turn}
            not_yet = {name for name in self._begins if self._first(name, cohort) > turn}
            self._awaited[cohort, behind] = self.of(cohort) - self.out - not_left - not_yet
        return self._awaited[cohort, behind]

    def leave(self, names: Iterable[str], last_turns: Mapping[str, int]) -> None:
        """These members take no part in turns after the last of each cohort. Saying it twice changes nothing."""
        for name in names:
            if name not in self.order:
                raise ProtocolError(f"{name} leaves a run of which it is no member")
            self._left.setdefault(name, last_turns)
        self._forget()

    def enroll(self, out: Iterable[str], begins: Mapping[str, Mapping[str, int]]) -> frozenset[str]:
        """These are out, all others in; `begins`: of whoever has come back. Returns who is out since now."""
        before, self.out = self.out, frozenset(self.order).intersection(out)
        for name in begins.keys() & self.order.keys():
            own = {cohort: turn for cohort, turn in begins[name].items() if name in self.tree.leaves(cohort)}
            self._begins[name] = own
        self._forget()
        return self.out - before

    def begins(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """Of those of these who have come back: with which turn of each cohort they have begun."""
        return {name: dict(self._begins[name]) for name in names if name in self._begins}

    def put_back(
        self,
        out: Iterable[str],
        left: Mapping[str, Mapping[str, int]],
        begins: Mapping[str, Mapping[str, int]],
    ) -> None:
        """What `out`, `left` and `begins` have given of all."""
        self.out = frozenset(self.order).intersection(out)
        self._left, self._begins = dict(left), dict(begins)
        self._forget()

    def begin_of(self, cohort: str) -> int:
        """The turn with which those who take part in a cohort have begun: 0, unless all of them have come back."""
        return min((self._first(name, cohort) for name in self.present(self.of(cohort))), default=0)

    def left(self, names: Iterable[str]) -> dict[str, dict[str, int]]:
        """Of those of these who have left: their last turn in each cohort."""
        return {name: dict(self._left[name]) for name in names if name in self._left}

    def has_all_of(self, cohort: str) -> bool:
        """Whether a whole cohort is below this node: here, and nowhere above, its mean is known."""
        return len(self.of(cohort)) == len(self.tree.leaves(cohort))

    def has_left(self, names: Iterable[str]) -> bool:
        """Whether all of these have left."""
        return all(name in self._left for name in names)

    def present(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these who are in, and have not left."""
        return frozenset(names) - self.out - self._left.keys()

    def are_vacant(self, names: Iterable[str]) -> bool:
        """Whether these are places for whoever may come later, and nobody takes part there."""
        vacant = self.out & self.tree.guests
        return bool(vacant) and vacant.issuperset(names)

    @property
    def all_left(self) -> bool:
        """Whether everybody who is in has left; of a node below which all are out, somebody may come back."""
        return bool(self._left) and not self.present(self.order)

    def first(self, origins: Iterable[str]) -> int:
        """The place of the lowest origin: contributions are added in this order."""
        return min(self.order[name] for name in origins)

    def _last(self, name: str, cohort: str) -> int:
        return self._left[name].get(cohort, -1)

    def _first(self, name: str, cohort: str) -> int:
        return self._begins.get(name, {}).get(cohort, 0)

    def _forget(self) -> None:
        self._bounds, self._awaited = {}, {}
