"""The gradient turns of an attached model: what leaves in backward and in `step()`, and what becomes of the answers.

On the training thread:

    backward    a parameter's gradient is complete -> a slice whose parameters all are is pushed: w * gradient
    step()      what was pushed must be unchanged; the rest is pushed, parameters without a gradient as absent
    answers     weights are copied into the parameters (or means into `.grad`, see `places.py`) as they come
    end         by default before `step()` returns; with overlap, before the next turn pushes anything

The weight w, the end-of-data flag and each group's hyper-parameters are fixed when the first slice of a turn leaves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from geomx.errors import Disagreement, GradientEdited, Unsupported
from geomx.layout import Slice
from geomx.node.local import Arrived
from geomx.protocol.messages import Hyperparameters
from geomx.torch.exchange import Exchange, Packed
from geomx.torch.guard import Guard
from geomx.torch.pending import PendingWeights
from geomx.torch.places import OptimizerPlace
from geomx.torch.samples import Samples
from geomx.torch.settings import Settings
from geomx.torch.sharing import Sharing
from geomx.torch.support import check_gradient
from geomx.torch.tensors import Carried, absent
from geomx.torch.timeline import Timeline

STEP = "step()"


@dataclass(slots=True)
class _Turn:
    """A gradient turn of which something has been pushed. `gradients`: parameter -> (as pushed, its `_version`)."""

    weight: float
    samples: int
    ended: bool
    pushed: set[int] = field(default_factory=set)
    gradients: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)
    hypers: dict[int, Hyperparameters] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Helpers:
    """What the turns work with. `groups` returns the optimizer's parameter groups as they are now."""

    groups: Callable[[], list[dict[str, Any]]]
    place: OptimizerPlace
    samples: Samples
    sharing: Sharing
    pending: PendingWeights
    timeline: Timeline
    guard: Guard


