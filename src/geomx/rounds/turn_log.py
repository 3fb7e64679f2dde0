"""What a server knows and tells of turns: which call each is, how long it takes, and on whom it waits.

A turn's call is kept from the first contribution until all trained slices are answered, or until a later turn of the
cohort is: a step may be of some slices alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple

from geomx.errors import Disagreement, NodeLost, Stalled
from geomx.layout import Role
from geomx.rounds.round import Round
from geomx.rounds.turn import Call, KnownTurns, Turn
from geomx.tree import EVERYONE
from geomx.wire.messages import COLLECTIVE, NOTHING, Push, Update

LOAD = "load()"


class Waiting(NamedTuple):
    """A turn that cannot close yet, and for whom it waits."""

    turn: int
    cohort: str
    operation: str
    whom: tuple[str, ...]
    seconds: float

    def __str__(self) -> str:
        return f"turn {self.turn} (`{self.operation}`) waits for {', '.join(self.whom)}"


def check_stillness(still_s: float, stall_s: float, waiting: Sequence[object]) -> None:
    """Raise `Stalled` where all below have been still for `stall_s`; twice as long where others may know more of it."""
    patience_s = stall_s if waiting else 2 * stall_s
    if still_s < patience_s:
        return
    what = "; ".join(map(str, waiting)) or "no turn is open"
    raise Stalled(
        f"nothing has moved for {patience_s:g} s, and every worker waits inside geomx: {what}. Every "
        "worker has to make the same calls; if they do, messages were lost for good: start the run again from its last "
        "checkpoint"
    )


class TurnLog:
    """See the module's text. `turns`: the server's. `note(name, level, **fields)`: where it is told.

    `stall_s`: how long a turn waits before it is told; `turn_s`: how long it waits at most, 0: for ever. `names`: all
    that could contribute.
    """

    def __init__(
        self,
        turns: KnownTurns,
        stall_s: float,
        turn_s: float,
        note: Callable[..., None],
        names: Iterable[str] = (),
    ) -> None:
        self._names = tuple(names)
        self._stall_s = stall_s
        self._turn_s = turn_s
        self._note = note
        self._turns = turns

    def opened(self, push: Push, child: str, now: float) -> None:
        """Every worker makes the same calls in the same order; say so instead of waiting for ever.

        Raises `Disagreement`.
        """
        by = ", ".join(push.origins)
        turn = self._turns.begin(push.cohort, push.turn)
        if (call := turn.call) is None:
            call = turn.call = Call(push.operation, by, now)
        elif {call.operation, push.operation} == {NOTHING, COLLECTIVE}:
            idle, caller = (call.by, by) if call.operation == NOTHING else (by, call.by)
            raise Disagreement(
                f"{caller} called {COLLECTIVE} where {idle} has no data left in this pass (turn {push.turn}), and "
                "takes part in steps, but in no calls: make calls behind the pass, which ends on all workers together"
            )
        elif call.operation == NOTHING:
            call.operation, call.by = push.operation, by
        elif push.operation not in (NOTHING, call.operation):
            hint = ""
            if call.operation.startswith(LOAD) != push.operation.startswith(LOAD):
                without = by if call.operation.startswith(LOAD) else call.by
                hint = (
                    f". If {without} found no checkpoint, copy the file to its machine: all load it, or none"
                )
            raise Disagreement(
                f"{call.by} called {call.operation} where {by} called {push.operation} "
                f"(turn {push.turn}): every worker must make the same calls in the same order{hint}"
            )
        call.arrived[child] = now

    def closed(self, round_: Round) -> None:
        """A slice's round has closed."""
        turn = self._turns.get(round_.cohort, round_.turn)
        if turn is not None and turn.call is not None:
            for _, push, _ in round_.contributions:
                if push.weight:
                    turn.call.counted.update(push.origins)

    def answered(self, role: Role, update: Update, staleness: int, trained: int, now: float) -> None:
        """A slice has been answered. `trained`: how many take part in a step."""
        turn = self._turns.get(update.cohort, update.turn)
        call = None if turn is None else turn.call
        if update.kind == "gradient" and call is None:
            return
        for earlier in self._turns.of(update.cohort):
            if earlier.number < update.turn:
                self._over(earlier)
        if update.kind != "gradient" or turn is None or call is None:
            return
        call.answered += 1
        call.last_answer = now
        call.staleness = max(call.staleness, staleness)
        if role == "weight":  # a ledger's weight counts contributions
            call.weight = update.weight
        if call.answered == trained:
            self._over(turn)

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
        for turn in sorted(self._turns, key=lambda turn: turn.call.opened if turn.call else now):
            if (call := turn.call) is None or not (whom := missing(turn.cohort, turn.number)):
                continue
            seconds = now - call.opened
            waiting.append(Waiting(turn.number, turn.cohort, call.operation, tuple(whom), seconds))
            if self._turn_s and seconds > self._turn_s:
                raise NodeLost(whom[0], f"{waiting[-1]}: {seconds:.0f} s so far, longer than limits.turn_s")
            if now - max(call.opened, call.reported) >= self._stall_s:
                call.reported = now
                told = ", ".join(map(shown, whom))
                self._note("waiting", "warning", turn=turn.number, whom=told, seconds=seconds)
        return waiting

    def _over(self, turn: Turn) -> None:
        call, turn.call = turn.call, None
        self._turns.tidy(turn)
        if call is None or not call.answered:
            return
        fields: dict[str, Any] = {
            "turn": turn.number,
            "kind": "gradient",
            "operation": call.operation,
            "seconds": call.last_answer - call.opened,
            "weight": call.weight,
            "cohort": turn.cohort,
            "staleness": call.staleness,
            "counted": len(call.counted),
        }
        if turn.cohort == EVERYONE and len(call.counted) < len(self._names):
            fields["absent"] = ", ".join(name for name in self._names if name not in call.counted)
        if len(call.arrived) > 1:
            (_, before), (last, at) = sorted(call.arrived.items(), key=lambda arrival: arrival[1])[-2:]
            fields |= {"last": last, "later_s": at - before}
        self._note("round", **fields)
