"""Where a run stands that a node joins: what all its parents have told of it, as one."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from geomx.rounds.roster import at_first
from geomx.tree import Tree
from geomx.wire.messages import Attached, Reached
from geomx.wire.roster_messages import Roster, Standing, Turns, latest

TurnsOf = dict[str, dict[str, int]]  # by worker and cohort


@dataclass(frozen=True, slots=True)
class Joined:
    """See `Attached`.

    Attributes:
        closed: By slice, the last closed turn of the node's cohort and of everybody; empty for a fresh run.
        standings: By cohort to which all below the node belong.
        reached: How far a worker's script was, the newest last.
        roster: The newest.
        out: The workers that take no part.
        begins: By worker below that has come back, the first turn of each cohort in which it takes part. Where such a
            turn has closed, it is of no account any more, and not told.
        left: By worker below that has left, its last turn of each cohort.
    """

    closed: dict[int, tuple[int, int]]
    standings: dict[str, Standing]
    reached: tuple[Reached, ...]
    roster: Roster
    out: tuple[str, ...]
    begins: TurnsOf
    left: TurnsOf

    @classmethod
    def of(cls, told: Sequence[Attached], closed: dict[int, tuple[int, int]], tree: Tree) -> Joined:
        """By what each parent has told. Raises `ProtocolError` where that names workers that there are not."""
        *older, newest = sorted(told, key=lambda each: -1 if each.roster is None else each.roster.number)
        roster, in_order = newest.roster or at_first(tree), (*older, newest)
        return cls(
            closed,
            latest(*(each.standings for each in told)),
            newest.reached,
            roster,
            tree.workers_in(roster.out),
            ungrouped((group for each in in_order for group in each.begins), tree),
            ungrouped((group for each in in_order for group in each.left), tree),
        )


def grouped(turns_of: Mapping[str, Mapping[str, int]], tree: Tree) -> tuple[Turns, ...]:
    """The same with those workers together that have the same turns."""
    groups: dict[frozenset[tuple[str, int]], list[str]] = {}
    for name, turns in turns_of.items():
        groups.setdefault(frozenset(turns.items()), []).append(name)
    return tuple(Turns(tree.bitmap_of(names), dict(sorted(turns))) for turns, names in groups.items())


def ungrouped(groups: Iterable[Turns], tree: Tree) -> TurnsOf:
    """The inverse; of whom several tell, the last counts. Raises `ProtocolError` for workers that there are not."""
    return {name: dict(group.turns) for group in groups for name in tree.workers_in(group.workers)}
