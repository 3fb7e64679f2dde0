"""DiLoCo: many local steps, then an outer step with Nesterov momentum (Douillard et al., 2023, arXiv 2311.08105).

    each step          w_i ← worker i's own (inner) optimizer; the paper takes AdamW
    every `every`      Δ = Σ n_i (w_start − w_i) / Σ n_i;   w ← outer(w_start, Δ);   w_i ← w for all

Δ is the *pseudo-gradient*; outer: SGD with Nesterov momentum, by default with the paper's rate, momentum and period.
With `lr=1` and `momentum=0` this is HFA without means inside the parties.

Streaming DiLoCo (Douillard et al., 2025, arXiv 2501.18512): the model is cut into `fragments`, each with its outer step
every `every` steps, one after the other at equal distances, so that the WAN's load is even. With `overlap` the answer
is taken in so many steps later, and training goes on meanwhile:

    w_i ← merge · w_i + (1 − merge) · w

A fragment is every `fragments`-th slice, as the paper's strided pattern. When data ends, everybody goes on from one
last outer step on the whole model.
"""

from __future__ import annotations

from geomx.errors import ConfigError, Fault
from geomx.sync.contract import Apply, LocalStep, RoundView, StepPlan, Wait
from geomx.sync.fsa import when_complete
from geomx.sync.hfa import AVERAGE
from geomx.tree import SyncGroup
from geomx.wire.messages import Hyperparameters


class DiLoCo:
    """DiLoCo: local steps, and every `every` steps an outer step along how far the workers have moved on average.

    Args:
        every: Local steps from one outer step to the next, 1 or more.
        lr: Learning rate of the outer optimizer, above 0.
        momentum: Nesterov momentum of the outer optimizer, from 0 to below 1.
        fragments: Into how many parts, with outer steps at different times, the model is cut; 1 to `every`.
        overlap: Steps that workers take while the answer to an outer step is under way; less than `every / fragments`.
        merge: With `overlap`, the share of its own weights that a worker keeps when the answer arrives; 0 to below 1.

    Raises:
        ConfigError: A parameter is out of range.
    """

    sync_group: SyncGroup = "run"
    lockstep = True
    plans: type[StepPlan] = LocalStep

    def __init__(
        self,
        *,
        every: int = 500,
        lr: float = 0.7,
        momentum: float = 0.9,
        fragments: int = 1,
        overlap: int = 0,
        merge: float = 0.5,
    ) -> None:
        faults = []
        if every < 1:
            faults.append(Fault("every", f"{every}", "1 or more"))
        if not lr > 0.0:
            faults.append(Fault("lr", f"{lr}", "a number above 0"))
        if not 0.0 <= momentum < 1.0:
            faults.append(Fault("momentum", f"{momentum}", "a number from 0, below 1"))
        if not 1 <= fragments <= max(every, 1):
            faults.append(Fault("fragments", f"{fragments}", f"1 to {every}, since every={every}"))
        apart = max(every, 1) // max(fragments, 1)
        if not 0 <= overlap < max(apart, 1):
            faults.append(
                Fault("overlap", f"{overlap}", f"less than the {apart} steps from one part to the next")
            )
        if not 0.0 <= merge < 1.0:
            faults.append(Fault("merge", f"{merge}", "a number from 0, below 1"))
        if faults:
            raise ConfigError("policy diloco", faults)
        self._every, self._overlap, self.momentum = every, overlap, momentum
        self._merge = merge if overlap else 0.0
        self._outer: Hyperparameters = {**AVERAGE, "lr": lr, "momentum": momentum, "nesterov": momentum > 0.0}
        self._fragment_at = {(part + 1) * every // fragments % every: part for part in range(fragments)}
        self._fragments = fragments

    def step(self, step: int) -> LocalStep:
        part = self._fragment_at.get((step + 1) % self._every)
        if part is None:
            return LocalStep()
        return LocalStep("run", self._outer, (part, self._fragments), self._overlap, self._merge)

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        return when_complete(view)
