"""How far a script is: passes over its shares, batches that steps have used, steps, and its first loss.

A worker that is started again is told where it was (see `Reached`), and a checkpoint says where it was written. Either
way the script begins at its beginning, and its shares begin where they were: the passes that were under way are entered
behind the batches that steps had used. What was read and not used by a step is read again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch

from geomx.train.calls.collective_client import CollectiveClient
from geomx.train.data.loss import Loss
from geomx.train.data.samples import Samples
from geomx.train.steps.timeline import Timeline
from geomx.wire.messages import Place, Reading


class PassSteps(Protocol):
    """The steps that a pass over the data feeds. `ended`: this worker's data has."""

    ended: bool

    def settle(self) -> None:
        """Find out where the others are, before a batch, where this worker does not know."""

    def between(self) -> None:
        """Behind a step, or before a batch."""

    def end_epoch(self) -> None:
        """Take part without data until everybody's has ended."""


class PassParty(Protocol):
    """How the workers of a party share a pass. `in_lockstep`: all need equally many batches."""

    in_lockstep: bool


class PassModel(Protocol):
    """What passes over the data need of a model that is attached."""

    @property
    def trains(self) -> bool:
        """Whether it is in training mode."""

    @property
    def client(self) -> CollectiveClient:
        """The worker's way to the run."""

    @property
    def steps(self) -> PassSteps:
        """Those that the data feeds."""

    @property
    def intra_party(self) -> PassParty:
        """The worker's party."""


@dataclass(slots=True)
class Pass:
    """One pass over a share. `handed`: how many batches the loop has been given, `used`: how many by the last step.

    `is_first`: no step of the run was taken before it.
    """

    epoch: int
    trains: bool
    handed: int = 0
    used: int = 0
    is_first: bool = False


class Progress:
    """See the module's text. `epoch` counts the passes that have trained, `steps` the steps that were taken."""

    def __init__(self, samples: Samples, loss: Loss, timeline: Timeline) -> None:
        self._samples, self._loss, self._timeline = samples, loss, timeline
        self.attached: PassModel | None = None
        self.between: Callable[[], None] = lambda: None  # is called between steps, where a worker may leave
        self.followed: Callable[[], None] = lambda: (
            None
        )  # is called where others take a step without this worker
        self.joins: Callable[[], None] = lambda: None  # what was attached joins the run
        self.epoch = 0
        self.steps = 0
        self.is_amid = False  # a share has been read in part; see `LiveRun`
        self.catches_up = False  # it leaves out what the others have done while this worker was cut off
        self._has_told = False  # which samples it begins with
        self._passes: list[Pass] = []  # those that train and are under way, in the order of their beginning
        self._ahead: list[int] = []  # behind how many batches the passes that are to come begin

    # -- places -----------------------------------------------------------------------------------------------

    @property
    def place(self) -> Place:
        """Behind the last step."""
        batches = (*(each.used for each in self._passes), *self._ahead)
        return Place(self.epoch, batches, self.steps, self._samples.total, self._loss.first)

    @property
    def place_behind(self) -> Place:
        """Behind the step that is being taken, once its samples are counted."""
        batches = (*(each.handed for each in self._passes), *self._ahead)
        return Place(self.epoch, batches, self.steps + 1, self._samples.total, self._loss.first)

    @property
    def reading(self) -> Reading:
        """How far this worker's script is, once it has taken the steps that it was counted in."""
        if self.attached is not None and self.attached.steps.ended:
            return Reading(self.epoch + 1, 0, self.steps)
        return Reading(self.epoch, self._passes[0].handed if self._passes else 0, self.steps)

    def taken(self) -> None:
        """A step has been taken, with all batches that the loop has been given."""
        self.steps += 1
        for each in self._passes:
            each.used = each.handed

    def follow(self) -> None:
        """Others have taken a step for which this worker had no data left."""
        self.steps += 1
        self.followed()

    def go_on(self, place: Place) -> None:
        """Be there. The passes that are under way are of no account any more; those to come are."""
        self.epoch, self.steps = place.epoch, place.steps
        self._passes, self._ahead = [], list(place.batches)
        self._samples.total, self._loss.first = place.weight, place.first_loss

    # -- what a share tells ------------------------------------------------------------------------------------

    @property
    def even(self) -> bool:
        """Whether all workers must have equally many batches."""
        return self.attached is not None and self.attached.intra_party.in_lockstep

    @property
    def absent(self) -> bytes:
        """The workers among whom this pass is not shared: a bitmap, see `Roster`."""
        return b"" if self.attached is None else self.attached.client.data.absent(self.epoch)

    @property
    def is_behind(self) -> bool:
        """Whether the run has ended the pass that this worker is in: it was cut off meanwhile."""
        return self.attached is not None and self.epoch < self.attached.client.data.reading.passes

    def is_over(self) -> bool:
        """The same before a batch, as far as this worker knows or can find out."""
        if self.attached is not None:
            self.attached.steps.settle()
        return self.is_behind

    @property
    def is_reading(self) -> bool:
        """Whether a share is being read that trains."""
        return bool(self._passes)

    def skipped(self, this: Pass) -> int:
        """How many batches of a pass the others have used that this worker has not: it was cut off meanwhile."""
        if self.attached is None or this.epoch != self.attached.client.data.reading.passes:
            return 0
        skipped = max(0, self.attached.client.data.take_batches() - this.handed)
        this.handed += skipped
        self.left_out(skipped)
        return skipped

    def left_out(self, batches: int) -> None:
        """So many batches of the running pass were this worker's, and nobody reads them."""
        if batches and self.attached is not None:
            self.attached.client.port.note("unread", "info", batches=batches, epoch=self.epoch)

    def begin(self, train: bool | None) -> Pass:
        """A pass begins, behind the batches that it `handed` before. Whether it trains is found out, or as said."""
        self.joins()
        attached, self.is_amid = self.attached, False
        if train is None:
            train = torch.is_grad_enabled() and (attached is None or attached.trains)
        if not train:
            return Pass(self.epoch, trains=False)
        self.catches_up = self.catches_up and self.is_behind
        begins_at = self._ahead.pop(0) if self._ahead else 0
        begun = Pass(self.epoch, True, begins_at, begins_at, is_first=not (self.steps or begins_at))
        self._passes.append(begun)
        return begun

    def begins_with(self, digests: dict[int, bytes]) -> None:
        """The samples that a first pass begins with; they are told to the run (see `geomx.node.same_data`), once."""
        if self.attached is not None and digests and not self._has_told:
            self.attached.client.sampled(digests)
            self._has_told = True

    def before_batch(self) -> None:
        """A batch is to go to the training loop."""
        if self.attached is not None:
            self.attached.steps.between()

    def batch(self, of: Pass, samples: int | None, last: bool) -> None:
        """A batch goes to the training loop; `samples`: None where they cannot be told."""
        of.handed += 1
        self._samples.count(samples or 0)
        self._timeline.batch()
        self.is_amid = not last
        if self.attached is not None:
            self.attached.steps.ended = last

    def end(self, of: Pass) -> None:
        """This worker's share has been read; returns when everybody's has."""
        of.used, self.is_amid = of.handed, False
        if self.attached is not None and not self.is_behind:
            self.attached.steps.end_epoch()
        self.epoch += 1

    def leave(self, over: Pass) -> None:
        """The loop has left a pass, at its end or before."""
        if any(each is over for each in self._passes):
            self._passes = [each for each in self._passes if each is not over]
            self._ahead = []
        if self.attached is not None:
            self.attached.steps.ended = False
