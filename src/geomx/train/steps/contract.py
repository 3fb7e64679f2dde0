"""What a step is, in a run: the part that steps of every kind share.

`gradient_turns`: gradients go up in every step, and weights come back. `local_turns`: the worker's own optimizer steps,
and weights are averaged now and then.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from geomx.errors import Unsupported
from geomx.layout import Slice
from geomx.node.port import Arrived
from geomx.rounds.membership import EVERYONE
from geomx.train.calls.broadcast import Broadcast
from geomx.train.calls.collective_client import CollectiveClient
from geomx.train.data.samples import Samples
from geomx.train.model.guard import Guard
from geomx.train.model.model_slices import ModelSlices
from geomx.train.party.intra_party import ThroughServer
from geomx.train.settings import Settings
from geomx.train.steps.pending import PendingWeights
from geomx.train.steps.timeline import Timeline

STEP = "step()"


@dataclass(frozen=True, slots=True)
class Helpers:
    """What turns work with.

    `member`: this worker's place among the workers of the run. `groups` returns the optimizer's parameter groups as
    they are now.
    """

    client: CollectiveClient
    model_slices: ModelSlices
    intra_party: ThroughServer
    settings: Settings
    member: int
    groups: Callable[[], list[dict[str, Any]]]
    samples: Samples
    broadcast: Broadcast
    pending: PendingWeights
    timeline: Timeline
    guard: Guard


class Steps(ABC):
    """See the module's text."""

    local = False  # whether weights differ between workers, between two means

    @property
    def lockstep(self) -> bool:
        """Whether all workers have the same weights behind each step."""
        return not self.local and self.cohort == EVERYONE

    def __init__(self, helpers: Helpers) -> None:
        self._client = helpers.client
        self._model_slices = helpers.model_slices
        self._intra_party = helpers.intra_party
        self._settings = helpers.settings
        self._member = helpers.member
        self._groups = helpers.groups
        self._samples = helpers.samples
        self._broadcast = helpers.broadcast
        self._pending = helpers.pending
        self._timeline = helpers.timeline
        self._guard = helpers.guard
        self._trained = self._model_slices.slices("weight")
        self._accumulating = False
        self.steps = 0  # of this worker, so far
        self.contributions = 0  # that a ledger counts
        self._planned = 0  # steps of the policy that lie behind us, those without data too
        self.ledger: torch.Tensor | None = None
        self.ended = False  # this worker is at the end of its data
        self.all_ended = False  # everybody in this worker's cohort was, in the last turn
        self._client.receive = self._receive

    # -- for each kind to answer ------------------------------------------------------------------------------

    @abstractmethod
    def step(self) -> None:
        """One step of the training loop."""

    @abstractmethod
    def _idle(self) -> None:
        """Take part, without data, in what the others do."""

    @abstractmethod
    def _arrived(self, slice_: Slice, arrived: Arrived) -> None:
        """The answer to what a slice has contributed to a step."""

    @property
    @abstractmethod
    def cohort(self) -> str:
        """With whom this worker's steps are counted."""

    def hook(self) -> None:
        """The model has joined: a fresh run, or one that has come to some step."""
        self._planned = self._client.next_step

    def unhook(self) -> None:
        """Leave the model as it came; the weights stay as they are."""
        self._client.receive = lambda _: None

    # -- what they share --------------------------------------------------------------------------------------

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within it, gradients add up and nothing is pushed."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def require_quiescent(self, operation: str) -> None:
        """Return when every weight is current; raises `Unsupported` where a step has begun and not ended."""
        self._client.wait()
        self._intra_party.rest()

    def end_epoch(self) -> None:
        """This worker's data has ended: take part without gradients until everybody's has."""
        self.ended = True  # it may have had none
        self.require_quiescent("the end of run.shard(loader)")
        self._timeline.rest()
        while not self.all_ended:
            with self._timeline.span("idle", turn=self.turn):
                self._idle()

    def before_step(self) -> None:
        """The computation of a step has ended."""
        if self._settings.delay is not None:
            self._settings.delay.before_step()

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
            raise Unsupported("step() within run.accumulate(): call it behind the block")

    def _count_in_ledger(self, ended: bool) -> None:
        """This worker has contributed once more."""
        self.contributions += 1
        for slice_ in self._model_slices.slices("ledger"):
            self._client.wait([slice_.index])  # where turns overlap: no slice is in two of them at once
            mine = torch.zeros(slice_.elements, dtype=torch.int64)
            part = slice_.parts[0]
            if part.start <= self._member < part.stop:
                mine[self._member - part.start] = 1
            self._client.contribute(
                slice_.index,
                "gradient",
                STEP,
                1.0,
                (mine, None),
                cohort=self.cohort,
                ended=ended,
            )

    def _receive(self, arrived: Arrived) -> None:
        slice_ = self._model_slices.layout.slices[arrived.slice]
        if slice_.role == "ledger":
            self.ledger = self.ledger if arrived.values is None else arrived.values.clone()
        elif slice_.role == "weight" and (arrived.kind == "gradient" or arrived.cohort != EVERYONE):
            self._arrived(slice_, arrived)
        else:
            self._broadcast.arrived(slice_, arrived)
        self._pending.arrived(slice_.index)
        self._guard.written(slice_)
