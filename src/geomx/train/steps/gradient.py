"""The gradient turns of an attached model: what leaves in backward and in `step()`, and what becomes of the answers.

On the training thread:

    backward    a parameter's gradient is complete -> a slice whose parameters all are is pushed: w * gradient
    step()      what was pushed must be unchanged; the rest is pushed, parameters without a gradient as absent
    answers     weights are copied into the parameters (or means into `.grad`, see `placement.py`) as they come
    end         by default before `step()` returns; with overlap, before the next turn pushes anything

The weight w, the end-of-data flag and each group's hyper-parameters are fixed when the first slice of a turn leaves.
Where the workers of a party reduce among themselves (see `intra_party`), nothing leaves before `step()`.
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
from geomx.sync.contract import GradientStep
from geomx.train.context import TrainingContext
from geomx.train.model.finite import FiniteOnly
from geomx.train.model.guard import Guard
from geomx.train.model.model_slices import ModelSlices
from geomx.train.model.rows import as_rows
from geomx.train.model.support import check_gradient
from geomx.train.optimizer.placement import OptimizerPlacement
from geomx.train.party.intra_party import ThroughServer
from geomx.train.steps.contract import Closure, Steps
from geomx.train.steps.ledger import Ledger
from geomx.train.steps.pending import PendingWeights
from geomx.train.steps.timeline import BACKWARD
from geomx.wire.messages import NOTHING, UNREAD, Hyperparameters, Reading


@dataclass(slots=True)
class _OpenStep:
    """A gradient turn of which something has been pushed. `gradients`: parameter -> (as pushed, its `_version`)."""

    weight: float
    relative_loss: float | None
    samples: int
    reading: Reading
    pushed: set[int] = field(default_factory=set)
    gradients: dict[int, tuple[torch.Tensor, int]] = field(default_factory=dict)
    rows: dict[int, torch.Tensor] = field(default_factory=dict)  # of gradients that are sparse, coalesced
    hypers: dict[int, Hyperparameters] = field(default_factory=dict)


class GradientSteps(Steps):
    """See the module's text. `placement`: where the optimizer runs; `pending`: weights that a forward waits for."""

    def __init__(
        self,
        context: TrainingContext,
        model_slices: ModelSlices,
        intra_party: ThroughServer,
        ledger: Ledger,
        guard: Guard,
        finite: FiniteOnly,
        placement: OptimizerPlacement,
        pending: PendingWeights,
    ) -> None:
        super().__init__(context, model_slices, intra_party, ledger, guard, finite)
        self._placement, self._pending = placement, pending
        self._cohort = context.cohort
        self._opened: _OpenStep | None = None
        self._others_weigh = 0.0  # in a step for which this worker has no data left
        self._missing = self._all_missing()
        self._removes: list[Callable[[], None]] = []
        self._one_at_a_time = threading.Lock()  # autograd has a thread for each GPU
        self.is_others: Callable[[], bool] = lambda: False  # whether the others have taken this step already
        self.read = UNREAD  # how far all were behind the last step that was answered

    @property
    def cohort(self) -> str:
        return self._cohort

    # -- hooks ------------------------------------------------------------------------------------------------

    def hook(self) -> None:
        super().hook()
        # From now on gradients leave as they are completed, unless they are to wait for `step()`.
        if self._settings.push_at == "backward" and self._intra_party.final_in_backward:
            for number, parameter in self._model_slices.trained.items():
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
        for index in self._model_slices.slices_of[number]:
            if self._opened is not None and index in self._opened.pushed:
                raise Unsupported(
                    f"a second backward() added to the gradient of {self._model_slices.name(number)}, which had "
                    "left already; to accumulate, run every backward() but the last within `with run.accumulate():`, "
                    'or use push_at="step"'
                )
            self._missing[index].discard(number)
            if not self._missing[index]:
                self._push(self._open(), [self._model_slices.layout.slices[index]])

    # -- turns ------------------------------------------------------------------------------------------------

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        if self._opened is not None:
            raise Unsupported(
                "run.accumulate() after a backward() outside of it, whose gradients have left: only the last "
                "backward() before step() may be outside"
            )
        with super().accumulate():
            yield

    def step(self, closure: Closure | None = None) -> None:
        """Push what has not been pushed yet, and take in the answers (with overlap: begin to)."""
        self._check_accumulation()
        self._timeline.end(BACKWARD, turn=self.turn)
        if self.is_others():
            before = self._samples.total
            self._samples.take()
            self._samples.total = before
            self._loss.take()
            return
        with self._timeline.step(self.turn):
            turn = self._open()
            self._guard.check()
            self._check_gradients(turn)
            self._check_hypers(turn)
            self._push(turn, [slice_ for slice_ in self._trained if slice_.index not in turn.pushed])
            self._close(turn.samples, self._operation)
            self._progress.taken()
            if self._settings.overlap == "forward" and not self._intra_party.in_lockstep:
                self._pending.begin()
            else:
                self._client.wait(renews=True)
                self._placement.finish(idle=False)
                self._guard.stepped()

    def require_quiescent(self, operation: str) -> None:
        if self._opened is not None:
            raise Unsupported(
                f"{operation} after a backward() whose gradients have left, and before step(): call step() first, run "
                'that backward() within run.accumulate(), or use push_at="step"'
            )
        super().require_quiescent(operation)

    @property
    def is_amid(self) -> bool:
        return self._opened is not None

    def _idle(self) -> None:
        self.contribute_nothing(self._operation)
        self.next_turn(self._operation)
        self._client.wait(renews=True)
        self.end_idle()

    def contribute_nothing(self, operation: str = NOTHING, reading: Reading | None = None) -> None:
        """Take part without data. `reading`: how far it says that it is; None: where it is."""
        loss = self._party_loss(0.0, None)
        for slice_, weight, packed in self._intra_party.contributions(self._trained, lambda _: None, 0.0):
            hyper = self._placement.idle_hyper(slice_.group)
            self._client.contribute(
                slice_.index, "gradient", operation, weight, packed,
                cohort=self._cohort, step=self._planned, hyper=hyper, reading=reading or self._behind_this,
                relative_loss=loss,
            )  # fmt: skip
        self._others_weigh = 0.0

    def next_turn(self, operation: str = NOTHING) -> None:
        """Behind everything that has been contributed without data."""
        self._close(0, operation)

    def end_idle(self) -> None:
        """What was contributed without data has been answered."""
        self._placement.finish(idle=True)
        self._guard.stepped()
        if self._others_weigh:
            self._progress.follow()

    @property
    def _behind_this(self) -> Reading:
        return self._progress.reading._replace(steps=self._progress.steps + 1)

    def _open(self) -> _OpenStep:
        if self._opened is None:
            self._client.wait()
            plan = self._settings.policy.step(self._planned)
            if not isinstance(plan, GradientStep):
                name = type(self._settings.policy).__name__
                raise Unsupported(
                    f"the sync policy {name} has plans = GradientStep, but its step() returned {plan}"
                )
            self._finite.begin(self._planned, self.turn)
            seen, before = self._samples.seen, self._progress.place
            weight, own = self._samples.take(), self._loss.take()
            loss = self._party_loss(weight, own)
            self._client.reached(self._cohort, self._planned, before, self._progress.place_behind)
            reading = self._behind_this
            self._opened = _OpenStep(weight, loss, self._samples.seen - seen, reading)
        return self._opened

    def _party_loss(self, weight: float, own: float | None) -> float | None:
        """What goes with this worker's contributions, which may be those of its whole party."""
        return self._intra_party.mean_loss(weight, own) if self._loss.is_needed else own

    def _push(self, turn: _OpenStep, slices: Sequence[Slice]) -> None:
        def gradient(number: int) -> torch.Tensor | None:
            value = self._model_slices.trained[number].grad
            if value is None:
                return None
            tensor = self._model_slices.layout.tensors[number]
            check_gradient(tensor, value)
            turn.gradients[number] = value, value._version
            if not tensor.row:
                return value
            if number not in turn.rows:
                turn.rows[number] = as_rows(value)
            return turn.rows[number]

        for slice_, weight, packed in self._intra_party.contributions(slices, gradient, turn.weight):
            if slice_.group not in turn.hypers:
                turn.hypers[slice_.group] = self._placement.hyper(slice_.group)
            turn.pushed.add(slice_.index)
            self._client.contribute(
                slice_.index, "gradient", self._operation, weight, packed,
                cohort=self._cohort, step=self._planned, hyper=turn.hypers[slice_.group], reading=turn.reading,
                relative_loss=turn.relative_loss,
            )  # fmt: skip

    def _close(self, samples: int, operation: str) -> None:
        """Everything has been pushed but the ledger."""
        self._ledger.count(self._cohort, operation)
        self._note_step(samples)
        self._finite.end()
        self._opened = None
        self._missing = self._all_missing()
        self._client.next_turn(self._cohort)
        self._planned += 1
        self.steps += 1

    def _all_missing(self) -> dict[int, set[int]]:
        return {slice_.index: {part.tensor for part in slice_.parts} for slice_ in self._trained}

    # -- checks -------------------------------------------------------------------------------------------------

    def _check_gradients(self, turn: _OpenStep) -> None:
        for number, (gradient, version) in turn.gradients.items():
            if self._model_slices.trained[number].grad is not gradient or gradient._version != version:
                raise GradientEdited(
                    f"the gradient of {self._model_slices.name(number)} was changed after it had left; to clip, "
                    'use attach(..., clip_norm=c); for any other edit, attach(..., push_at="step")'
                )

    def _check_hypers(self, turn: _OpenStep) -> None:
        for group, hyper in turn.hypers.items():
            now = self._placement.hyper(group)
            if now != hyper:
                changed = ", ".join(sorted(key for key in now if now[key] != hyper.get(key)))
                raise Disagreement(
                    f"{changed} of parameter group {group} changed between the push in backward() and step(); call "
                    'scheduler.step() after optimizer.step(), or use attach(..., push_at="step")'
                )

    # -- answers ------------------------------------------------------------------------------------------------

    def arrived(self, slice_: Slice, arrived: Arrived) -> None:
        if arrived.update.kind == "gradient":  # else a server that was started again has sent the values
            self.read, self._over = arrived.update.reading, arrived.update.reading.passes
            self._others_weigh = max(self._others_weigh, arrived.update.weight)
        self._placement.arrived(slice_, arrived)
