"""Steps whose gradients add up before they leave, while the worker's own weights follow them: see `sync/downpour.py`.

accrue    g_sum ← g_sum + g;   w ← w − lr · g
push      g_sum goes up, as the gradient of one round;   g_sum ← 0
fetch     w ← the answer to the last push; where there was none, a push of nothing asks for it
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from geomx.errors import Unsupported
from geomx.layout import Slice
from geomx.node.port import Arrived
from geomx.sync.contract import AccumulateStep
from geomx.train.calls.collective_client import Packed
from geomx.train.context import TrainingContext
from geomx.train.model.finite import FiniteOnly
from geomx.train.model.guard import Guard
from geomx.train.model.model_slices import ModelSlices, nothing
from geomx.train.model.support import check_gradient
from geomx.train.optimizer.placement import OnServer
from geomx.train.party.intra_party import ThroughServer
from geomx.train.steps.contract import Closure, Steps, clip_own
from geomx.train.steps.ledger import Ledger
from geomx.wire.messages import Place


class AccumulateSteps(Steps):
    """See the module's text. `placement`: the rule that the global servers run. `clip_norm`: bounds each gradient."""

    def __init__(
        self,
        context: TrainingContext,
        model_slices: ModelSlices,
        intra_party: ThroughServer,
        ledger: Ledger,
        guard: Guard,
        finite: FiniteOnly,
        placement: OnServer,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(context, model_slices, intra_party, ledger, guard, finite)
        self._placement = placement
        self._clip_norm = clip_norm
        self._cohort = context.cohort
        self._sums: dict[int, torch.Tensor] = {}  # by parameter
        self._fresh: dict[int, Arrived] = {}  # by slice: the last answer

    @property
    def cohort(self) -> str:
        return self._cohort

    def hook(self) -> None:
        super().hook()
        self._take_in()  # of a run that had begun

    def step(self, closure: Closure | None = None) -> None:
        self._check_accumulation()
        with self._timeline.step(self.turn):
            self._guard.check()
            self._loss.check()
            before = self._progress.place
            self._finite.begin(self._planned, self.turn)
            self._accrue()
            self._progress.taken()
            plan = self._settings.policy.step(self._planned)
            self._planned += 1
            if not isinstance(plan, AccumulateStep):
                name = type(self._settings.policy).__name__
                raise Unsupported(
                    f"the sync policy {name} has plans = AccumulateStep, but its step() returned {plan}"
                )
            self.steps += 1
            if plan.push:
                self._loss.take()
            self._follow(plan, before)
            self._finite.end()

    def end_epoch(self) -> None:
        self.require_quiescent("the end of run.shard(loader)")
        self._timeline.rest()
        self._follow(AccumulateStep(push=bool(self._sums), fetch=True), self._progress.place)
        self._finite.end()

    def finish(self) -> None:
        if self._sums:
            self._follow(AccumulateStep(push=True, fetch=True), self._progress.place)
            self._finite.end()

    def _unshared(self) -> Iterator[tuple[Slice, float, Packed]]:
        """Without a weight: these gradients are added to what others push, and not averaged with it."""
        for slice_ in self._trained:
            yield slice_, 0.0, self._model_slices.gather(slice_, self._sums.get).packed

    def _idle(self) -> None:
        """Nobody waits for this worker."""

    def _accrue(self) -> None:
        seen = self._samples.seen
        self._samples.take()
        signs = {True: 1.0, False: -1.0}
        rates = {
            id(p): signs[bool(group.get("maximize"))] * float(group["lr"])
            for group in self._placement.groups
            for p in group["params"]
        }
        gradients = {n: p.grad for n, p in self._model_slices.trained.items() if p.grad is not None}
        for number, gradient in gradients.items():
            check_gradient(self._model_slices.layout.tensors[number], gradient)
        allowed = self._finite.allows_gradients(gradients)
        clip_own([self._model_slices.trained[number] for number in allowed], self._clip_norm)
        with torch.no_grad():
            for number in allowed:
                parameter, gradient = self._model_slices.trained[number], gradients[number]
                exact = self._model_slices.exact(number)
                if number in self._sums:
                    self._sums[number].add_(gradient)
                else:
                    self._sums[number] = gradient.detach().to(exact.dtype, copy=True)
                exact.add_(gradient, alpha=rates[id(parameter)])
                if exact is not parameter:
                    parameter.copy_(exact)
        self._note_step(self._samples.seen - seen)

    def _follow(self, plan: AccumulateStep, before: Place) -> None:
        """`before`: how far the script was before this step."""
        if plan.push or plan.fetch:
            self._client.wait()  # one push of a slice at a time
            self._client.reached(self._cohort, self._planned - 1, before, self._progress.place)
            self._push(plan.push)
        if plan.fetch:
            self._client.wait()
            self._take_in()

    def _take_in(self) -> None:
        for index, arrived in self._fresh.items():
            self._placement.arrived(self._model_slices.layout.slices[index], arrived)
        self._fresh = {}

    def _push(self, sums: bool) -> None:
        for slice_ in self._trained:
            made, is_fine = self._intra_party.made(
                slice_, self._sums.get, float(sums), "the sum of the gradients of"
            )
            packed = made if is_fine else nothing(slice_).packed  # which fetches, as a push of nothing does
            self._client.contribute(
                slice_.index,
                "gradient",
                self._operation,
                1.0,
                packed,
                cohort=self._cohort,
                step=self._planned - 1,
                hyper=self._placement.hyper(slice_.group),
                reading=self._progress.reading,
                relative_loss=self._loss.newest if sums else None,
            )
        if sums:
            self._sums = {}
            self._ledger.count(self._cohort, self._operation)
        self._client.next_turn(self._cohort)

    def reassigned(self, slice_: Slice, weights: torch.Tensor) -> None:
        self._sums = {}  # they are of other weights
        self._fresh.pop(slice_.index, None)

    def arrived(self, slice_: Slice, arrived: Arrived) -> None:
        if arrived.values is not None:
            self._fresh[slice_.index] = arrived
