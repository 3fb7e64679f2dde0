"""Vector clocks: how often each worker has pushed, and how far a pull may run ahead of the slowest.

    staleness    a worker that has pushed c times gets rows with at least the first c - staleness pushes of everybody
    0            sequential: pushes of one number are applied together, in the order of the workers; the same bits
    n            bounded delay: pushes are applied as they come, and nobody is more than n ahead
    None         eventual: nobody waits

Workers of one group wait for each other, and for nobody else. Source: Li et al., OSDI 2014; Ho et al., NIPS 2013.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

FURTHEST = 1 << 20


class Clocks:
    """Those of a table at one shard. `groups`: of each worker that uses it. `goes_on`: without those who are lost."""

    def __init__(self, staleness: int | None, goes_on: bool) -> None:
        self.staleness, self._goes_on = staleness, goes_on
        self.groups: dict[str, str] = {}
        self._of: dict[str, int] = {}
        self._present: frozenset[str] = frozenset()

    def opened(self, worker: str, group: str, present: Iterable[str]) -> int:
        """A worker uses the table from now on; returns where its clock stands.

        Where the run has gone on without it, that is not behind the others of its group.
        """
        self.groups[worker] = group
        self._of.setdefault(worker, 0)
        self.changed(present)
        self._catch_up(worker)
        return self._of[worker]

    def changed(self, present: Iterable[str]) -> None:
        """These take part now. Whoever has come back goes on where the slowest of its group is."""
        before, self._present = self._present, frozenset(present)
        for worker in (self._present - before) & self._of.keys():
            self._catch_up(worker)

    def _catch_up(self, worker: str) -> None:
        if not self._goes_on:
            return
        others = [self._of[each] for each in self.group_of(worker) if each != worker]
        if others:
            self._of[worker] = max(self._of[worker], min(others))

    def state(self) -> tuple[dict[str, str], dict[str, int], list[str]]:
        """Groups, clocks, and who takes part."""
        return dict(self.groups), dict(self._of), sorted(self._present)

    def put_back(self, groups: dict[str, str], clocks: dict[str, int], present: Iterable[str]) -> None:
        """The inverse."""
        self.groups, self._of, self._present = dict(groups), dict(clocks), frozenset(present)

    def of(self, worker: str) -> int:
        """How often it has pushed."""
        return self._of[worker]

    def all(self) -> Mapping[str, int]:
        """Of every worker."""
        return dict(self._of)

    def reached(self, worker: str, clock: int) -> None:
        """It has pushed so often; or has heard at another shard that the run has gone on without it so far."""
        self._of[worker] = max(self._of[worker], clock)

    def can_be(self, worker: str, clock: int) -> bool:
        """Whether a worker can have come so far: no clock is very far ahead of all others."""
        return -1 <= clock <= max(self._of.values()) + FURTHEST

    def level(self, worker: str) -> None:
        """All of its group have pushed as often as the one that has pushed most."""
        group = self.group_of(worker)
        self._of |= dict.fromkeys(group, max(self._of[each] for each in group))

    def group_of(self, worker: str) -> list[str]:
        """Those of its group who take part, itself too if it does."""
        group = self.groups[worker]
        return [each for each, of in self.groups.items() if of == group and each in self._present]

    def slowest(self, worker: str) -> int:
        """How often everybody in its group has pushed."""
        return min((self._of[each] for each in self.group_of(worker)), default=self._of[worker])

    def behind(self, worker: str, clock: int) -> list[str]:
        """For whom a pull of a worker with that clock has to wait."""
        if self.staleness is None:
            return []
        return [each for each in self.group_of(worker) if self._of[each] < clock - self.staleness]
