"""What a step is, in a run: the contract of the kinds of steps, and what they share.

`gradient.py`: gradients go up in every step, and weights come back. `local.py`: the worker's own optimizer steps, and
weights are averaged now and then. `accumulate.py`: gradients add up before they leave.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from geomx.errors import Unsupported
from geomx.layout import Slice
from geomx.node.port import Arrived
from geomx.optim.clip import scale_of, square_sum
from geomx.train.calls.collective_client import Packed
from geomx.train.context import TrainingContext
from geomx.train.model.finite import FiniteOnly
from geomx.train.model.guard import Guard
from geomx.train.model.model_slices import ModelSlices, nothing
from geomx.train.party.intra_party import ThroughServer
from geomx.train.steps.ledger import Ledger
from geomx.tree import EVERYONE
from geomx.wire.messages import Update

Closure = Callable[[], Any]


class Steps(ABC):
    """See the module's text."""

    local = False  # whether weights differ between workers, between two means

    @property
    def lockstep(self) -> bool:
        """Whether all workers have the same weights behind each step."""
        return not self.local and self.cohort == EVERYONE

    def __init__(
        self,
        context: TrainingContext,
        model_slices: ModelSlices,
        intra_party: ThroughServer,
        ledger: Ledger,
        guard: Guard,
        finite: FiniteOnly,
    ) -> None:
        self._client, self._settings = context.client, context.settings
        self._samples, self._progress, self._timeline = context.samples, context.progress, context.timeline
        self._loss = context.loss
        self._model_slices, self._intra_party = model_slices, intra_party
        self._ledger, self._guard, self._finite = ledger, guard, finite
        self._trained = model_slices.slices("weight")
        self._accumulating = False
        self.steps = 0  # of this worker, so far
        self._operation, self._planned_by = context.operation, context.planned
        self.ended = False  # this worker is at the end of its data
        self._over = 0  # passes over the data that all in this worker's cohort have ended, by the last answer

    @property
    def _planned(self) -> int:
        """Steps of the policy that lie behind us, those without data too."""
        return self._planned_by.steps

    @_planned.setter
    def _planned(self, steps: int) -> None:
        self._planned_by.steps = steps

    @property
    def own(self) -> set[int]:
        """The slices of its model that change."""
        return {slice_.index for slice_ in self._model_slices.slices("weight", "buffer")}

    # -- for each kind to answer ------------------------------------------------------------------------------

    @abstractmethod
    def step(self, closure: Closure | None = None) -> Any:
        """One step of the training loop. `closure`: what makes the gradients of local steps; returns what it has."""

    @abstractmethod
    def _idle(self) -> Any:
        """Take part, without data, in what the others do."""

    @abstractmethod
    def arrived(self, slice_: Slice, arrived: Arrived) -> None:
        """The answer to what a slice has contributed to a step."""

    def reassigned(self, slice_: Slice, weights: torch.Tensor) -> None:
        """All workers have been given these weights, by a call that is no step."""

    @property
    @abstractmethod
    def cohort(self) -> str:
        """With whom this worker's steps are counted."""

    @property
    def slices(self) -> set[int]:
        """Those that take part in a step of the whole model."""
        return {slice_.index for slice_ in self._model_slices.slices("weight", "ledger")}

    def hook(self) -> None:
        """The model has joined: a fresh run, or one that has come to some step."""
        self._planned = self._client.next_step

    def moved(self) -> int:
        """The run has gone on without this worker, which was cut off, and has given it all that it has made.

        Returns how many steps of the policy it has missed.
        """
        missed = self._client.next_step - self._planned
        self._planned = self._client.next_step
        self._over = self._client.data.reading.passes
        return missed

    def unhook(self) -> None:
        """Leave the model as it came; the weights stay as they are."""

    def answers(self, slice_: Slice, update: Update) -> bool:
        """Whether an update answers what a slice has contributed to a step; else it answers a call of another kind."""
        return slice_.role == "weight" and (update.kind == "gradient" or update.cohort != EVERYONE)

    # -- what they share --------------------------------------------------------------------------------------

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within it, gradients add up and nothing is pushed."""
        before, self._accumulating = self._accumulating, True
        self._samples.accumulating = True
        try:
            yield
        finally:
            self._accumulating = self._samples.accumulating = before

    def require_quiescent(self, operation: str) -> None:
        """Return when every weight is current; raises `Unsupported` where a step has begun and not ended."""
        self._client.wait()
        self._finite.look()
        self._intra_party.rest()

    def end_epoch(self) -> None:
        """This worker's data has ended: take part without gradients until everybody's has."""
        self.ended = True  # it may have had none
        self.require_quiescent("the end of run.shard(loader)")
        self._timeline.rest()
        while self._over <= self._progress.epoch:
            self.between()
            with self._timeline.span("idle", turn=self.turn):
                self._idle()

    def settle(self) -> None:
        """Find out where the others are, where this worker has come back and does not know."""

    def finish(self) -> None:
        """This worker leaves: what it has not shared yet goes to the run, with whose state it ends."""

    def between(self) -> None:
        """Behind a step, or before a batch: a worker that was asked to leave does so."""
        if not self.is_amid:
            self._progress.between()

    @property
    def is_amid(self) -> bool:
        """Whether something of a step has left, and not all."""
        return False

    def hand_over(self) -> None:
        """This worker leaves early: give up what it has not shared, without waiting for anybody."""
        for slice_, weight, packed in self._unshared():
            self._client.hand_over(slice_.index, self._operation, weight, packed)

    def _unshared(self) -> Iterator[tuple[Slice, float, Packed]]:
        """Of every trained slice: what its codec holds back goes with it. Steps that are shared leave nothing else."""
        for slice_ in self._trained:
            yield slice_, 0.0, nothing(slice_).packed

    @property
    def turn(self) -> int:
        """The turn that comes next, of those who step together."""
        return self._client.turns[self.cohort]

    def skip_to(self, turn: int) -> None:
        """Go on with a later turn; every worker must."""
        self._client.skip_to(turn)

    @property
    def goes_on(self) -> bool:
        """This worker has joined a run that had begun, and has done nothing yet."""
        return self._client.goes_on and not self.steps

    def _note_step(self, samples: int) -> None:
        """A step is being taken."""
        self._client.port.note(
            "step",
            turn=self.turn,
            samples=samples,
            compute_s=self._timeline.compute_s,
            backward_s=self._timeline.backward_s,
        )

    def _check_accumulation(self) -> None:
        if self._accumulating:
            raise Unsupported("step() within run.accumulate(): call it after the block")


def clip_own(parameters: Iterable[torch.nn.Parameter], clip_norm: float | None) -> None:
    """Scale one worker's own gradients, in place, so that their L2 norm is at most `clip_norm`; None: leave them."""
    if clip_norm is None:
        return
    every = list(parameters)
    gradients = [each.grad for each in every if each.grad is not None]
    if not any(gradient.is_sparse for gradient in gradients):
        torch.nn.utils.clip_grad_norm_(every, clip_norm)
        return
    scale = scale_of(clip_norm, sum(map(square_sum, gradients)))  # torch takes no sparse ones
    for gradient in gradients:
        gradient.mul_(scale)
