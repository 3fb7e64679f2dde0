"""FSA, the fully-synchronous algorithm: every round waits for every member.

    w ← optimizer(w, Σ_i w_i x_i / Σ_i w_i),  i over all workers of all parties

It is the baseline that the others are measured against: the same arithmetic as one process on the concatenated
batches. Source: HiPS (the hierarchical parameter server) in its synchronous mode on both tiers.
"""

from __future__ import annotations

from geomx.sync.contract import Apply, GradientStep, RoundView, StepPlan, SyncGroup, Wait


class FSA:
    """Push every slice in every step; close a round when all members are in."""

    sync_group: SyncGroup = "run"
    lockstep = True
    plans: type[StepPlan] = GradientStep

    def step(self, step: int) -> GradientStep:
        return GradientStep()

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        return when_complete(view)


def when_complete(view: RoundView) -> Apply | Wait:
    """Wait for whoever is missing in the cohort."""
    missing = view.members - view.origins
    return Wait(tuple(sorted(missing))) if missing else Apply()
