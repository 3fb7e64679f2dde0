"""What turns have closed without, where a quorum is enough (`sync.quorum`): it goes with the next contribution.

Whoever has contributed to a turn keeps that until it is answered. The answer says who was missed; what they have sent
is then added, with its weight, to what they send next. Whoever comes to a turn that was answered before contributes to
the first that is open, and does not wait for its answer: so a slow one takes part in each as far as it has come.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import msgspec
import torch

from geomx.node.slices.accumulate import accumulator
from geomx.wire.messages import Push, Update
from geomx.wire.presence import union

MOST_PLACED = 64  # turns that are remembered


class Held(NamedTuple):
    """What one contribution to a slice comes to. `values`: None: nothing."""

    weight: float
    present: bytes | None
    values: Callable[[], torch.Tensor] | None


class Missed:
    """Of one node, towards those above it."""

    def __init__(self) -> None:
        self._answered: dict[str, int] = {}  # by cohort: the last turn of which an answer has come
        self._places: dict[tuple[str, int], int | None] = {}  # by cohort and turn; None: it is held
        self._held: dict[tuple[int, str], list[Held]] = {}  # by slice and cohort
        self._begins: dict[str, Mapping[str, int]] = {}  # of whoever has come back: its first turns

    def answered(self, update: Update) -> None:
        """A slice of a turn has been answered."""
        self._answered[update.cohort] = max(self._answered.get(update.cohort, -1), update.turn)

    def begin(self, begins: Mapping[str, Mapping[str, int]]) -> None:
        """These have come back, and what was sent last may have been forgotten, and be sent once more."""
        self._begins |= begins
        self._places.clear()

    def place(self, push: Push, sent: int | None) -> int | None:
        """The turn to which a contribution goes, the same for all its slices; None: with the next.

        `sent`: the turn of what this node has sent of the slice, and has no answer to.
        """
        key = push.cohort, push.turn
        if any(self._begins.get(name, {}).get(push.cohort, 0) > push.turn for name in push.origins):
            return push.turn  # of before: it is given up
        if key not in self._places:
            turn = max(push.turn, self._answered.get(push.cohort, -1) + 1)
            self._places[key] = None if sent == turn else turn
            if len(self._places) > MOST_PLACED:
                del self._places[next(iter(self._places))]
        return self._places[key]

    def hold(self, index: int, cohort: str, held: Held) -> None:
        """This goes with the next contribution to the slice."""
        self._held.setdefault((index, cohort), []).append(held)

    def pop(self, index: int, cohort: str) -> list[Held]:
        """What goes with the one that is about to leave."""
        return self._held.pop((index, cohort), [])


def with_held(push: Push, held: list[Held]) -> Push:
    """The header of a contribution and what goes with it."""
    present = push.present
    for each in held:
        present = union(present, each.present)
    weight = sum((each.weight for each in held), push.weight)
    return msgspec.structs.replace(push, weight=weight, present=present)


def added(values: torch.Tensor | None, held: list[Held]) -> torch.Tensor | None:
    """The same of the values."""
    every = [] if values is None else [values]
    every += [each.values() for each in held if each.values is not None]
    return accumulator(every[0].dtype).add(every) if every else None
