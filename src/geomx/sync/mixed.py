"""MixedSync: synchronous inside a party, asynchronous at the global servers.

    w ← optimizer(w, m_d),  m_d = Σ_i w_i x_i / Σ_i w_i over the workers i of party d, whenever it comes

Only the party that contributed is answered, with the weights as they are then. The other parties' updates between its
last answer and its contribution are the contribution's *staleness*, which is recorded. DC-ASGD corrects for it: see
`optimizer.compensation`. With one party this is FSA.

Source: MixedSync of GeoMX, which has no bound and hangs together with Bi-Sparse. The bound is that of stale synchronous
parallel (Ho et al., NIPS 2013).
"""

from __future__ import annotations

from geomx.errors import ConfigError, Fault
from geomx.sync.contract import Apply, GradientStep, RoundView, StepPlan, Wait
from geomx.sync.fsa import when_complete
from geomx.tree import SyncGroup


class MixedSync:
    """MixedSync: FSA inside a party; across parties nobody waits.

    Args:
        staleness: A party more than so many rounds ahead of the slowest waits for it. 0: everybody contributes once
            before anybody contributes again; -1: no bound.

    Raises:
        ConfigError: `staleness` is below -1.
    """

    sync_group: SyncGroup = "party"
    lockstep = False
    plans: type[StepPlan] = GradientStep

    def __init__(self, *, staleness: int = -1) -> None:
        if staleness < -1:
            raise ConfigError(
                "policy mixed", [Fault("staleness", f"{staleness}", "0 or more, or -1 for none")]
            )
        self._staleness = staleness

    def step(self, step: int) -> GradientStep:
        return GradientStep()

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        plan = when_complete(view)
        if isinstance(plan, Wait) or self._staleness < 0 or view.kind != "gradient":
            return plan
        behind = [cohort for cohort, turn in view.closed.items() if view.turn - (turn + 1) > self._staleness]
        return Wait(tuple(behind)) if behind else plan
