"""A sync policy that does not wait for everybody, for tests: `policy="quorum:Quorum grace_s=0.2"`."""

from __future__ import annotations

from geomx.sync.contract import Apply, RoundView, Wait
from geomx.sync.fsa import FSA, when_complete


class Quorum(FSA):
    """FSA, but a step's round closes with whoever is in it `grace_s` after its first contribution."""

    lockstep = False

    def __init__(self, *, grace_s: float = 0.2) -> None:
        self._grace_s = grace_s

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        plan, until = when_complete(view), view.opened + self._grace_s
        if view.kind != "gradient" or isinstance(plan, Apply):
            return plan
        return Apply() if now >= until else Wait(plan.whom, until)
