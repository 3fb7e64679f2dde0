"""The one authority on who takes part: the first shard collects what is known, and decides.

A change takes one trip between shards. Whoever notices a loss, or has been asked to let a worker in, says what has
closed of the turns that this concerns, closes no other, and tells the first shard. That has the other shards hold as
well, and say the same. Then the roster holds from the turn behind the last that has closed anywhere. What comes up
meanwhile is decided next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from geomx.rounds.losses import Losses
from geomx.rounds.membership import Members
from geomx.rounds.roster import decide
from geomx.wire.roster_messages import Asks, Held, Hold, Lost, Roster, latest

Told = TypeVar("Told", Lost, Asks)

MOST_AT_ONCE = 256  # nodes about which one roster decides; what is left, the next one does


class RosterKeeper:
    """Of the first shard.

    Args:
        members: As that shard knows them.
        losses: What the run's description says.
        others: The other shards.
        hold: Tells another shard to hold.
        held: Where the cohorts of some nodes stand at this shard, which holds from then on.
        publish: Takes a roster that has been decided.
        pace: See `Roster`.
        has_begun: Whether all have their first values.
    """

    def __init__(
        self,
        members: Members,
        losses: Losses,
        others: Iterable[str],
        hold: Callable[[str, Hold], None],
        held: Callable[[int, Iterable[str]], Held],
        publish: Callable[[Roster], None],
        pace: Callable[[], int],
        has_begun: Callable[[], bool],
    ) -> None:
        self._members, self._losses, self._others = members, losses, tuple(others)
        self._hold, self._held, self._publish = hold, held, publish
        self._pace, self._has_begun = pace, has_begun
        self._number = 0
        self._lost: dict[str, Lost] = {}
        self._asking: dict[str, Asks] = {}
        self._deciding: tuple[dict[str, Lost], dict[str, Asks]] | None = None
        self._answers: dict[str, Held] = {}  # by shard
        self._settled: dict[str, int] = {}  # the incarnations of whom a roster has settled

    def told(self, message: Lost | Asks) -> None:
        """Somebody is lost, or asks to be let in. A run of which all have left is over."""
        if self._members.all_left:
            return
        if isinstance(message, Lost):
            self._lost[message.node] = message
        else:
            self._asking[message.worker] = message
        self._begin()

    def answered(self, shard: str, held: Held) -> None:
        """Another shard holds."""
        if self._deciding is not None and held.number == self._number + 1:
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
        self._answers = {"": self._held(self._number + 1, nodes)}
        for shard in self._others:
            self._hold(shard, Hold(self._number + 1, nodes))
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
            bool(self._members.left(everybody)),
        )
        settles = [(node, message.incarnation) for node, message in lost.items()]
        settles += [(worker, message.incarnation) for worker, message in asking.items()]
        self._settled |= settles
        self._number += 1
        self._deciding = None
        roster = Roster(
            self._number,
            tree.bitmap_of(decision.out),
            tree.bitmap_of(decision.joined),
            latest(*(message.standings for message in said)),
            tuple(settles),
            decision.reason,
            self._pace(),
        )
        self._publish(roster)
        self._begin()


def _parted(told: dict[str, Told], count: int) -> tuple[dict[str, Told], dict[str, Told]]:
    """The first so many, and the rest."""
    listed = list(told.items())
    return dict(listed[:count]), dict(listed[count:])
