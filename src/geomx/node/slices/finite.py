"""NaN, Inf, and numbers that a codec has no room for: how they are told, and what becomes of a contribution then.

Workers look at what they push before it leaves them (`geomx.train.model.finite`), so what a server finds is a sum of
finite contributions that is not finite itself, or a member that does not keep to that. Whoever finds it stops the run
with `NotFinite`, or with `run.on_nonfinite = "skip"` goes on as if nobody had contributed to the slice in that turn.
Where nobody has contributed to any slice for `MOST_SKIPPED` turns in a row, nobody ever will: that ends it, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, TypeVar

import msgspec
import torch

from geomx.codecs.bundle import combined
from geomx.codecs.contract import Room, room_of
from geomx.codecs.measure import largest, numbers_of, scaled
from geomx.errors import Disagreement, NotFinite, ProtocolError
from geomx.layout import Layout, Slice
from geomx.node.slices.accumulate import accumulator
from geomx.rounds.round import Round
from geomx.wire import presence
from geomx.wire.messages import Push

NAMES_TOLD, WORKERS_TOLD = 3, 16
MOST_SKIPPED = 100
Result = TypeVar("Result")
SKIP = 'With run.on_nonfinite = "skip" the run continues without such contributions'
LOOK = (
    "Check the loss, the data and the learning rate of that step; torch.autograd.set_detect_anomaly(True) names the "
    "operation that made it"
)


class NotFiniteIn(NamedTuple):
    """What a slice holds that it must not. `names`: of the tensors; `value`: the first such number."""

    names: str
    value: float


def found_in(layout: Layout, slice_: Slice, values: torch.Tensor, room: Room) -> NotFiniteIn | None:
    """The first number of a slice's `values` (flat, or rows) that there is no room for, and which tensors have such."""
    names, first = list[str](), 0.0
    for part in slice_.parts:
        some = numbers_of(values) if slice_.row else values[part.offset : part.offset + part.elements]
        spoiled = some[~(some.abs() <= room.most)]
        if spoiled.numel():
            first = first if names else float(spoiled[0])
            names.append(layout.tensors[part.tensor].name)
    return NotFiniteIn(listed(names), first) if names else None


def listed(names: Iterable[str], most: int = NAMES_TOLD) -> str:
    """The first of some names, and how many more there are."""
    every = list(dict.fromkeys(names))
    more = f" and {len(every) - most} more" if len(every) > most else ""
    return ", ".join(every[:most]) + more


def when(step: int, turn: int) -> str:
    """`step 3 (turn 4)`. `step`: in the policy's count, from 0; -1: of a call that is no step."""
    return f"step {step + 1} (turn {turn})" if step >= 0 else f"turn {turn}"


def remedy(value: float, form: str) -> str:
    """What to do about a number that has no room."""
    if math.isfinite(value):
        other = '"dense"' if form == "fp16" else '"dense", or "fp16", which scales each slice'
        return f"Choose a codec with a larger range: {other}. {SKIP}"
    return f"{LOOK}. {SKIP}"


class Sum(NamedTuple):
    """The sum of what a round has brought, at `node`. `decoders`: of the contributions that have values, in order."""

    node: str
    layout: Layout
    slice_: Slice
    round_: Round
    decoders: Sequence[Callable[[], Any]]

    def of(self, room: Room | None = None) -> torch.Tensor | None:
        """Flat, and the caller's to change; None of nothing. `room`: which numbers there is room for behind it.

        Raises NotFinite where the sum of what is watched has other numbers.
        """
        if self.slice_.role == "call":
            return self._combined()  # type: ignore[no-any-return]
        add = accumulator(getattr(torch, self.slice_.dtype)).measure
        total = add([decode() for decode in self.decoders])
        if total is None:
            return None
        if is_watched(self.slice_):
            room = room or room_of(self.slice_)
            if not total.largest <= room.most:
                raise NotFinite(f"{self.node}: {self._fault(total.values, room)}")
        return total.values

    def _combined(self) -> Any:
        """Of a collective call: a bundle. Raises `ProtocolError` where one speaks for workers who are not in it."""
        pushes = [push for push, payload in self.round_.in_order() if payload is not None]
        bundles: list[Any] = [decode() for decode in self.decoders]
        whose = [", ".join(push.origins) for push in pushes]
        for push, bundle, names in zip(pushes, bundles, whose, strict=True):
            for entry in bundle.entries:
                is_theirs = not entry.origin or entry.origin in push.origins
                if not is_theirs or entry.count > len(push.origins):
                    raise ProtocolError(
                        f"{names} sent an array of {entry.origin or f'{entry.count} workers'} in a collective call"
                    )
        try:
            return combined(bundles, whose) if bundles else None
        except Disagreement as error:
            raise Disagreement(f"turn {self.round_.turn}: {error}") from None

    def _fault(self, values: torch.Tensor, room: Room) -> str:
        there = [push for push, payload in self.round_.in_order() if payload is not None]
        finite = room_of(self.slice_)
        given = [
            push
            for push, decode in zip(there, self.decoders, strict=True)
            if not largest(decode()) <= finite.most
        ]
        found = found_in(self.layout, self.slice_, values, room)
        assert found is not None  # the largest is one
        at, whose = when(self.round_.step, self.round_.turn), workers_of(given or there)
        if given:
            return f"what {whose} sent for {found.names} holds {finite.beyond(found.value)} in {at}. {LOOK}. {SKIP}"
        told = f"overflows {finite.form} (at most {finite.most:.4g})"
        if abs(found.value) <= finite.most:
            told = f"reaches {room.beyond(found.value)},"
        return (
            f"the sum of what {whose} sent for {found.names} {told} in {at}. {remedy(found.value, room.form)}"
        )


