"""The turns of a server: what is known of each, from its first contribution to its last answer.

A turn is known by its cohort and number; who is awaited in it, the roster says (`Members.expected`). It has a round for
each slice that is open. Its *call*, what everybody has called in it, is kept for as long as it is not answered.

Turns of local steps count *as a whole*: they change all weights of a worker at once, so a mean over some slices and not
others would be of no model that anybody has had. Each push of such a turn says which slices take part (a bitmap, slice
0 in the lowest bit of the first byte), so that a server knows when it has all that it gathers of them, from everybody.
Only then does any close; on several shards, once the first has heard so of all that have slices of it. Who is lost
halfway through counts in none of its slices.

Rules
1. A round that has closed stays closed: what comes late is dropped.
2. Who has nothing contributes to the slices of all models (`NOTHING`), and the turn is of one: a round of nothing else
   is forgotten once somebody contributes to a later one.
3. At most `OPEN_ROUNDS` rounds of a slice and a cohort are open at a time, so that memory is bounded.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from geomx.bits import places_of
from geomx.errors import Disagreement, ProtocolError
from geomx.rounds.round import Round
from geomx.wire.messages import Push

OPEN_ROUNDS = 4


@dataclass(slots=True)
class Call:
    """What everybody has called in a turn that is not answered. `by`: who came first."""

    operation: str
    by: str
    opened: float
    answered: int = 0  # slices, of gradients alone
    last_answer: float = 0.0
    weight: float = 0.0
    staleness: int = 0
    reported: float = 0.0
    arrived: dict[str, float] = field(default_factory=dict)  # by child: when its last push came
    counted: set[str] = field(default_factory=set)  # whose contributions had a weight


class Turn:
    """One turn of one cohort at one server.

    Attributes:
        rounds: Those that are open, by slice.
        call: None before the first contribution, and once it is answered.
        together: The slices that count as a whole, as a bitmap; empty where each closes by itself.
        needed: Those of them that are gathered here.
        is_named: Whether a turn that counts as a whole is complete on all shards.
        quorum_at: When so many had contributed to all of it that it may close without the rest; None: they have not.
        is_promised: Whether another shard was told that it is complete here, which has to stay so.
    """

    __slots__ = (
        "_come",
        "call",
        "cohort",
        "is_named",
        "is_promised",
        "needed",
        "number",
        "quorum_at",
        "rounds",
        "together",
    )

    def __init__(self, cohort: str, number: int) -> None:
        self.cohort, self.number = cohort, number
        self.rounds: dict[int, Round] = {}
        self.call: Call | None = None
        self.together = b""
        self.needed: frozenset[int] = frozenset()
        self.is_named = self.is_promised = False
        self.quorum_at: float | None = None
        self._come: dict[str, set[int]] = {}  # by worker: the slices to which it has contributed

    def unite(self, push: Push, gathered: Set[int]) -> None:
        """A push says that it counts as a whole. Raises `Disagreement` where others have said so of other slices."""
        if not self.together:
            self.together = push.together
            self.needed = frozenset(gathered).intersection(places_of(push.together))
        elif self.together != push.together:
            raise Disagreement(
                f"turn {self.number}: {', '.join(push.origins)} and others exchange different parts of the model; "
                "every worker must make the same calls in the same order"
            )
        for name in push.origins:
            self._come.setdefault(name, set()).add(push.slice)

    def separate(self) -> None:
        """Each of its slices closes by itself."""
        self.together, self.needed = b"", frozenset()
        self.is_named = self.is_promised = False
        self.quorum_at = None
        self._come.clear()

    def forget(self, names: Iterable[str]) -> None:
        """What these have contributed does not count, but for what is in sums with others'."""
        for name in names:
            come = self._come.pop(name, set())
            kept = {index for index in come & self.rounds.keys() if name in self.rounds[index].origins}
            if kept:
                self._come[name] = kept

    def company(self) -> frozenset[str]:
        """Who has contributed to all slices, and is in no sum with others who have not."""
        come = {name for name, slices in self._come.items() if slices >= self.needed}
        pushes = [
            push
            for index in self.needed & self.rounds.keys()
            for _, push, _ in self.rounds[index].contributions
        ]
        while partly := {
            name for push in pushes if not push.origins.keys() <= come for name in come & push.origins.keys()
        }:
            come -= partly
        return frozenset(come) if self.needed <= self.rounds.keys() else frozenset()

    @property
    def awaits_all(self) -> bool:
        """Whether somebody has said that everybody is awaited."""
        return any(push.awaits for round_ in self.rounds.values() for _, push, _ in round_.contributions)

    def is_whole(self, members: Set[str]) -> bool:
        """Whether all of these have contributed to all slices, and the same workers to each.

        They are not the same where a server has died in the middle of its sums.
        """
        companies = {frozenset(self.rounds[index].origins) for index in self.needed & self.rounds.keys()}
        come = all(self._come.get(name, set()) >= self.needed for name in members)
        return bool(members) and come and len(companies) <= 1

    @property
    def is_over(self) -> bool:
        """Whether nothing of it is open, nor to be answered."""
        return not self.rounds and self.call is None


