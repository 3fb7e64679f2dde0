"""HFA, hierarchical federated averaging (HierFAVG: Liu, Zhang, Song, Letaief, ICC 2020, arXiv 1905.06641).

    each step                    w_i ← worker i's own optimizer
    every k1 steps               w_i ← Σ w_j n_j / Σ n_j over the workers j of its party
    every k1 · k2 steps          w_i ← the same over all workers of the run

n_j: how much worker j counts (`sync.weight`), over the steps since the last such mean.
The mean over the run travels as the pseudo-gradient Δ_i = w_start − w_i, to which SGD with a rate of 1 is applied at
the root: w_start − Σ n Δ / Σ n, which is the mean, and the WAN's codecs serve it as they serve gradients. The
optimizers' states stay with the workers.

GeoMX weighs parties equally whatever their samples, and overwrites w_start in place, so that from the second exchange
on its Δ is zero.
"""

from __future__ import annotations

from geomx.errors import ConfigError, Fault
from geomx.sync.contract import Apply, LocalStep, RoundView, StepPlan, SyncGroup, Wait
from geomx.sync.fsa import when_complete
from geomx.wire.messages import Hyperparameters

AVERAGE: Hyperparameters = {
    "lr": 1.0, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False
}  # fmt: skip


class HFA:
    """HFA: local steps; weights are averaged in each party every `k1` steps, over the run every `k1 * k2` steps.

    Args:
        k1: Steps from one average inside the party to the next, 1 or more.
        k2: Every so many of them, the average is over the run; 1 or more.

    Raises:
        ConfigError: A parameter is out of range.
    """

    sync_group: SyncGroup = "run"
    lockstep = True
    plans: type[StepPlan] = LocalStep

    def __init__(self, *, k1: int = 20, k2: int = 10) -> None:
        faults = [Fault(key, f"{value}", "1 or more") for key, value in (("k1", k1), ("k2", k2)) if value < 1]
        if faults:
            raise ConfigError("policy hfa", faults)
        self._k1, self._k2 = k1, k2

    def step(self, step: int) -> LocalStep:
        done = step + 1
        if done % (self._k1 * self._k2) == 0:
            return LocalStep("run", AVERAGE)
        return LocalStep("party" if done % self._k1 == 0 else "nobody")

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        return when_complete(view)
