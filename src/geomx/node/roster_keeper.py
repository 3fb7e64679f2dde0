"""The one authority on who takes part: the first shard collects what is known, and decides.

A change takes one trip between shards. Whoever notices a loss, or has been asked to let a worker in, says what has
closed of the turns that this concerns, closes no other, and tells the first shard. That has the other shards hold as
well, and say the same. Then the roster holds from the turn behind the last that has closed anywhere. What comes up
meanwhile is decided next.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from geomx.node.attendance import latest
from geomx.rounds.losses import Losses
from geomx.rounds.membership import Members
from geomx.rounds.roster import decide
from geomx.wire.roster_messages import Asks, Held, Hold, Lost, Roster


class RosterKeeper:
    """Of the first shard.

    Args:
        members: As that shard knows them.
        losses: What the run's description says.
        others: The other shards.
        hold: Tells another shard to hold.
        held: What has closed at this shard, which holds from then on: the last turns and steps of the cohorts of some
            workers.
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
        self._deciding = lost, self._asking
        self._lost, self._asking = {}, {}
        self._answers = {"": self._held(self._number + 1, self._concerned())}
        for shard in self._others:
            self._hold(shard, Hold(self._number + 1, tuple(self._concerned())))
        self._decide_if_known()

    def _concerned(self) -> list[str]:
        assert self._deciding is not None
        lost, asking = self._deciding
        return list(
            dict.fromkeys([*(name for node in lost for name in self._members.tree.leaves(node)), *asking])
        )

    def _decide_if_known(self) -> None:
        if self._deciding is None or len(self._answers) <= len(self._others):
            return
        lost, asking = self._deciding
        said: list[Held | Lost | Asks] = [*self._answers.values(), *lost.values(), *asking.values()]
        turns = [message.turns for message in said]
        steps = [message.steps for message in said]
        everybody = self._members.order
        decision = decide(
            self._members.tree,
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
            tuple(name for name in everybody if name in decision.out),
            decision.joined,
            {cohort: turn + 1 for cohort, turn in latest(*turns).items()},
            tuple(settles),
            decision.reason,
            latest(*steps),
            self._pace(),
        )
        self._publish(roster)
        self._begin()