class AllSkipped:
    """Counts the turns in a row in which nothing was contributed, where a run `skips` what is not finite."""

    def __init__(self, node: str, skips: bool) -> None:
        self._node = node
        self._skips = skips
        self._turns: dict[str, set[int]] = {}  # by cohort: since anybody has contributed

    def closed(self, slice_: Slice, round_: Round, carrying: bool) -> None:
        """A round has closed, `carrying` values or not. Raises NotFinite where it is one too many."""
        if not self._skips or round_.kind != "gradient" or not is_watched(slice_):
            return
        if carrying or round_.reading.is_at_end:
            self._turns.clear()
            return
        turns = self._turns.setdefault(round_.cohort, set())
        turns.add(round_.turn)
        if len(turns) == MOST_SKIPPED:
            raise NotFinite(
                f"{self._node}: every worker's contribution was left out in {MOST_SKIPPED} steps in a row, up to "
                f"{when(round_.step, round_.turn)}: nobody's gradients are finite any more. Start again from the last "
                "checkpoint, with a lower learning rate"
            )


def tried(make: Callable[[], Result], skips: bool) -> tuple[Result | None, str]:
    """What `make` gives; or where it raises NotFinite and the run `skips` that, why there is nothing."""
    try:
        return make(), ""
    except NotFinite as error:
        if not skips:
            raise
        return None, str(error)


def copied_if_finite(slice_: Slice, values: torch.Tensor) -> torch.Tensor:
    """Values that will not change, as rows do not; raises NotFinite where one is none."""
    if values.is_sparse:
        room_of(slice_).check(slice_, largest(values))
        return values
    copy = torch.empty_like(values)
    room_of(slice_).check(slice_, scaled(values, 1.0, copy))
    return copy


def workers_of(pushes: Iterable[Push]) -> str:
    """Whose contributions are inside."""
    return listed((name for push in pushes for name in push.origins), WORKERS_TOLD)


def is_watched(slice_: Slice) -> bool:
    """Whether what is added must be finite: weights. Buffers may hold anything, such as a mask's -Inf."""
    return slice_.role == "weight"


def skipped(step: int, turn: int, part: str, what: str) -> dict[str, Any]:
    """The fields of a note `skipped`. `part`: how much of the step; `what`: why, as NotFinite has it."""
    why = what.partition(": ")[2].partition(f" in {when(step, turn)}")[0]
    return {"step": step + 1, "turn": turn, "part": part, "what": why}


def without(push: Push, slice_: Slice) -> Push:
    """A push as if nobody had contributed to the slice in this turn."""
    return msgspec.structs.replace(push, weight=0.0, present=presence.pack([False] * len(slice_.parts)))


@contextmanager
def annotated(
    layout: Layout | None, slice_: Slice, values: torch.Tensor, whose: str, at: str
) -> Iterator[None]:
    """Within it NotFinite says whose, and of which tensors. `values`: what is being encoded."""
    try:
        yield
    except NotFinite as error:
        assert layout is not None
        found = found_in(layout, slice_, values, room_of(slice_))
        names = [layout.tensors[part.tensor].name for part in slice_.parts]
        where = found.names if found else f"{listed(names)} (with its residual)"
        raise NotFinite(f"{whose} {where} in {at}: {error}. {LOOK}") from error
