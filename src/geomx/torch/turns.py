"""The turns of an attached model: what leaves during backward and in `step()`, and what becomes of the answers.

A gradient turn, on the training thread:

    backward    a parameter's gradient is complete -> a slice whose parameters all are is pushed: w * gradient
    step()      what was pushed must be unchanged; the rest is pushed, parameters without a gradient as absent
    answers     weights are copied into the parameters (or means into `.grad`, see `places.py`) as they come
    end         by default before `step()` returns; with overlap, before the next turn pushes anything

The weight w, the end-of-data flag and each group's hyper-parameters are fixed when the first slice of a turn leaves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from geomx.errors import Disagreement, GradientEdited, Unsupported
from geomx.layout import Slice
from geomx.node.local import Arrived, Contribution
from geomx.optim.base import SliceState
from geomx.protocol.messages import Hyperparameters
from geomx.sync.base import Policy
from geomx.torch.exchange import Exchange
from geomx.torch.pending import PendingWeights
from geomx.torch.places import OptimizerPlace
from geomx.torch.samples import Samples
from geomx.torch.settings import Overlap, PushAt
from geomx.torch.support import check_gradient
from geomx.torch.tensors import Carried, absent

Groups = Callable[[], list[dict[str, Any]]]


@dataclass(slots=True)
class _Turn:
    """A gradient turn of which something has been pushed."""

    weight: float
    ended: bool
    pushed: set[int] = field(default_factory=set)
    gradients: dict[int, tuple[torch.Tensor, int]] = field(
        default_factory=dict
    )  # as pushed, with its `_version`
    hypers: dict[int, Hyperparameters] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class TurnRules:
    """How turns go. `member`: this worker's place among the `members` of the run."""

    member: int
    members: int
    policy: Policy
    push_at: PushAt
    overlap: Overlap


