"""FSA, the fully-synchronous algorithm: every round waits for every member.

    w ← optimizer(w, Σ_i w_i x_i / Σ_i w_i),  i over all workers of all parties

It is the baseline that the others are measured against: the same arithmetic as one process on the concatenated
batches. Source: HiPS (the hierarchical parameter server) in its synchronous mode on both tiers.
"""

from __future__ import annotations

from geomx.sync.contract import Apply, Gradient, Plan, Together, View, Wait


class FSA:
    """Push every slice in every step; close a round when all members are in."""

    together: Together = "run"
    in_step = True
    plans: type[Plan] = Gradient

    def step(self, step: int) -> Gradient:
        return Gradient()

    def gathered(self, view: View, now: float) -> Apply | Wait:
        return when_complete(view)


def when_complete(view: View) -> Apply | Wait:
    """Wait for whoever is missing in the cohort."""
    missing = view.members - view.origins
    return Wait(tuple(sorted(missing))) if missing else Apply()