class Turns:
    """See the module's text. `member`: this worker's place among the workers of the run."""

    def __init__(
        self, exchange: Exchange, carried: Carried, settings: Settings, member: int, helpers: Helpers
    ) -> None:
        self._exchange = exchange
        self._carried = carried
        self._settings = settings
        self._member = member
        self._groups = helpers.groups
        self._place = helpers.place
        self._samples = helpers.samples
        self._sharing = helpers.sharing
        self._pending = helpers.pending
        self._timeline = helpers.timeline
        self._guard = helpers.guard
        self._trained = carried.slices("weight")
        self._accumulating = False
        self._opened: _Turn | None = None
        self._missing = self._all_missing()
        self._removes: list[Callable[[], None]] = []
        self._one_at_a_time = threading.Lock()  # autograd has a thread for each GPU
        self.steps = 0  # gradient turns so far
        self.ledger: torch.Tensor | None = None
        self.ended = False  # this worker is at the end of its data
        self.all_ended = False  # every worker was, in the last gradient turn
        exchange.receive = self._receive

    # -- hooks ------------------------------------------------------------------------------------------------

    def hook(self) -> None:
        """From now on gradients leave as they are completed, unless they are to wait for `step()`."""
        if self._settings.push_at == "backward":
            for number, parameter in self._carried.trained.items():
                handle = parameter.register_post_accumulate_grad_hook(self._hook_of(number))  # type: ignore[no-untyped-call]
                self._removes.append(handle.remove)

    def unhook(self) -> None:
        """Take the hooks off the parameters; the weights stay as they are."""
        for remove in self._removes:
            remove()
        self._removes = []
        self._exchange.receive = lambda _: None

    def _hook_of(self, number: int) -> Callable[[torch.Tensor], None]:
        def complete(_: torch.Tensor) -> None:
            with self._one_at_a_time:
                if not self._accumulating:
                    self._gradient_complete(number)

        return complete

    def _gradient_complete(self, number: int) -> None:
        self._timeline.begin("backward")
        for index in self._carried.slices_of[number]:
            if self._opened is not None and index in self._opened.pushed:
                raise Unsupported(
                    f"a second backward() added to the gradient of {self._carried.name(number)}, which had been "
                    "pushed; to accumulate, run every backward() but the last within `with run.accumulate():`, "
                    'or use push_at="step"'
                )
            self._missing[index].discard(number)
            if not self._missing[index]:
                self._push(self._open(), self._carried.layout.slices[index])

    # -- turns ------------------------------------------------------------------------------------------------

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within it, gradients add up and nothing is pushed."""
        if self._opened is not None:
            raise Unsupported(
                "run.accumulate() came after a backward() that had pushed; only the last backward() before step() "
                "may stand outside it"
            )
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def step(self) -> None:
        """Push what has not been pushed yet, and take in the answers (with overlap: begin to)."""
        if self._accumulating:
            raise Unsupported("step() within run.accumulate(): call it behind the block")
        self._timeline.end("backward", turn=self._exchange.turn)
        with self._timeline.span("step", turn=self._exchange.turn):
            turn = self._open()
            self._guard.check()
            self._check_gradients(turn)
            self._check_hypers(turn)
            for piece in self._trained:
                if piece.index not in turn.pushed:
                    self._push(turn, piece)
            self._close(turn.samples, turn.ended)
            if self._settings.overlap == "forward":
                self._pending.begin()
            else:
                self._exchange.wait()
                self._place.finish(idle=False)

    def end_epoch(self) -> None:
        """This worker's data has ended: take part without gradients until everybody's has."""
        self.between("the end of run.shard(loader)")
        while not self.all_ended:
            with self._timeline.span("idle", turn=self._exchange.turn):
                self._idle()

    def between(self, operation: str) -> None:
        """Return when every weight is current; raises `Unsupported` between a backward that has pushed and step()."""
        if self._opened is not None:
            raise Unsupported(
                f"{operation} after a backward() that has pushed, and before step(): call step() first, or run that "
                'backward() within run.accumulate(), or use push_at="step"'
            )
        self._exchange.wait()

    @property
    def turn(self) -> int:
        """The turn that comes next."""
        return self._exchange.turn

    def skip_to(self, turn: int) -> None:
        """Go on with a later turn; every worker must."""
        self._exchange.skip_to(turn)

    def _idle(self) -> None:
        groups = self._groups()
        for piece in self._trained:
            hyper = self._place.idle_hyper(groups[piece.group])
            self._send(piece, 0.0, (None, absent(piece)), hyper, ended=True)
        self._close(0, ended=True)
        self._exchange.wait()
        self._place.finish(idle=True)

    def _open(self) -> _Turn:
        if self._opened is None:
            self._exchange.wait()
            plan = self._settings.policy.step(self._exchange.turn)
            if plan is None or plan.kind != "gradient" or plan.slices is not None:
                name = type(self._settings.policy).__name__
                raise Unsupported(
                    f"the sync policy {name} plans {plan}: only whole gradient steps are carried"
                )
            seen = self._samples.seen
            weight = self._samples.take()
            self._opened = _Turn(weight, self._samples.seen - seen, self.ended)
        return self._opened

    def _push(self, turn: _Turn, piece: Slice) -> None:
        if piece.group not in turn.hypers:
            turn.hypers[piece.group] = self._place.hyper(self._groups()[piece.group])
        turn.pushed.add(piece.index)

        def gradient(number: int) -> torch.Tensor | None:
            value = self._carried.trained[number].grad
            if value is None or not turn.weight:
                return None
            check_gradient(self._carried.layout.tensors[number], value)
            turn.gradients[number] = value, value._version
            return value

        packed = self._carried.gather(piece, gradient, turn.weight)
        self._send(piece, turn.weight, packed, turn.hypers[piece.group], turn.ended)

    def _send(
        self, piece: Slice, weight: float, packed: Packed, hyper: Hyperparameters | None, ended: bool
    ) -> None:
        self._exchange.contribute(piece.index, "gradient", STEP, weight, packed, hyper=hyper, ended=ended)

    def _close(self, samples: int, ended: bool) -> None:
        """Everything has been pushed but the ledger."""
        for piece in self._carried.slices("ledger"):
            mine = torch.zeros(piece.elements, dtype=torch.int64)
            part = piece.parts[0]
            if part.start <= self._member < part.stop:
                mine[self._member - part.start] = 1
            self._send(piece, 1.0, (mine, None), None, ended)
        self._exchange.port.note("step", turn=self._exchange.turn, samples=samples)
        self._opened = None
        self._missing = self._all_missing()
        self._exchange.next_turn()
        self.steps += 1

    def _all_missing(self) -> dict[int, set[int]]:
        return {piece.index: {part.tensor for part in piece.parts} for piece in self._trained}

    # -- checks -------------------------------------------------------------------------------------------------

    def _check_gradients(self, turn: _Turn) -> None:
        for number, (gradient, version) in turn.gradients.items():
            if self._carried.trained[number].grad is not gradient or gradient._version != version:
                raise GradientEdited(
                    f"the gradient of {self._carried.name(number)} was changed after it had been pushed; to clip, use "
                    'attach(..., clip_norm=c); for any other edit, attach(..., push_at="step")'
                )

    def _check_hypers(self, turn: _Turn) -> None:
        groups = self._groups()
        for group, hyper in turn.hypers.items():
            now = self._place.hyper(groups[group])
            if now != hyper:
                changed = ", ".join(sorted(key for key in now if now[key] != hyper.get(key)))
                raise Disagreement(
                    f"{changed} of parameter group {group} changed between the push in backward() and step(); call "
                    'scheduler.step() after optimizer.step(), or use attach(..., push_at="step")'
                )

    # -- answers ------------------------------------------------------------------------------------------------

    def _receive(self, arrived: Arrived) -> None:
        piece = self._carried.layout.slices[arrived.slice]
        if piece.role == "ledger":
            self.ledger = self.ledger if arrived.values is None else arrived.values.clone()
        elif piece.role == "weight" and arrived.kind == "gradient":
            self.all_ended = arrived.ended
            self._place.arrived(piece, arrived)
        else:
            self._sharing.arrived(piece, arrived)
        self._pending.arrived(piece.index)
        self._guard.written(piece)
