"""A sync policy that needs time, for tests: `policy="late_answers:LateAnswers least_s=0.5"`."""

from __future__ import annotations

from geomx.sync.contract import Apply, RoundView, Wait
from geomx.sync.fsa import FSA, when_complete


class LateAnswers(FSA):
    """FSA, but no step's round closes sooner than `least_s` after its first contribution."""

    def __init__(self, *, least_s: float = 0.5) -> None:
        self._least_s = least_s

    def gathered(self, view: RoundView, now: float) -> Apply | Wait:
        until = view.opened + self._least_s
        if view.kind == "gradient" and now < until:
            return Wait((), until)
        return when_complete(view)
