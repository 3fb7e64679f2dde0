"""The gradient turns of an attached model: what leaves in backward and in `step()`, and what becomes of the answers.

On the training thread:

    backward    a parameter's gradient is complete -> a slice whose parameters all are is pushed: w * gradient
    step()      what was pushed must be unchanged; the rest is pushed, parameters without a gradient as absent
    answers     weights are copied into the parameters (or means into `.grad`, see `places.py`) as they come
    end         by default before `step()` returns; with overlap, before the next turn pushes anything

The weight w, the end-of-data flag and each group's hyper-parameters are fixed when the first slice of a turn leaves.
Where the workers of a party reduce among themselves (see `inside`), nothing leaves before `step()`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch

from geomx.errors import Disagreement, GradientEdited, Unsupported
from geomx.layout import Slice
from geomx.node.port import Arrived
from geomx.sync.contract import Gradient, cohort_of
from geomx.train.calls.collective_client import Packed
from geomx.train.model.optimizer_placement import OptimizerPlace
from geomx.train.model.support import check_gradient
from geomx.train.steps.contract import STEP, Helpers, Turns
from geomx.train.steps.timeline import BACKWARD
from geomx.wire.messages import Hyperparameters


@dataclass(slots=True)
class _Turn:
    """A gradient turn of which something has been pushed. `gradients`: parameter -> (as pushed, its `_version`)."""

    weight: float
    samples: int
    ended: bool
    pushed: set[int] = field(default_factory=set)
    gradients: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)
    hypers: dict[int, Hyperparameters] = field(default_factory=dict)


class GradientTurns(Turns):
    """See the module's text. `place`: where the optimizer runs."""

    def __init__(self, helpers: Helpers, place: OptimizerPlace) -> None:
        super().__init__(helpers)
        self._place = place
        self._cohort = cohort_of(self._exchange.name, self._settings.policy.together)
        self._opened: _Turn | None = None
        self._missing = self._all_missing()
        self._removes: list[Callable[[], None]] = []
        self._one_at_a_time = threading.Lock()  # autograd has a thread for each GPU

    @property
    def cohort(self) -> str:
        return self._cohort

    # -- hooks ------------------------------------------------------------------------------------------------

    def hook(self) -> None:
        super().hook()
        # From now on gradients leave as they are completed, unless they are to wait for `step()`.
        if self._settings.push_at == "backward" and self._inside.final_in_backward:
            for number, parameter in self._carried.trained.items():
                handle = parameter.register_post_accumulate_grad_hook(self._hook_of(number))  # type: ignore[no-untyped-call]
                self._removes.append(handle.remove)

    def unhook(self) -> None:
        super().unhook()
        for remove in self._removes:
            remove()
        self._removes = []

    def _hook_of(self, number: int) -> Callable[[torch.Tensor], None]:
        def complete(_: torch.Tensor) -> None:
            with self._one_at_a_time:
                if not self._accumulating:
                    self._gradient_complete(number)

        return complete

    def _gradient_complete(self, number: int) -> None:
        self._timeline.begin(BACKWARD)
        for index in self._carried.slices_of[number]:
            if self._opened is not None and index in self._opened.pushed:
                raise Unsupported(
                    f"a second backward() added to the gradient of {self._carried.name(number)}, which had been "
                    "pushed; to accumulate, run every backward() but the last within `with run.accumulate():`, "
                    'or use push_at="step"'
                )
            self._missing[index].discard(number)
            if not self._missing[index]:
                self._push(self._open(), [self._carried.layout.slices[index]])

    # -- turns ------------------------------------------------------------------------------------------------

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        if self._opened is not None:
            raise Unsupported(
                "run.accumulate() came after a backward() that had pushed; only the last backward() before step() "
                "may stand outside it"
            )
        with super().accumulate():
            yield

    def step(self) -> None:
        """Push what has not been pushed yet, and take in the answers (with overlap: begin to)."""
        self._check_accumulation()
        self._timeline.end(BACKWARD, turn=self.turn)
        with self._timeline.step(self.turn):
            turn = self._open()
            self._guard.check()
            self._check_gradients(turn)
            self._check_hypers(turn)
            self._push(turn, [piece for piece in self._trained if piece.index not in turn.pushed])
            self._close(turn.samples, turn.ended)
            if self._settings.overlap == "forward" and not self._inside.in_lockstep:
                self._pending.begin()
            else:
                self._exchange.wait()
                self._place.finish(idle=False)

    def between(self, operation: str) -> None:
        if self._opened is not None:
            raise Unsupported(
                f"{operation} after a backward() that has pushed, and before step(): call step() first, or run that "
                'backward() within run.accumulate(), or use push_at="step"'
            )
        super().between(operation)

    def _idle(self) -> None:
        groups = self._groups()
        for piece, weight, packed in self._inside.contributions(self._trained, lambda _: None, 0.0):
            hyper = self._place.idle_hyper(groups[piece.group])
            self._send(piece, weight, packed, hyper, ended=True)
        self._close(0, ended=True)
        self._exchange.wait()
        self._place.finish(idle=True)

    def _open(self) -> _Turn:
        if self._opened is None:
            self._exchange.wait()
            plan = self._settings.policy.step(self._planned)
            if not isinstance(plan, Gradient):
                name = type(self._settings.policy).__name__
                raise Unsupported(f"the sync policy {name} has no local steps, and plans {plan}")
            seen = self._samples.seen
            weight = self._samples.take()
            self._opened = _Turn(weight, self._samples.seen - seen, self.ended)
        return self._opened

    def _push(self, turn: _Turn, pieces: Sequence[Slice]) -> None:
        def gradient(number: int) -> torch.Tensor | None:
            value = self._carried.trained[number].grad
            if value is None:
                return None
            check_gradient(self._carried.layout.tensors[number], value)
            turn.gradients[number] = value, value._version
            return value

        groups = self._groups()
        for piece, weight, packed in self._inside.contributions(pieces, gradient, turn.weight):
            if piece.group not in turn.hypers:
                turn.hypers[piece.group] = self._place.hyper(groups[piece.group])
            turn.pushed.add(piece.index)
            self._send(piece, weight, packed, turn.hypers[piece.group], turn.ended)

    def _send(
        self, piece: Slice, weight: float, packed: Packed, hyper: Hyperparameters | None, ended: bool
    ) -> None:
        self._exchange.contribute(
            piece.index,
            "gradient",
            STEP,
            weight,
            packed,
            cohort=self._cohort,
            step=self._planned,
            hyper=hyper,
            ended=ended,
        )

    def _close(self, samples: int, ended: bool) -> None:
        """Everything has been pushed but the ledger."""
        self._count_in_ledger(False)
        self._note_step(samples)
        self._opened = None
        self._missing = self._all_missing()
        self._exchange.next_turn(self._cohort)
        self._planned += 1
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

    def _arrived(self, piece: Slice, arrived: Arrived) -> None:
        self.all_ended = arrived.ended
        self._place.arrived(piece, arrived)
