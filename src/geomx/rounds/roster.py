"""Who takes part: decided once, from what is known, by a pure function, with its reason.

The first shard decides (`geomx.node.members.roster_keeper`), and everybody else is told by a `Roster`. Workers alone
are counted: a server is lost with all below it, and back as soon as one of its workers asks to be let in.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence, Set
from typing import NamedTuple

from geomx.rounds.losses import Losses
from geomx.tree import GUESTS, Tree
from geomx.wire.roster_messages import Roster, Why

MOST_TOLD = 8  # names of a kind


class RosterChange(NamedTuple):
    """Who takes no part from now on, who has come back, and why."""

    out: frozenset[str]
    joined: tuple[str, ...]
    why: Why


def at_first(tree: Tree) -> Roster:
    """Whom the run begins with."""
    return Roster(0, tree.bitmap_of(tree.guests))


def decide(
    tree: Tree,
    present: Set[str],
    out: Set[str],
    lost: Mapping[str, str],
    asking: Iterable[str],
    losses: Losses,
    has_begun: bool = True,
    have_left: bool = False,
) -> RosterChange:
    """Decide who takes part.

    Args:
        tree: Of the run.
        present: The workers that take part, and have not left.
        out: Those that do not.
        lost: Nodes of which nothing is heard any more, with the reason.
        asking: Workers that are out, are there, and want to take part.
        losses: What the run's description says.
        has_begun: Whether all have their first values. Before, nobody is left out: it may be the one who has them.
        have_left: Whether others have left at the end of the run: then the last of all is not awaited.

    Returns:
        The decision. Whoever is lost stays in, and is awaited, where too few would be left without.
    """
    below = {name for node in lost for name in tree.leaves(node)}
    joined = tuple(name for name in tree.workers if name in set(asking) & out - below)
    gone = below & present
    left = (present - gone) | set(joined)
    is_last = not left and have_left
    short = "" if has_begun else "the run has not begun"
    if has_begun and not is_last:
        short = _short_of(_counted(tree, left), _counted(tree, present | set(joined)), losses)
    told, more = list(lost.items())[:MOST_TOLD], max(0, len(lost) - MOST_TOLD)
    if short:
        return RosterChange(
            frozenset(out - set(joined)), joined, Why({}, {node: short for node, _ in told}, more)
        )
    return RosterChange(frozenset((out | gone) - set(joined)), joined, Why(dict(told), {}, more))


def reason(joined: Sequence[str], why: Why) -> str:
    """A roster's in words."""
    parts = [are_there(joined)] if joined else []
    parts += [is_lost(*each) for each in why.lost.items()]
    parts += [is_awaited(*each) for each in why.awaited.items()]
    parts += [f"{why.more} more are {'awaited' if why.awaited else 'lost'}"] if why.more else []
    return "; ".join(parts)


def are_there(names: Sequence[str]) -> str:
    """`A/0, A/1 are back`; `guest-1/0 has come`."""
    guests = [name for name in names if name.partition("/")[0] in GUESTS]
    back = [name for name in names if name not in guests]
    parts = [f"{_some(back)} {'is' if len(back) == 1 else 'are'} back"] if back else []
    parts += [f"{_some(guests)} {'has' if len(guests) == 1 else 'have'} come"] if guests else []
    return "; ".join(parts)


def _some(names: Sequence[str]) -> str:
    more = f" and {len(names) - MOST_TOLD} more" if len(names) > MOST_TOLD else ""
    return f"{', '.join(names[:MOST_TOLD])}{more}"


def is_lost(node: str, why: str) -> str:
    """`A is lost (silent)`."""
    return f"{node} is lost ({why})"


def is_awaited(node: str, why: str) -> str:
    """`A is awaited: the run has not begun`."""
    return f"{node} is awaited: {why}"


class _Counted(NamedTuple):
    workers: int
    parties: int


def _counted(tree: Tree, workers: Set[str]) -> _Counted:
    return _Counted(len(workers), len({tree.cohort_at(name, 1) for name in workers}))


def _short_of(left: _Counted, before: _Counted, losses: Losses) -> str:
    """Why so many are too few; "": they are not, or no fewer than `before`, since others have left in order."""
    if left.workers < losses.least_workers and left.workers < before.workers:
        some = "1 worker" if left.workers == 1 else f"{left.workers} workers"
        return f"{some} would be left, and run.least_workers is {losses.least_workers}"
    if left.parties < losses.least_parties and left.parties < before.parties:
        some = "1 party" if left.parties == 1 else f"{left.parties} parties"
        return f"{some} would be left, and run.least_parties is {losses.least_parties}"
    return ""
