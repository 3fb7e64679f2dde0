"""DiLoCo: many local steps, then an outer step with Nesterov momentum (Douillard et al., arXiv 2311.08105).

    each step          w_i ← worker i's own (inner) optimizer; the paper takes AdamW
    every `every`      Δ = Σ n_i (w_start − w_i) / Σ n_i;   w ← outer(w_start, Δ);   w_i ← w for all

outer: SGD with Nesterov momentum, `lr` 0.7 and `momentum` 0.9, every 500 steps, as in the paper. With `lr=1 momentum=0`
this is HFA without means inside the parties.
"""

from __future__ import annotations

from geomx.errors import ConfigError, Fault
from geomx.protocol.messages import Hyperparameters
from geomx.sync.base import Apply, Local, Together, View, Wait
from geomx.sync.fsa import when_complete
from geomx.sync.hfa import AVERAGE


class DiLoCo:
    """See the module's text."""

    together: Together = "run"
    in_step = True
    local_steps = True

    def __init__(self, *, every: int = 500, lr: float = 0.7, momentum: float = 0.9) -> None:
        faults = []
        if every < 1:
            faults.append(Fault("every", f"{every}", "1 or more"))
        if not lr > 0.0:
            faults.append(Fault("lr", f"{lr}", "a number above 0"))
        if not 0.0 <= momentum < 1.0:
            faults.append(Fault("momentum", f"{momentum}", "a number from 0, below 1"))
        if faults:
            raise ConfigError("policy diloco", faults)
        self._every = every
        self._outer: Hyperparameters = {**AVERAGE, "lr": lr, "momentum": momentum, "nesterov": momentum > 0.0}

    def step(self, step: int) -> Local:
        return Local("run", self._outer) if (step + 1) % self._every == 0 else Local()

    def gathered(self, view: View, now: float) -> Apply | Wait:
        return when_complete(view)
