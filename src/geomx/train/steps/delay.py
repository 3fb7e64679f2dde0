"""Workers that are made slower than they are: `[[party]] worker_delay`.

A step's computation lies between the beginning of the model's forward and `step()`. The next forward begins later by
(factor − 1) times as long, so that gradients leave as late as a slower worker's would.
"""

from __future__ import annotations

import random
import time
from dataclasses import dataclass, field


@dataclass(slots=True)
class Delay:
    """`jitter`: how far each step strays from `factor`, as a share of it, drawn evenly from `seed`."""

    factor: float = 1.0
    jitter: float = 0.0
    seed: str = ""
    _began: float | None = field(default=None, init=False)
    _owed_s: float = field(default=0.0, init=False)
    _random: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def before_forward(self) -> None:
        """Be late by what the last step owes; further forwards of the same step are not."""
        if self._began is None:
            time.sleep(self._owed_s)
            self._began = time.monotonic()

    def before_step(self) -> None:
        """The computation has ended."""
        if self._began is not None:
            stray = 1.0 + self.jitter * self._random.uniform(-1.0, 1.0)
            self._owed_s = max(0.0, self.factor * stray - 1.0) * (time.monotonic() - self._began)
            self._began = None
