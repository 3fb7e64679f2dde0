"""HFA, hierarchical federated averaging (HierFAVG: Liu, Zhang, Song, Letaief, ICC 2020, arXiv 1905.06641).

    each step                    w_i ← worker i's own optimizer
    every k1 steps               w_i ← Σ w_j n_j / Σ n_j over the workers j of its party
    every k1 · k2 steps          w_i ← the same over all workers of the run

Where parties hang on regions, there may be a period for each tier: the mean is over the party every k1 steps, over its
region every k1 · k2, and over the run every k1 · k2 · k3. A party without a region takes its party's mean instead.

n_j: how much worker j counts (`sync.weight`), over the steps since the last such mean.
The mean over the run travels as the pseudo-gradient Δ_i = w_start − w_i, to which SGD with a rate of 1 is applied at
the root: w_start − Σ n Δ / Σ n, which is the mean, and the WAN's codecs serve it as they serve gradients. The
optimizers' states stay with the workers.

GeoMX weighs parties equally whatever their samples, and overwrites w_start in place, so that from the second exchange
on its Δ is zero.
"""

from __future__ import annotations

from itertools import accumulate
from operator import mul

from geomx.errors import ConfigError, Fault
from geomx.sync.contract import Apply, LocalStep, RoundView, StepPlan, Wait
from geomx.sync.fsa import when_complete
from geomx.tree import SyncGroup
from geomx.wire.messages import Hyperparameters

AVERAGE: Hyperparameters = {
    "lr": 1.0, "momentum": 0.0, "dampening": 0.0, "weight_decay": 0.0, "nesterov": False, "maximize": False
}  # fmt: skip


class HFA:
    """HFA: local steps; weights are averaged in each party every `k1` steps, over the run every `k1 * k2` steps.

    Args:
        k1: Steps from one average inside the party to the next, 1 or more.
        k2: Every so many of them, the average is over the next tier: the run, or with `k3` the region; 1 or more.
        k3: Where parties hang on regions: every so many averages over a region, the average is over the next tier. 0:
            regions have no average of their own.
        k4: The same, where regions hang on regions.

    Attributes:
        tiers: How many tiers the averages have, that of the run included.

    Raises:
        ConfigError: A parameter is out of range.
    """

    sync_group: SyncGroup = "run"
    lockstep = True
    plans: type[StepPlan] = LocalStep

    def __init__(self, *, k1: int = 20, k2: int = 10, k3: int = 0, k4: int = 0) -> None:
        faults = [Fault(key, f"{value}", "1 or more") for key, value in (("k1", k1), ("k2", k2)) if value < 1]
        faults += [
            Fault(key, f"{value}", "0 or more") for key, value in (("k3", k3), ("k4", k4)) if value < 0
        ]
        if k4 and not k3:
            faults.append(Fault("k4", f"{k4}", "only together with `k3`"))
        if faults:
            raise ConfigError("policy hfa", faults)
        self._periods = tuple(accumulate((k for k in (k1, k2, k3, k4) if k), mul))  # in steps, of each tier
        self.tiers = len(self._periods)

    def step(self, step: int) -> LocalStep:
        tier = sum((step + 1) % period == 0 for period in self._periods)
        if tier == self.tiers:
            return LocalStep("run", AVERAGE)
        return LocalStep("party", tier=tier) if tier else LocalStep()

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        return when_complete(view)
