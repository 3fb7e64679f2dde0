"""Local steps: the worker's own optimizer takes them, and weights are averaged when the policy says so.

    nobody    nothing leaves
    party     w ← Σ n_j w_j / Σ n_j over the workers j of the party, or of a region; its server answers by itself
    run       the pseudo-gradient Δ = w_start − w goes up as a gradient does; all go on from what the optimizer at
              the root makes of its mean
    told      as `run` where a policy at the root says so while a round goes on, else as `nobody`

w_start: the weights that all had behind the last `run`. n_j: how much worker j counts, over the steps since the last
mean of the same reach (in samples, or else as `sync.weight` says). Optimizers' states stay with their workers. A worker
whose data has ended goes on without steps until the run has averaged behind everybody's last.

BatchNorm's running statistics are averaged whenever weights are; `settings.buffers` says otherwise.

A `run` may be of a fragment of the model, and its answer may be taken in some steps later. What has come by then waits
in `_fresh`, so that it is taken in behind the same step on every worker, however fast its network is.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from geomx.bits import bitmap_of
from geomx.codecs.measure import scaled
from geomx.errors import Unsupported
from geomx.layout import Slice
from geomx.node.port import Arrived
from geomx.sync.contract import LocalStep, next_run_mean
from geomx.train.calls.collective_client import Packed
from geomx.train.context import TrainingContext
from geomx.train.model.finite import FiniteOnly
from geomx.train.model.guard import Guard
from geomx.train.model.model_slices import Gathered, ModelSlices, nothing
from geomx.train.optimizer.masters import Masters
from geomx.train.party.intra_party import ThroughServer
from geomx.train.steps.contract import Closure, Steps, clip_own
from geomx.train.steps.ledger import Ledger
from geomx.tree import EVERYONE
from geomx.wire.messages import Update

Due = tuple[int, list[Slice], float, bool]  # behind which step, what, its `merge`, and whether it is awaited


class LocalSteps(Steps):
    """See the module's text.

    `masters`: with the user's optimizer. `alike`: its party's workers always have the same weights. `clip_norm`: of
    each gradient.
    """

    local = True

    def __init__(
        self,
        context: TrainingContext,
        model_slices: ModelSlices,
        intra_party: ThroughServer,
        ledger: Ledger,
        guard: Guard,
        finite: FiniteOnly,
        masters: Masters,
        alike: bool,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(context, model_slices, intra_party, ledger, guard, finite)
        self._masters = masters
        self._alike = alike
        self._clip_norm = clip_norm
        self._tree = context.tree
        self._starts: dict[int, torch.Tensor] = {}  # by slice: w_start, flat
        self._fresh: dict[int, Arrived] = {}  # by slice: answers of the run that have not been taken in
        self._due: deque[Due] = deque()
        self._counted, self._given = 0.0, 0.0  # n of all steps so far; what of it `run.weight` has said
        self._counted_at: dict[Any, tuple[float, float]] = {}  # by what was averaged: both at its last mean
        _, mean = next_run_mean(self._settings.policy) or (0, LocalStep())
        self._is_paced = mean.average == "told"  # a policy at the root says when means are due
        self._is_common = True  # all workers have the same weights, whatever the others have done
        self._buffers = {
            "auto": self._model_slices.running_statistics,
            "average": self._model_slices.floating_buffers,
            "own": list[Slice],
        }[self._settings.buffers]()
        self._averaging: set[int] = set()  # buffers whose mean over the run is under way
        self._stepped, self._steps_of_turn = 0.0, 0
        self._before = self._progress.place  # the step that is being taken

    @property
    def cohort(self) -> str:
        return EVERYONE

    @property
    def slices(self) -> set[int]:
        return super().slices | {slice_.index for slice_ in self._buffers}

    def hook(self) -> None:
        super().hook()
        self._is_common = not self._client.goes_on  # what it was to do last may be done in part
        self._stepped = self._timeline.now()
        for index, arrived in self._fresh.items():  # closed while this worker joined a run that had begun
            if arrived.values is not None:
                self._starts[index] = arrived.values
                self._model_slices.scatter(self._model_slices.layout.slices[index], arrived.values)
        self._fresh = {}
        if self._client.goes_on:
            for slice_ in self._buffers:
                values = self._model_slices.gather(slice_, self._model_slices.tensor).values
                assert values is not None  # buffers are always there
                self._starts[slice_.index] = values

    def moved(self) -> int:
        missed = super().moved()
        self._counted_at, self._steps_of_turn = {}, 0
        self._due.clear()
        self._averaging.clear()
        self._fresh.clear()
        self._counted, self._given = 0.0, 0.0
        return missed

    def step(self, closure: Closure | None = None) -> Any:
        self._check_accumulation()
        with self._timeline.step(self.turn):
            self._guard.check()
            self._loss.check()
            self._before = self._progress.place
            self._finite.begin(self._planned, self.turn)
            is_fine, loss = self._optimize(closure)
            self._is_common = False
            self._count(is_fine)
            self.steps += 1
            self._progress.taken()
            plan = self._as_told(self._next_plan())
            if plan.average == "run":
                self._loss.take()
            self._follow(plan)
            if self._settings.on_loss == "continue":
                self._client.paced(self._planned)
            self._finite.end()
            self._stepped = self._timeline.now()
        return loss

    def _optimize(self, closure: Closure | None) -> tuple[bool, Any]:
        """The worker's own optimizer steps. Whether all its gradients were finite, and what the closure returned."""
        is_fine, loss = True, None

        def checked() -> bool:
            nonlocal is_fine
            is_fine = is_fine and self._gradients_are_finite()
            if is_fine:
                clip_own(self._model_slices.trained.values(), self._clip_norm)
            return is_fine

        def evaluated(closure: Closure) -> Any:
            with torch.enable_grad():
                loss = closure()
            if not checked():  # it rests
                for parameter in self._model_slices.trained.values():
                    parameter.grad = None
            return loss

        if closure is not None:
            loss = self._masters.step(partial(evaluated, closure))
        elif checked():
            self._masters.step()
        self._guard.stepped()
        return is_fine, loss

    def end_epoch(self) -> None:
        super().end_epoch()
        _, due = next_run_mean(self._settings.policy, self._planned) or (0, LocalStep())
        if due.fragment[1] > 1 or due.overlap:
            self._average_all()
        self._is_common = True
        self._finite.end()

    def finish(self) -> None:
        """Take part as at the end of the data, until this worker's steps are in a mean over the run."""
        self._finite.look()
        if self._is_common:
            return
        if apart := self._intra_party.leave(self._progress.place.steps):
            self._client.port.note("apart", "warning", why=apart)
            return
        if self._is_paced:  # others come to their last step in other turns
            self.end_epoch()
            return
        self.ended = True
        self._average_all()
        self._finite.end()

    def _unshared(self) -> Iterator[tuple[Slice, float, Packed]]:
        """Its steps since the last mean over the run, part by part of the model."""
        while self._due:  # what has come by now
            self._take_in(self._due.popleft())
        _, plan = next_run_mean(self._settings.policy, self._planned) or (0, LocalStep())
        self._finite.begin(self._planned, self.turn)
        parts = plan.fragment[1]
        for part in range(parts):
            weight = self._weight((part, parts))
            weight = float(weight > 0.0) if plan.equal else weight
            for slice_ in self._trained[part::parts]:
                yield slice_, *self._share(slice_, weight, EVERYONE)

    def _average_all(self) -> None:
        """Follow the policy's plans without steps until each part of the model has been averaged once, and as it is."""
        mean = next_run_mean(self._settings.policy, self._planned)
        left = mean[1].fragment[1] if mean else 0
        while left:
            left -= self._take_part(merges=False).average == "run"

    def _idle(self) -> None:
        self._take_part()

    def _take_part(self, merges: bool = True) -> LocalStep:
        """Follow the next of the policy's plans in which something is exchanged; returns it.

        `merges`: as it says; else what the run makes of a part is taken in at once, and nothing of this worker's stays.
        """
        self._before = self._progress.place
        plan = self._next_plan()
        while plan.average == "nobody" and not self._is_due():
            plan = self._next_plan()
        plan = replace(plan, average="run") if plan.average == "told" else plan
        self._follow(plan if merges else replace(plan, overlap=0, merge=0.0))
        return plan

    def _gradients_are_finite(self) -> bool:
        """Whether the worker's own optimizer may step: NaN would stay in its state. Raises NotFinite."""
        gradients = {n: p.grad for n, p in self._model_slices.trained.items() if p.grad is not None}
        return self._finite.allows_step(gradients)

    def _as_told(self, plan: LocalStep) -> LocalStep:
        """What a plan means now where it leaves that to whoever sets the pace."""
        if plan.average != "told":
            return plan
        self._steps_of_turn += 1
        taken_s = self._timeline.now() - self._stepped
        allowed = self._client.stepped(self._steps_of_turn, taken_s, plan.wait)
        ends = self._steps_of_turn >= max(allowed, plan.least)
        return replace(plan, average="run" if ends else "nobody")

    def _next_plan(self) -> LocalStep:
        plan = self._settings.policy.step(self._planned)
        self._planned += 1
        if not isinstance(plan, LocalStep):
            name = type(self._settings.policy).__name__
            raise Unsupported(f"the sync policy {name} has plans = LocalStep, but its step() returned {plan}")
        return plan

    def _count(self, counts: bool) -> None:
        seen, given = self._samples.seen, self._samples.given
        weight = self._samples.take()
        if counts:
            self._given += given
            self._counted += weight
        self._note_step(self._samples.seen - seen)

    def _weight(self, of: Any) -> float:
        """How much this worker counts in a mean: by all its steps since the last mean of this kind."""
        counted_at, given_at = self._counted_at.get(of, (0.0, 0.0))
        counted, given = self._counted - counted_at, self._given - given_at
        self._counted_at[of] = self._counted, self._given
        if self._settings.weight == "samples" or not counted:
            return counted
        return given or self._samples.share

    # -- means ----------------------------------------------------------------------------------------------------

    def _follow(self, plan: LocalStep) -> None:
        if plan.average == "party":
            self._average_below(self._tree.cohorts(self._client.name, plan.tier))
        elif plan.average == "run":
            self._average_run(plan)
        while self._is_due():
            self._take_in(self._due.popleft())

    def _average_below(self, cohorts: Sequence[str]) -> None:
        """Average over the last of these cohorts; for those inside it, it is their mean as well."""
        if len(cohorts) > 1 or not self._alike:
            weight = [self._weight(cohort) for cohort in cohorts][-1]
            self._contribute(self._trained + self._buffers, cohorts[-1], weight, {})
            self._client.wait()

    def _average_run(self, plan: LocalStep) -> None:
        self._steps_of_turn = 0
        is_late = self._settings.has_quorum and self._client.catch_up()
        part, parts = plan.fragment
        # Where a policy at the root sets the pace, others may have steps in this turn that this worker has not.
        self._is_common = parts == 1 and not plan.overlap and not self._is_paced
        buffers = self._buffers[part::parts]
        slices = self._trained[part::parts] + buffers
        self._averaging.update(slice_.index for slice_ in buffers)
        for cohort in self._tree.ancestors(self._client.name):  # a mean over the run is one over each of them
            self._weight(cohort)
        weight = self._weight(plan.fragment)
        self._contribute(slices, EVERYONE, float(weight > 0.0) if plan.equal else weight, plan.outer)
        # Whoever was late goes on at once, from what the others have made, and hears of its own with the next.
        self._due.append((self._planned + plan.overlap, slices, plan.merge, not is_late or self.ended))

    def _is_due(self) -> bool:
        return bool(self._due) and self._due[0][0] <= self._planned

    def _take_in(self, due: Due) -> None:
        """Go on from what the run has made of these slices, or from a mixture."""
        _, slices, merge, waits = due
        if waits:
            self._client.wait([slice_.index for slice_ in slices])
        for slice_ in slices:
            arrived = self._fresh.pop(slice_.index, None)
            if arrived is not None:  # else it had closed before this worker came, and its weights came then
                self._over = arrived.update.reading.passes
                if arrived.values is not None:
                    self._starts[slice_.index] = arrived.values
            values = self._starts.get(slice_.index)  # where nobody has trained, what their last mean has made
            if values is None:  # of statistics there was none
                continue
            if merge:
                values = self._merged(slice_, values, merge)
            self._model_slices.scatter(slice_, values)
            self._guard.written(slice_)

    def _merged(self, slice_: Slice, values: torch.Tensor, merge: float) -> torch.Tensor:
        """A mixture with this worker's own weights, unless these are not finite and the run skips that."""
        own = self._model_slices.gather(
            slice_, self._model_slices.exact, device=values.device, measures=self._finite.skips
        )
        assert own.values is not None  # weights are always there
        if self._finite.skips and not math.isfinite(own.largest):
            return values
        return own.values.mul_(merge).add_(values, alpha=1.0 - merge)

    def _contribute(self, slices: list[Slice], cohort: str, weight: float, outer: dict[str, Any]) -> None:
        self._finite.look()
        self._finite.begin(self._planned - 1, self.turn)
        step, together = self._planned - 1, b""
        if cohort != EVERYONE:  # nobody above its server counts these turns: the policy's steps do
            self._client.skip_to(step, cohort)
        if self._settings.on_loss == "continue":
            counted = self._ledger.indices if cohort == EVERYONE else []
            together = bitmap_of([slice_.index for slice_ in slices] + counted)
        self._client.reached(cohort, step, self._before, self._progress.place)
        for slice_ in slices:
            share, packed = self._share(slice_, weight, cohort)
            self._client.contribute(
                slice_.index,
                "gradient" if cohort == EVERYONE and slice_.role == "weight" else "mean",
                self._operation,
                share,
                packed,
                cohort=cohort,
                step=step,
                hyper=outer or None,
                reading=self._progress.reading,
                relative_loss=self._loss.newest if cohort == EVERYONE and share else None,
                together=together,
                awaits=self.ended,
            )
        if cohort == EVERYONE:
            self._ledger.count(cohort, self._operation, together, self.ended)
        self._client.next_turn(cohort)

    def _share(self, slice_: Slice, weight: float, cohort: str) -> tuple[float, Packed]:
        """n, and Σ n · x: of the weights, or of the pseudo-gradient."""
        if weight:
            device = self._model_slices.device_of(slice_)
            values, present, _ = self._model_slices.gather(
                slice_, self._model_slices.exact, device=device, measures=False
            )
            assert values is not None  # weights are always there
            moved = cohort == EVERYONE and slice_.role == "weight"
            what = "the pseudo-gradient of" if moved else "the local"
            if moved:
                torch.sub(self._starts[slice_.index].to(values.device), values, out=values)
            if device is not None:
                made = Gathered(values.mul_(weight), present)
                return weight, made.queued(self._finite.later(slice_, weight, what))
            made = Gathered(values, present, scaled(values, weight, values))
            if self._finite.allows(slice_, made, weight, what):
                return weight, made.packed
        return 0.0, nothing(slice_).packed

    def answers(self, slice_: Slice, update: Update) -> bool:
        is_mean = slice_.role == "buffer" and update.cohort == EVERYONE and slice_.index in self._averaging
        return is_mean or super().answers(slice_, update)

    def arrived(self, slice_: Slice, arrived: Arrived) -> None:
        if arrived.update.cohort == EVERYONE:
            self._averaging.discard(slice_.index)
            self._fresh[slice_.index] = arrived
        elif arrived.values is not None:
            self._model_slices.scatter(slice_, arrived.values)

    def reassigned(self, slice_: Slice, weights: torch.Tensor) -> None:
        self._starts[slice_.index] = weights
        self._counted, self._given, self._counted_at = 0.0, 0.0, {}
        self._due.clear()
        self._averaging.clear()
        self._fresh.pop(slice_.index, None)
