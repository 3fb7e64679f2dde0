"""Downpour SGD (DistBelief: Dean et al., NIPS 2012): asynchronous at both tiers, every worker by itself.

    each step                g_sum ← g_sum + g;   w ← w − lr · g      (lr: the parameter group's)
    every `n_push` steps     g_sum goes to the global servers, whose optimizer takes a step along it;  g_sum ← 0
    every `n_fetch` steps    w ← the global servers' weights as they are then

The paper has Adagrad on the servers, which is `torch.optim.Adagrad` in the script. A worker
waits for the weights that it fetches, and for nobody else; what it pushes without fetching is under way while it goes
on.
"""

from __future__ import annotations

from geomx.errors import ConfigError, Fault
from geomx.sync.contract import AccumulateStep, Apply, RoundView, StepPlan, Wait
from geomx.sync.fsa import when_complete
from geomx.tree import SyncGroup


class Downpour:
    """Downpour: every worker pushes sums of gradients and fetches weights at its own pace, and waits for nobody else.

    Args:
        n_push: Steps from one push to the next, 1 or more.
        n_fetch: Steps from one fetch to the next, 1 or more.

    Raises:
        ConfigError: A parameter is below 1.
    """

    sync_group: SyncGroup = "worker"
    lockstep = False
    plans: type[StepPlan] = AccumulateStep

    def __init__(self, *, n_push: int = 1, n_fetch: int = 1) -> None:
        given = (("n_push", n_push), ("n_fetch", n_fetch))
        faults = [Fault(key, f"{value}", "1 or more") for key, value in given if value < 1]
        if faults:
            raise ConfigError("policy downpour", faults)
        self._n_push, self._n_fetch = n_push, n_fetch

    def step(self, step: int) -> AccumulateStep:
        return AccumulateStep((step + 1) % self._n_push == 0, (step + 1) % self._n_fetch == 0)

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        return when_complete(view)
