"""FSA, the fully-synchronous algorithm: every round waits for every member.

    w ← optimizer(w, Σ_i w_i x_i / Σ_i w_i),  i over all workers of all parties

It is the baseline that the others are measured against: the same arithmetic as one process on the concatenated
batches. Source: HiPS (the hierarchical parameter server) in its synchronous mode on both tiers.
"""

from __future__ import annotations

from geomx.sync.contract import Apply, GradientStep, RoundView, StepPlan, Wait
from geomx.tree import SyncGroup


class FSA:
    """FSA: every worker pushes its gradient in every step, and everybody waits for everybody. No parameters."""

    sync_group: SyncGroup = "run"
    lockstep = True
    plans: type[StepPlan] = GradientStep

    def step(self, step: int) -> GradientStep:
        return GradientStep()

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        return when_complete(view)


def when_complete(view: RoundView) -> Apply | Wait:
    """Close the round if every member has contributed; else wait for those who are missing."""
    missing = view.members - view.origins
    return Wait(tuple(sorted(missing))) if missing else Apply()
