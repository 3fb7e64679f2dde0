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
from geomx.train.calls.broadcast import Sharing
from geomx.train.calls.collective_client import Exchange
from geomx.train.data.samples import Samples
from geomx.train.model.guard import Guard
from geomx.train.model.model_slices import Carried
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

    exchange: Exchange
    carried: Carried
    inside: ThroughServer
    settings: Settings
    member: int
    groups: Callable[[], list[dict[str, Any]]]
    samples: Samples
    sharing: Sharing
    pending: PendingWeights
    timeline: Timeline
    guard: Guard


class Turns(ABC):
    """See the module's text."""

    local = False  # whether weights differ between workers, between two means

    @property
    def in_step(self) -> bool:
        """Whether all workers have the same weights behind each step."""
        return not self.local and self.cohort == EVERYONE

    def __init__(self, helpers: Helpers) -> None:
        self._exchange = helpers.exchange
        self._carried = helpers.carried
        self._inside = helpers.inside
        self._settings = helpers.settings
        self._member = helpers.member
        self._groups = helpers.groups
        self._samples = helpers.samples
        self._sharing = helpers.sharing
        self._pending = helpers.pending
        self._timeline = helpers.timeline
        self._guard = helpers.guard
        self._trained = self._carried.slices("weight")
        self._accumulating = False
        self.steps = 0  # of this worker, so far
        self.contributions = 0  # that a ledger counts
        self._planned = 0  # steps of the policy that lie behind us, those without data too
        self.ledger: torch.Tensor | None = None
        self.ended = False  # this worker is at the end of its data
        self.all_ended = False  # everybody in this worker's cohort was, in the last turn
        self._exchange.receive = self._receive

    # -- for each kind to answer ------------------------------------------------------------------------------

    @abstractmethod
    def step(self) -> None:
        """One step of the training loop."""

    @abstractmethod
    def _idle(self) -> None:
        """Take part, without data, in what the others do."""

    @abstractmethod
    def _arrived(self, piece: Slice, arrived: Arrived) -> None:
        """The answer to what a slice has contributed to a step."""

    @property
    @abstractmethod
    def cohort(self) -> str:
        """With whom this worker's steps are counted."""

    def hook(self) -> None:
        """The model has joined: a fresh run, or one that has come to some step."""
        self._planned = self._exchange.next_step

    def unhook(self) -> None:
        """Leave the model as it came; the weights stay as they are."""
        self._exchange.receive = lambda _: None

    # -- what they share --------------------------------------------------------------------------------------

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        """Within it, gradients add up and nothing is pushed."""
        before, self._accumulating = self._accumulating, True
        try:
            yield
        finally:
            self._accumulating = before

    def between(self, operation: str) -> None:
        """Return when every weight is current; raises `Unsupported` where a step has begun and not ended."""
        self._exchange.wait()
        self._inside.rest()

    def end_epoch(self) -> None:
        """This worker's data has ended: take part without gradients until everybody's has."""
        self.ended = True  # it may have had none
        self.between("the end of run.shard(loader)")
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
        return self._exchange.turns[self.cohort]

    def skip_to(self, turn: int) -> None:
        """Go on with a later turn; every worker must."""
        self._exchange.skip_to(turn)

    @property
    def goes_on(self) -> bool:
        """This worker has joined a run that had begun, and has done nothing yet."""
        return self._exchange.goes_on and not self.steps

    def _note_step(self, samples: int) -> None:
        """A step is being taken."""
        self._exchange.port.note(
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
        for piece in self._carried.slices("ledger"):
            self._exchange.wait([piece.index])  # where turns overlap: no slice is in two of them at once
            mine = torch.zeros(piece.elements, dtype=torch.int64)
            part = piece.parts[0]
            if part.start <= self._member < part.stop:
                mine[self._member - part.start] = 1
            self._exchange.contribute(
                piece.index,
                "gradient",
                STEP,
                1.0,
                (mine, None),
                cohort=self.cohort,
                ended=ended,
            )

    def _receive(self, arrived: Arrived) -> None:
        piece = self._carried.layout.slices[arrived.slice]
        if piece.role == "ledger":
            self.ledger = self.ledger if arrived.values is None else arrived.values.clone()
        elif piece.role == "weight" and (arrived.kind == "gradient" or arrived.cohort != EVERYONE):
            self._arrived(piece, arrived)
        else:
            self._sharing.arrived(piece, arrived)
        self._pending.arrived(piece.index)
        self._guard.written(piece)