class Turns:
    """See the module's text. `groups` returns the optimizer's parameter groups as they are now."""

    def __init__(
        self,
        exchange: Exchange,
        carried: Carried,
        place: OptimizerPlace,
        groups: Groups,
        samples: Samples,
        pending: PendingWeights,
        rules: TurnRules,
    ) -> None:
        self._exchange = exchange
        self._carried = carried
        self._place = place
        self._groups = groups
        self._samples = samples
        self._rules = rules
        self._trained = carried.slices("weight")
        self._aside: dict[int, torch.Tensor] | None = None
        self._accumulating = False
        self._opened: _Turn | None = None
        self._missing = self._all_missing()
        self.pending = pending
        self.ledger: torch.Tensor | None = None
        self.ended = False  # this worker is at the end of its data
        self.all_ended = False  # every worker was, in the last gradient turn
        exchange.receive = self._receive
        if rules.push_at == "backward":
            self._handles = [
                parameter.register_post_accumulate_grad_hook(self._hook(number))
                for number, parameter in carried.trained.items()
            ]
        else:
            self._handles = []

    # -- gradients ------------------------------------------------------------------------------------------

    def _hook(self, number: int) -> Callable[[torch.Tensor], None]:
        return lambda parameter: self._gradient_complete(number)

    def _gradient_complete(self, number: int) -> None:
        if self._accumulating:
            return
        for index in self._carried.slices_of[number]:
            if self._opened is not None and index in self._opened.pushed:
                raise Unsupported(
                    f"a second backward() added to the gradient of {self._carried.name(number)}, which had been pushed; "
                    "to accumulate, run every backward() but the last within `with run.accumulate():`, or use "
                    'push_at="step"'
                )
            self._missing[index].discard(number)
            if not self._missing[index]:
                self._push(self._open(), self._carried.layout.slices[index])

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within it, gradients add up and nothing is pushed."""
        if self._opened is not None:
            raise Unsupported(
                "run.accumulate() came after a backward() that had pushed; only the last backward() before step() "
                "may stand outside it"
            )
        self._accumulating, before = True, self._accumulating
        try:
            yield
        finally:
            self._accumulating = before

    def step(self) -> None:
        """Push what has not been pushed yet, and take in the answers (with overlap: begin to)."""
        if self._accumulating:
            raise Unsupported("step() within run.accumulate(): call it behind the block")
        turn = self._open()
        self._check_frozen()
        self._check_pushed(turn)
        for piece in self._trained:
            if piece.index not in turn.pushed:
                self._push(turn, piece)
        self._push_ledger(turn.ended)
        self._note("step", samples=turn.weight)
        self._close()
        if self._rules.overlap == "forward":
            self.pending.begin()
        else:
            self._finish(idle=False)

    def idle(self) -> None:
        """Take part in a gradient turn without anything to give: this worker's data has ended."""
        if self._opened is not None:
            raise Unsupported(
                "the loop ended after a backward() that had pushed, without step(); call step(), or run that "
                'backward() within run.accumulate(), or use push_at="step"'
            )
        self.current()
        groups = self._groups()
        for piece in self._trained:
            hyper = self._place.idle_hyper(groups[piece.group])
            self._contribute(piece, "gradient", "step()", 0.0, (None, absent(piece)), hyper=hyper, ended=True)
        self._push_ledger(ended=True)
        self._note("step", samples=0.0)
        self._close()
        self._finish(idle=True)

    def end_epoch(self) -> None:
        """This worker's data has ended: take part until everybody's has."""
        self.current()
        while not self.all_ended:
            self.idle()

    def current(self) -> None:
        """Return when every weight is current."""
        self._exchange.wait()

    def _open(self) -> _Turn:
        if self._opened is None:
            self.current()
            plan = self._rules.policy.step(self._exchange.turn)
            if plan is None or plan.kind != "gradient" or plan.slices is not None:
                name = type(self._rules.policy).__name__
                raise Unsupported(
                    f"sync policy {name} plans {plan}; the training loop carries whole gradient steps"
                )
            self._opened = _Turn(self._samples.take(), self.ended)
            self._note("push", samples=self._opened.weight)
        return self._opened

    def _push(self, turn: _Turn, piece: Slice) -> None:
        if piece.group not in turn.hypers:
            turn.hypers[piece.group] = self._place.hyper(self._groups()[piece.group])
        turn.pushed.add(piece.index)

        def gradient(number: int) -> torch.Tensor | None:
            value = self._carried.trained[number].grad
            if value is None or not turn.weight:
                return None
            check_gradient(self._carried.name(number), value)
            turn.gradients[number] = value, value._version
            return value

        packed = self._carried.gather(piece, gradient, turn.weight)
        hyper = turn.hypers[piece.group]
        self._contribute(piece, "gradient", "step()", turn.weight, packed, hyper=hyper, ended=turn.ended)

    def _push_ledger(self, ended: bool) -> None:
        for piece in self._carried.slices("ledger"):
            ones = torch.zeros(piece.elements, dtype=torch.int64)
            part = piece.parts[0]
            if part.start <= self._rules.member < part.stop:
                ones[self._rules.member - part.start] = 1
            self._contribute(piece, "gradient", "step()", 1.0, (ones, None), ended=ended)

    def _check_frozen(self) -> None:
        groups = self._groups()
        for number, parameter in enumerate(self._carried.parameters):
            if parameter.requires_grad and number not in self._carried.trained:
                if any(parameter is p for group in groups for p in group["params"]):
                    raise Unsupported(
                        f"{self._carried.name(number)} was frozen at attach() and requires a gradient now; attach the "
                        "model with everything that will ever be trained requiring gradients, and freeze it afterwards"
                    )

    def _check_pushed(self, turn: _Turn) -> None:
        for number, (gradient, version) in turn.gradients.items():
            if self._carried.trained[number].grad is not gradient or gradient._version != version:
                raise GradientEdited(
                    f"the gradient of {self._carried.name(number)} was changed after it had been pushed; to clip, use "
                    'attach(..., clip_norm=c); for any other edit, attach(..., push_at="step")'
                )
        groups = self._groups()
        for group, hyper in turn.hypers.items():
            now = self._place.hyper(groups[group])
            if now != hyper:
                changed = ", ".join(sorted(key for key in now if now[key] != hyper.get(key)))
                raise Disagreement(
                    f"{changed} of parameter group {group} changed between the push in backward() and step(); call "
                    'scheduler.step() after optimizer.step(), or use attach(..., push_at="step")'
                )

    # -- other turns ----------------------------------------------------------------------------------------------

    def assign(
        self, operation: str, slices: Iterable[Slice], states: dict[int, SliceState] | None = None
    ) -> None:
        """Give every worker the first one's values of these slices; `states`: their optimizer state, too."""
        self._refuse_open(operation)
        self.current()
        for piece in slices:
            self._assign(piece, operation, None if states is None else states.get(piece.index))
        self._exchange.next_turn()
        self.current()

    def average(
        self, operation: str, means: Iterable[Slice], firsts: Iterable[Slice]
    ) -> dict[int, torch.Tensor]:
        """The workers' mean of some slices and the first worker's values of others, flat; live tensors stay as they are.

        A slice is absent from the result where no worker has a weight.
        """
        self._refuse_open(operation)
        self.current()
        self._aside = {}
        try:
            for piece in means:
                weight = self._samples.total
                packed = (
                    self._carried.gather(piece, self._carried.tensor, weight)
                    if weight
                    else (None, absent(piece))
                )
                self._contribute(piece, "mean", operation, weight, packed)
            for piece in firsts:
                self._assign(piece, operation, None)
            self._exchange.next_turn()
            self.current()
            return self._aside
        finally:
            self._aside = None

    def _assign(self, piece: Slice, operation: str, state: SliceState | None) -> None:
        is_first = self._rules.member == 0
        packed = self._carried.gather(piece, self._source(piece)) if is_first else (None, absent(piece))
        self._contribute(
            piece, "assign", operation, float(is_first), packed, state=state if is_first else None
        )

    def _source(self, piece: Slice) -> Callable[[int], torch.Tensor]:
        if piece.role == "ledger":
            return lambda number: torch.zeros(self._rules.members, dtype=torch.int64)
        return self._carried.tensor

    def detach(self) -> None:
        """Take the hooks off the model."""
        for handle in self._handles:
            handle.remove()

    # -- helpers --------------------------------------------------------------------------------------------------

    def _contribute(
        self,
        piece: Slice,
        kind: Any,
        operation: str,
        weight: float,
        packed: tuple[torch.Tensor | None, bytes | None],
        hyper: Hyperparameters | None = None,
        ended: bool = False,
        state: SliceState | None = None,
    ) -> None:
        values, present = packed
        self._exchange.contribute(
            Contribution(
                self._exchange.turn,
                piece.index,
                kind,
                operation,
                weight,
                values,
                present,
                hyper,
                ended,
                state,
            )
        )

    def _receive(self, arrived: Arrived) -> None:
        piece = self._carried.layout.slices[arrived.slice]
        if arrived.kind != "gradient" and self._aside is not None:
            if arrived.values is not None:
                self._aside[piece.index] = arrived.values
        elif piece.role == "ledger":
            self.ledger = arrived.values if arrived.values is not None else self.ledger
        elif arrived.kind == "gradient" and piece.role == "weight":
            self.all_ended = arrived.ended
            self._place.arrived(piece, arrived)
        elif arrived.values is not None:
            self._carried.scatter(piece, arrived.values)
        self.pending.arrived(piece.index)

    def _close(self) -> None:
        self._opened = None
        self._missing = self._all_missing()
        self._exchange.next_turn()

    def _finish(self, idle: bool) -> None:
        self.current()
        self._place.finish(idle)
        self._note("current")

    def _all_missing(self) -> dict[int, set[int]]:
        return {piece.index: {part.tensor for part in piece.parts} for piece in self._trained}

    def _refuse_open(self, operation: str) -> None:
        if self._opened is not None:
            raise Unsupported(f"{operation} between backward() and step(): call it after step()")

    def _note(self, name: str, **fields: Any) -> None:
        self._exchange.port.note(name, turn=self._exchange.turn, **fields)