class KnownTurns:
    """All that one server knows, and by slice and cohort which has closed last.

    `nests`: whether one may come by itself and in a sum with others, which counts in its place.
    """

    def __init__(self, nests: bool = False) -> None:
        self._nests = nests
        self.closed: dict[tuple[int, str], int] = {}  # -1: a round has opened, and none has closed
        self._turns: dict[str, dict[int, Turn]] = {}

    def __iter__(self) -> Iterator[Turn]:
        """All, also where some are over meanwhile."""
        return iter([turn for turns in self._turns.values() for turn in turns.values()])

    def of(self, cohort: str) -> list[Turn]:
        """Those of a cohort, in the order in which they have begun."""
        return list(self._turns.get(cohort, {}).values())

    def get(self, cohort: str, number: int) -> Turn | None:
        """One, if anything is known of it."""
        return self._turns.get(cohort, {}).get(number)

    def begin(self, cohort: str, number: int) -> Turn:
        """One, of which something has come to be known."""
        turns = self._turns.setdefault(cohort, {})
        if (turn := turns.get(number)) is None:
            turn = turns[number] = Turn(cohort, number)
        return turn

    def rounds(self, index: int, cohort: str) -> list[Round]:
        """The open rounds of a slice and a cohort, in the order in which their turns have begun."""
        return [turn.rounds[index] for turn in self.of(cohort) if index in turn.rounds]

    def add(
        self, push: Push, payload: Any, place: int, now: float, restarts: Mapping[str, int] | None = None
    ) -> Round | None:
        """Take a contribution in; None where it was counted before, or came too late.

        `place`: of its lowest origin. `restarts`: the members that were started again, and at which step of the policy.
        """
        if push.turn <= self.closed.setdefault((push.slice, push.cohort), -1):
            return None
        for earlier in self.of(push.cohort):
            if (
                earlier.number < push.turn
                and push.slice in earlier.rounds
                and earlier.rounds[push.slice].is_of_none
            ):
                del earlier.rounds[push.slice]
                self.tidy(earlier)
        turn = self.begin(push.cohort, push.turn)
        if (round_ := turn.rounds.get(push.slice)) is None:
            if len(self.rounds(push.slice, push.cohort)) >= OPEN_ROUNDS:
                raise ProtocolError(
                    f"slice {push.slice}: {OPEN_ROUNDS} rounds are open, turn {push.turn} would be another"
                )
            round_ = turn.rounds[push.slice] = Round(push.turn, push.cohort, push.kind, now)
        return round_ if round_.take(push, payload, place, restarts or {}, self._nests) else None

    def check_one_open(self, index: int, cohort: str) -> None:
        """Raise `Disagreement` where rounds are open beside each other, and nobody may be ahead of the others."""
        rounds = self.rounds(index, cohort)
        if len(rounds) > 1:
            rounds.sort(key=lambda round_: round_.turn)
            told = [f"turn {round_.turn} ({', '.join(round_.origins)})" for round_ in rounds]
            raise Disagreement(
                f"{' and '.join(told)} are open at the same time; "
                f"every worker must make the same calls in the same order"
            )

    def close(self, index: int, cohort: str, number: int) -> Round | None:
        """Nothing can be added to a round any more. Takes it out, if it is open."""
        self.passed(index, cohort, number)
        if (turn := self.get(cohort, number)) is None:
            return None
        round_ = turn.rounds.pop(index, None)
        self.tidy(turn)
        return round_

    def passed(self, index: int, cohort: str, number: int) -> None:
        """What comes of a slice for this turn, or an earlier one, is late."""
        self.closed[index, cohort] = max(self.closed.get((index, cohort), -1), number)

    def reopen(self, index: int, cohort: str, number: int) -> None:
        """A round that has closed last counts as open again."""
        if self.closed.get((index, cohort)) == number:
            self.closed[index, cohort] = number - 1

    def tidy(self, turn: Turn) -> None:
        """Forget a turn that is over."""
        if turn.is_over:
            self._turns[turn.cohort].pop(turn.number, None)

    def forget(self) -> None:
        """All that has come, and what has closed; calls that are not answered go on."""
        self.closed.clear()
        for turn in self:
            turn.rounds.clear()
            turn.separate()
            self.tidy(turn)
