"""What a server knows and tells of turns: which call each is, how long it takes, and on whom it waits.

Turns are kept by cohort and number, from the first contribution until all trained slices are answered, or until a later
turn of the cohort is: a step may be of some slices alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from geomx.errors import Disagreement, NodeLost, Stalled
from geomx.layout import Role
from geomx.rounds.round import Round
from geomx.tree import EVERYONE
from geomx.wire.messages import Push, Update

LOAD = "load()"


@dataclass(slots=True)
class _TurnRecord:
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


class Waiting(NamedTuple):
    """A turn that cannot close yet, and for whom it waits."""

    turn: int
    cohort: str
    operation: str
    whom: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        return f"turn {self.turn} (`{self.operation}`) waits for {', '.join(self.whom)}"


def check_stillness(still_s: float, stall_s: float, waiting: Sequence[Waiting]) -> None:
    """Raise `Stalled` where all below have been still for `stall_s`; twice as long where others may know more of it."""
    patience_s = stall_s if waiting else 2 * stall_s
    if still_s < patience_s:
        return
    what = "; ".join(map(str, waiting)) or "no turn is open, so an answer was lost on its way down"
    raise Stalled(
        f"nothing has moved for {patience_s:g} s, and every worker waits inside geomx: {what}. Messages were lost for "
        "good; start the run again from its last checkpoint"
    )


class TurnLog:
    """See the module's text. `note(name, level, **fields)`: where it is told.

    `stall_s`: how long a turn waits before it is told; `turn_s`: how long it waits at most, 0: for ever. `names`: all
    that could contribute.
    """

    def __init__(
        self, stall_s: float, turn_s: float, note: Callable[..., None], names: Iterable[str] = ()
    ) -> None:
        self._names = tuple(names)
        self._stall_s = stall_s
        self._turn_s = turn_s
        self._note = note
        self._turns: dict[tuple[str, int], _TurnRecord] = {}

    def __len__(self) -> int:
        return len(self._turns)

    def opened(self, push: Push, child: str, now: float) -> None:
        """Every worker makes the same calls in the same order; say so instead of waiting for ever.

        Raises `Disagreement`.
        """
        by = ", ".join(push.origins)
        turn = self._turns.get((push.cohort, push.turn))
        if turn is None:
            turn = self._turns[push.cohort, push.turn] = _TurnRecord(push.operation, by, now)
        elif turn.operation != push.operation:
            hint = ""
            if turn.operation.startswith(LOAD) != push.operation.startswith(LOAD):
                without = by if turn.operation.startswith(LOAD) else turn.by
                hint = (
                    f". If {without} found no checkpoint, copy the file to its machine: all load it, or none"
                )
            raise Disagreement(
                f"{turn.by} called {turn.operation} where {by} called {push.operation} "
                f"(turn {push.turn}): every worker must make the same calls in the same order{hint}"
            )
        turn.arrived[child] = now

    def closed(self, round_: Round) -> None:
        """A slice's round has closed."""
        turn = self._turns.get((round_.cohort, round_.turn))
        if turn is not None:
            for _, push, _ in round_.contributions:
                if push.weight:
                    turn.counted.update(push.origins)

    def answered(self, role: Role, update: Update, staleness: int, trained: int, now: float) -> None:
        """A slice has been answered. `trained`: how many take part in a step."""
        turn = self._turns.get((update.cohort, update.turn))
        if update.kind == "gradient" and turn is None:
            return
        for key in [key for key in self._turns if key[0] == update.cohort and key[1] < update.turn]:
            self._over(key)
        if update.kind != "gradient" or turn is None:
            return
        turn.answered += 1
        turn.last_answer = now
        turn.staleness = max(turn.staleness, staleness)
        if role == "weight":  # a ledger's weight counts contributions
            turn.weight = update.weight
        if turn.answered == trained:
            self._over((update.cohort, update.turn))

    def tick(
        self, now: float, missing: Callable[[str, int], list[str]], shown: Callable[[str], str]
    ) -> list[Waiting]:
        """Say for whom turns wait, each at most once in `stall_s`. Raises `NodeLost` after `turn_s`.

        Args:
            now: the time.
            missing: for whom a turn of a cohort waits.
            shown: a name as it is to be told.

        Returns:
            The turns that wait for somebody, the first first.
        """
        waiting = []
        for (cohort, number), turn in self._turns.items():
            if not (whom := missing(cohort, number)):
                continue
            waiting.append(Waiting(number, cohort, turn.operation, tuple(whom), now - turn.opened))
            if self._turn_s and now - turn.opened > self._turn_s:
                raise NodeLost(
                    whom[0], f"{waiting[-1]}: {now - turn.opened:.0f} s so far, longer than limits.turn_s"
                )
            if now - max(turn.opened, turn.reported) >= self._stall_s:
                turn.reported = now
                told = ", ".join(map(shown, whom))
                self._note("waiting", "warning", turn=number, whom=told, seconds=now - turn.opened)
        return waiting

    def _over(self, key: tuple[str, int]) -> None:
        turn = self._turns.pop(key)
        if not turn.answered:
            return
        fields: dict[str, Any] = {
            "turn": key[1],
            "kind": "gradient",
            "operation": turn.operation,
            "seconds": turn.last_answer - turn.opened,
            "weight": turn.weight,
            "cohort": key[0],
            "staleness": turn.staleness,
            "counted": len(turn.counted),
        }
        if key[0] == EVERYONE and len(turn.counted) < len(self._names):
            fields["absent"] = ", ".join(name for name in self._names if name not in turn.counted)
        if len(turn.arrived) > 1:
            (_, before), (last, at) = sorted(turn.arrived.items(), key=lambda arrival: arrival[1])[-2:]
            fields |= {"last": last, "later_s": at - before}
        self._note("round", **fields)
