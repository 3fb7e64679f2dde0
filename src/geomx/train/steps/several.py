"""The steps of several models, each with an optimizer of its own, which take turns.

Every worker takes the same steps in the same order. Whoever has no data left does not know whose step comes next, so it
says of all of them that it has nothing (`NOTHING`); what is answered is whose step it was. A pass over the data has
ended when everybody has said so in the same turn.

Likewise, whoever comes back to a run that goes on without it does not know whose step is next. It has nothing either,
until it has seen the first step of a batch: it begins that batch as well, leaves this step out, since the others have
taken it, and takes part in the one behind it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch

from geomx.errors import Unsupported
from geomx.layout import Slice
from geomx.node.port import Arrived
from geomx.train.steps.contract import Closure, Steps
from geomx.train.steps.gradient import GradientSteps
from geomx.wire.messages import Reading, Update
from geomx.wire.roster_messages import MOST_TURNS

REMEDY = "go on from a checkpoint"
ANYWHERE = Reading(MOST_TURNS - 1, 0, 0)  # behind everybody's, so that theirs counts


class StepsOfSeveral(Steps):
    """See the module's text. `each`: of every model, in the order in which they were attached."""

    def __init__(self, each: Sequence[Steps]) -> None:
        self._each = tuple(each)
        first = self._each[0]
        self.local = first.local
        self._client, self._intra_party, self._progress = first._client, first._intra_party, first._progress
        self._timeline, self._ledger = first._timeline, first._ledger
        self._of = {index: steps for steps in self._each for index in steps.own}
        self._ended = False
        self._is_astray = False  # it does not know whose step is next
        self._taken = 0  # how many steps of the next batch the others have taken
        for steps in self._each:
            if isinstance(steps, GradientSteps):
                steps.is_others = self._is_others

    @property
    def ended(self) -> bool:
        """Whether this worker is at the end of its data: behind its last batch, since that is of several steps."""
        return self._ended or (self.local and any(steps.ended for steps in self._each))

    @ended.setter
    def ended(self, value: bool) -> None:
        self._ended = False
        if self.local:
            for steps in self._each:
                steps.ended = value

    @property
    def steps(self) -> int:  # type: ignore[override]
        """Of all models."""
        return sum(steps.steps for steps in self._each)

    @property
    def cohort(self) -> str:
        return self._each[0].cohort

    @property
    def slices(self) -> set[int]:
        return set[int]().union(*(steps.slices for steps in self._each))

    @property
    def own(self) -> set[int]:
        return set(self._of)

    @property
    def is_amid(self) -> bool:
        return any(steps.is_amid for steps in self._each)

    def step(self, closure: Closure | None = None) -> Any:
        raise Unsupported("a run of several models steps each by its own optimizer")

    def hook(self) -> None:
        for steps in self._each:
            steps.hook()
        self._is_astray = self._client.goes_on and not self.local

    def unhook(self) -> None:
        for steps in self._each:
            steps.unhook()

    def moved(self) -> int:
        self._is_astray, self._taken = not self.local, 0
        return max(steps.moved() for steps in self._each)

    def settle(self) -> None:
        if not self._is_astray:
            return
        self._timeline.rest()
        before: Reading | None = None
        while self._is_astray:
            self.between()
            read = self._idle(ANYWHERE)
            if read == ANYWHERE:
                raise self._client.given_up("all have come back, and none knows whose step is next", REMEDY)
            if read.is_at_end:
                self._is_astray = False
                self._client.data.found(read)
            elif before is not None and read[:2] != before[:2]:
                self._is_astray, self._taken = False, 1
                self._client.data.found(read._replace(batches=read.batches - 1))
            before = read

    def _is_others(self) -> bool:
        """Whether the step that is being taken is one that the others have taken."""
        if self._is_astray and not self._progress.is_reading:
            raise self._client.given_up(
                "whose step is next, a worker that comes back to a run of several models tells by the batches of "
                "run.shard, and this script reads none",
                REMEDY,
            )
        self._taken -= (is_taken := self._taken > 0)
        return is_taken or self._is_astray

    def answers(self, slice_: Slice, update: Update) -> bool:
        return slice_.index in self._of and self._of[slice_.index].answers(slice_, update)

    def arrived(self, slice_: Slice, arrived: Arrived) -> None:
        self._of[slice_.index].arrived(slice_, arrived)

    def reassigned(self, slice_: Slice, weights: torch.Tensor) -> None:
        self._of[slice_.index].reassigned(slice_, weights)

    @contextmanager
    def accumulate(self) -> Iterator[None]:
        with ExitStack() as stack:
            for steps in self._each:
                stack.enter_context(steps.accumulate())
            yield

    def require_quiescent(self, operation: str) -> None:
        for steps in self._each:
            steps.require_quiescent(operation)

    def end_epoch(self) -> None:
        first = self._each[0]
        if not isinstance(first, GradientSteps):
            for steps in self._each:
                steps.end_epoch()
            return
        self._ended = True
        self.require_quiescent("the end of run.shard(loader)")
        self._timeline.rest()
        while max(steps._over for steps in self._each) <= self._progress.epoch:
            self.between()
            with self._timeline.span("idle", turn=self.turn):
                self._idle()

    def _idle(self, reading: Reading | None = None) -> Reading:
        """See `Steps`; returns how far all are behind it. `reading`: how far this worker says that it is itself."""
        idle = [steps for steps in self._each if isinstance(steps, GradientSteps)]
        for steps in idle:
            steps.contribute_nothing(reading=reading)
        idle[0].next_turn()
        answered = self._client.wait_for_any([steps.own for steps in idle])
        for place in answered:
            idle[place].end_idle()
        return idle[answered[0]].read

    def finish(self) -> None:
        for steps in self._each:
            steps.finish()

    def hand_over(self) -> None:
        for steps in self._each:
            steps.hand_over()
