"""The one authority on who takes part: the first shard collects what is known, and decides.

A change takes one trip between shards. Whoever notices a loss, or has been asked to let a worker in, says what has
closed of the turns that this concerns, closes no other, and tells the first shard. That has the other shards hold as
well, and say the same. Then the roster holds from the turn behind the last that has closed anywhere. What comes up
meanwhile is decided next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Protocol, TypeVar

from geomx.rounds.losses import Losses
from geomx.rounds.membership import Members
from geomx.rounds.roster import decide
from geomx.wire.roster_messages import Asks, Held, Hold, Lost, Roster, Standing, Standings, latest

Told = TypeVar("Told", Lost, Asks)

MOST_AT_ONCE = 256  # nodes about which one roster decides; what is left, the next one does


class Here(Protocol):
    """What the first shard knows by itself; see `geomx.node.members.attendance`."""

    def held(self, number: int, nodes: Iterable[str]) -> Held:
        """Where the cohorts of these nodes stand here; nothing is closed before the roster of this number."""

    def pace(self) -> int:
        """See `Roster`."""

    def nears_its_end(self) -> bool:
        """Whether a worker has left that was not asked to."""

    def slowest(self) -> int:
        """The last turn of the slowest cohort that trains, where cohorts do not move in step; else -1."""


class RosterKeeper:
    """Of the first shard.

    Args:
        members: As that shard knows them.
        losses: What the run's description says.
        others: The other shards.
        here: What is known at this shard.
        send: Tells another shard.
        publish: Takes a roster that has been decided, and what to call once it holds here: what is decided next
            builds on it.
        has_begun: Whether all have their first values.
    """

    def __init__(
        self,
        members: Members,
        losses: Losses,
        others: Iterable[str],
        here: Here,
        send: Callable[[str, Hold], None],
        publish: Callable[[Roster, Callable[[], None]], None],
        has_begun: Callable[[], bool],
    ) -> None:
        self._members, self._losses, self._others = members, losses, tuple(others)
        self._here, self._send, self._publish, self._has_begun = here, send, publish, has_begun
        self._number = 0
        self._slowest_pace = -1  # that was told: nobody is behind it, whoever has come back included
        self._lost: dict[str, Lost] = {}
        self._asking: dict[str, Asks] = {}
        # Until that is published, nothing else is decided.
        self._deciding: tuple[dict[str, Lost], dict[str, Asks]] | None = None
        self._answers: dict[str, Held] = {}  # by shard; none: nobody is asked
        self._settled: dict[str, int] = {}  # the incarnations of whom a roster has settled

    @property
    def settled(self) -> dict[str, int]:
        """By node: the incarnation up to which rosters have settled what was told of it."""
        return self._settled

    def resume(self, roster: Roster, settled: Mapping[str, int] | None = None) -> None:
        """This was decided before this shard was started again. `settled`: by rosters before."""
        self._number, self._slowest_pace = roster.number, roster.pace
        self._settled |= dict(settled or {})
        self._settled |= roster.settles

    def renewed(self, shard: str) -> None:
        """Another shard was started again: it may not have heard for what all hold."""
        if self._deciding is not None and self._answers and shard not in self._answers:
            lost, asking = self._deciding
            self._send(shard, Hold(self._number + 1, tuple(dict.fromkeys((*lost, *asking)))))

    def told(self, message: Lost | Asks) -> None:
        """Somebody is lost, or asks to be let in. A run of which all have left is over."""
        if self._members.all_left:
            return
        if isinstance(message, Lost):
            known = self._lost.get(
                message.node, message
            )  # a shard that was started again knows none: it says 0
            self._lost[message.node] = max(known, message, key=lambda each: each.incarnation)
        else:
            self._asking[message.worker] = message
        self._begin()

    def answered(self, shard: str, held: Held) -> None:
        """Another shard holds."""
        if self._answers and held.number == self._number + 1:
            self._answers[shard] = held
            self._decide_if_known()

    def _is_settled(self, lost: Lost) -> bool:
        """Whether another shard has told it before."""
        leaves = self._members.tree.leaves(lost.node)
        return self._settled.get(lost.node, -1) >= lost.incarnation and not self._members.present(leaves)

    def _begin(self) -> None:
        if self._deciding is not None:
            return
        lost = {node: message for node, message in self._lost.items() if not self._is_settled(message)}
        if not (lost or self._asking):
            return
        lost, self._lost = _parted(lost, MOST_AT_ONCE)
        asking, self._asking = _parted(self._asking, MOST_AT_ONCE - len(lost))
        self._deciding = lost, asking
        nodes = tuple(dict.fromkeys((*lost, *asking)))
        self._answers = {"": self._here.held(self._number + 1, nodes)}
        for shard in self._others:
            self._send(shard, Hold(self._number + 1, nodes))
        self._decide_if_known()

    def _decide_if_known(self) -> None:
        if self._deciding is None or len(self._answers) <= len(self._others):
            return
        lost, asking = self._deciding
        said: list[Held | Lost | Asks] = [*self._answers.values(), *lost.values(), *asking.values()]
        everybody, tree = self._members.order, self._members.tree
        decision = decide(
            tree,
            self._members.present(everybody),
            self._members.out,
            {node: message.reason for node, message in lost.items()},
            asking,
            self._losses,
            self._has_begun(),
            self._here.nears_its_end(),
        )
        settles = [(node, message.incarnation) for node, message in lost.items()]
        settles += [(worker, message.incarnation) for worker, message in asking.items()]
        self._settled |= settles
        self._number += 1
        self._answers = {}
        # Those who are just back have said nothing yet.
        self._slowest_pace = max(self._slowest_pace, self._here.pace())
        roster = Roster(
            self._number,
            tree.bitmap_of(decision.out),
            tree.bitmap_of(decision.joined),
            self._standings(latest(*(message.standings for message in said)), decision.joined),
            tuple(settles),
            decision.why,
            self._slowest_pace,
        )
        self._publish(roster, self._published)

    def _published(self) -> None:
        self._deciding = None
        self._begin()

    def _standings(self, known: Standings, joined: Iterable[str]) -> dict[str, Standing]:
        """Whoever comes back begins behind the last that has closed, or where the others of its cohort are.

        Of these some may just have come back as well. A cohort that comes back as a whole begins at the slowest one's:
        others need not wait until it has made up for its absence.
        """
        back, slowest, told = set(joined), self._here.slowest(), dict(known)
        for cohort, standing in told.items():
            members = self._members.of(cohort)
            if cohort and not back.isdisjoint(members):
                are_there = bool(self._members.present(members))
                first = self._members.begin_of(cohort) if are_there else slowest + 1
                told[cohort] = standing.behind(max(standing.turn, first - 1))
        return told


def _parted(told: dict[str, Told], count: int) -> tuple[dict[str, Told], dict[str, Told]]:
    """The first so many, and the rest."""
    listed = list(told.items())
    return dict(listed[:count]), dict(listed[count:])
