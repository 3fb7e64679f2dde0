"""A round, one slice of a turn: which contributions are in, and from whom.

Rules
1. At most one contribution for each origin, whatever the incarnation. What was counted is dropped when it comes again.
   With an overlay, a sum takes the place of contributions that are all inside it. Others that overlap in part are
   refused; but a server that was started again may add up other members than before, and then its sum takes the
   place of that which its former self has sent.
2. Everybody in a round says the same kind of adding, and the same hyper-parameters or none.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from typing import Any

from geomx.errors import Disagreement, ProtocolError
from geomx.wire.messages import NOTHING, Kind, Push, Reading
from geomx.wire.presence import union


class Round:
    """One open round of one slice."""

    __slots__ = (
        "cohort",
        "contributions",
        "former",
        "handed_over",
        "kind",
        "missed",
        "opened",
        "origins",
        "owing",
        "turn",
        "waits_for",
        "waits_until",
    )

    def __init__(self, turn: int, cohort: str, kind: Kind, now: float) -> None:
        self.turn = turn
        self.cohort = cohort
        self.kind = kind
        self.opened = now
        self.waits_for: tuple[str, ...] = ()  # what the policy has said last
        self.waits_until: float | None = None
        self.missed: frozenset[str] = frozenset()  # whom it has closed without, though they take part
        self.origins: dict[str, int] = {}
        self.former: set[str] = set()  # those whose sender has begun anew since
        self.contributions: list[tuple[int, Push, Any]] = []  # (place of the lowest origin, push, payload)
        self.handed_over: list[
            tuple[int, Push, Any]
        ] = []  # likewise: of no turn, it only adds to the sum of this
        # Who was in a sum that is forgotten because of others, and is to contribute once more, alone.
        self.owing: set[str] = set()

    def take(
        self, push: Push, payload: Any, place: int, restarts: Mapping[str, int], nests: bool = False
    ) -> bool:
        """Count a contribution; False where it was counted before. `restarts`, `nests`: see `KnownTurns.add`."""
        known = self.origins.keys() & push.origins.keys()
        if known and len(known) == len(push.origins) and not self.gives_place_to(push):
            return False
        if not (known <= self.former or (nests and self._holds_all_of(push, known))):
            raise ProtocolError(
                f"slice {push.slice}, turn {push.turn}: {', '.join(sorted(known))} is counted already, in other company"
            )
        self._check_agrees(push, restarts)
        self.give_place(known)
        self.origins.update(push.origins)
        self.owing -= push.origins.keys()
        self.contributions.append((place, push, payload))
        return True

    @property
    def is_of_none(self) -> bool:
        """Whether all have said that they have nothing, whichever model's turn it is."""
        return all(push.operation == NOTHING for _, push, _ in self.contributions)

    def _holds_all_of(self, push: Push, known: Set[str]) -> bool:
        """Whether every contribution of any of these `known` is inside a sum that has come."""
        theirs = [each.origins.keys() for _, each, _ in self.contributions]
        return all(origins <= push.origins.keys() for origins in theirs if not known.isdisjoint(origins))

    @property
    def call_bytes(self) -> int:
        """Of a collective call, whose slices have no size of their own: what has come for it."""
        return (
            sum(payload.nbytes for _, payload in self.in_order() if payload is not None)
            if self.kind == "call"
            else 0
        )

    def in_order(self) -> list[tuple[Push, Any]]:
        """What is added, in that order, whatever the order it came in."""
        added = sorted((*self.contributions, *self.handed_over), key=lambda each: each[0])
        return [(push, payload) for _, push, payload in added]

    def drop(self, names: Set[str], spoils: Callable[[Push], bool] = lambda _: False) -> bool:
        """Forget what has come of these alone; returns whether anything is left.

        `spoils`: whether they have no part in a sum with others, so that it is forgotten, too.
        """
        kept = [each for each in self.contributions if not each[1].origins.keys() <= names]
        self._keep(each for each in kept if not spoils(each[1]))
        self.owing -= names
        return bool(self.contributions)

    def gives_place_to(self, push: Push) -> bool:
        """Whether what has come of these alone is counted in place of a sum of them and others.

        Its server has died in the middle of a turn that counts as a whole, and has sent that sum of some slices only.
        """
        return (
            bool(push.together)
            and push.origins.keys() <= self.former
            and push.origins.keys() not in (each.origins.keys() for _, each, _ in self.contributions)
        )

    def give_place(self, names: Set[str]) -> None:
        """Forget what has come of any of these."""
        self._keep(each for each in self.contributions if names.isdisjoint(each[1].origins))

    def _keep(self, contributions: Iterable[tuple[int, Push, Any]]) -> None:
        before = self.origins.keys()
        self.contributions = list(contributions)
        self.origins = {
            name: number for _, push, _ in self.contributions for name, number in push.origins.items()
        }
        self.owing |= before - self.origins.keys()
        self.former &= self.origins.keys()

    def _check_agrees(self, push: Push, restarts: Mapping[str, int]) -> None:
        """Raise `Disagreement` where a contribution says something else. `restarts`: see `KnownTurns.add`."""
        if push.kind != self.kind:
            first = self.contributions[0][1]
            raise Disagreement(
                f"turn {push.turn}: {_names(push)} called {push.operation}, others {first.operation}; "
                + (
                    _restarted(restarts, push, first)
                    or "every worker must make the same calls in the same order"
                )
            )
        if self.contributions and push.together != self.contributions[0][1].together:
            other = self.contributions[0][1]
            raise Disagreement(
                f"turn {push.turn}: {_names(push)} and {_names(other)} exchange different parts of the model; every "
                "worker must make the same calls in the same order"
            )
        ours = self.hyper
        if ours and push.hyper and push.hyper != ours:
            other = next(p for _, p, _ in self.contributions if p.hyper)
            raise Disagreement(
                f"turn {push.turn}: {_names(push)} and {_names(other)} have different hyper-parameters (learning rate, "
                f"weight decay, ...); "
                + (
                    _restarted(restarts, push, other)
                    or "a schedule must see the same values on every worker, so average a metric before it decides"
                )
            )

    def merged(self) -> Push:
        """The header of the contributions' sum: weights added, origins united."""
        pushes = [push for push, _ in self.in_order()]
        return Push(
            turn=self.turn,
            slice=pushes[0].slice,
            kind=self.kind,
            operation=next((push.operation for push in pushes if push.operation != NOTHING), NOTHING),
            weight=self.weight,
            origins=self.origins,
            present=self.present,
            hyper=self.hyper,
            reading=self.reading,
            step=self.step,
            cohort=self.cohort,
            relative_loss=self.relative_loss,
            together=pushes[0].together,
            awaits=any(push.awaits for push in pushes),
        )

    @property
    def weight(self) -> float:
        return sum(push.weight for push, _ in self.in_order())

    @property
    def step(self) -> int:
        return max(push.step for _, push, _ in self.contributions)

    @property
    def reading(self) -> Reading:
        return min(push.reading for _, push, _ in self.contributions)

    @property
    def hyper(self) -> bytes:
        """The digest that the contributions agree on; empty where none has an opinion."""
        return next((push.hyper for _, push, _ in self.contributions if push.hyper), b"")

    @property
    def relative_loss(self) -> float | None:
        """The weighted mean of the relative losses that came with the contributions; None: with none."""
        return weighted_mean(
            (push.weight, push.relative_loss) for push, _ in self.in_order() if push.relative_loss is not None
        )

    @property
    def present(self) -> bytes | None:
        """Which parts have a value in at least one contribution."""
        first, *others = (push.present for push, _ in self.in_order())
        for other in others:
            first = union(first, other)
        return first


def weighted_mean(told: Iterable[tuple[float, float]]) -> float | None:
    """The mean of losses, each with its weight; None: of none.

    Whoever has no weight has no say: 0 · NaN would be NaN. Where nobody has any, all count the same.
    """
    losses = list(told)
    having = [(weight, loss) for weight, loss in losses if weight] or [(1.0, loss) for _, loss in losses]
    total = sum(weight for weight, _ in having)
    return sum(weight * loss for weight, loss in having) / total if having else None


def _names(push: Push) -> str:
    return ", ".join(push.origins)


def _restarted(restarts: Mapping[str, int], *pushes: Push) -> str:
    """What to do where one of two that differ comes from workers that were started again, and from no other."""
    for push in pushes:
        if push.origins.keys() <= restarts.keys():
            step = min(restarts[name] for name in push.origins)
            were = "was" if len(push.origins) == 1 else "were"
            return (
                f"{_names(push)} {were} restarted at step {step}: call run.resume(scheduler) before the loop "
                '(every="epoch" where it steps once in an epoch), and begin that at run.epoch'
            )
    return ""
