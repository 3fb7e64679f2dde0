"""Workers that are made slower than they are: `[[party]] worker_delay`.

Behind each step the worker sleeps (factor − 1) times as long as the step's computation took, so that gradients leave as
late as a slower worker's would. The training loop's side knows nothing of it: it tells how long a step took.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class SlowWorker:
    """Is told of every step by `Settings.after_step`.

    Attributes:
        factor: how many times as long a step's computation is to take, at least 1.
        jitter: how far each step strays from `factor`, as a share of it, drawn evenly.
        seed: of the draws.
    """

    factor: float = 1.0
    jitter: float = 0.0
    seed: str = ""
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def after_step(self, compute_s: float | None) -> None:
        """Sleep. `compute_s`: of the step; None where it is not known."""
        stray = 1.0 + self.jitter * self._random.uniform(-1.0, 1.0)
        time.sleep(max(0.0, self.factor * stray - 1.0) * (compute_s or 0.0))
