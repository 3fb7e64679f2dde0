"""The loss that the script tells with `run.loss`, for channels that adapt to it.

It travels with the contributions of its step as a *relative loss*, divided by the first loss that this worker has
contributed with; servers take the mean by weight. Steps that contribute each time (`GradientSteps`) take what was told
since the one before. Steps that contribute now and then take the newest.

The first loss is part of a script's place: checkpoints keep it, and a worker that is started again is told its own.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch

from geomx.errors import LossUnknown, Unsupported
from geomx.train.settings import Settings

Told = float | torch.Tensor


class Loss:
    """See the module's text. `name`: this worker's, for messages."""

    def __init__(self, settings: Settings, name: str) -> None:
        self.is_needed = bool(settings.needs_loss)
        self._needed_by, self._name = settings.needs_loss, name
        self._told: Told | None = None
        self._is_new = False  # told since it was taken last
        self.first: float | None = None  # finite and above 0; None: there was none yet

    def give(self, value: Any) -> None:
        """The loss of the step that comes next; NaN and Inf are losses, too. Raises `Unsupported` for what is none."""
        self._told, self._is_new = _loss_of(value), True

    def check(self) -> None:
        """A step begins whose contribution may come later. Raises `LossUnknown`."""
        if self._needed_by and self._told is None:
            raise self._unknown("has not told")

    def take(self) -> float | None:
        """The relative loss of a step that contributes now; None: none was told or needed. Raises `LossUnknown`."""
        self.check()
        if self._needed_by and not self._is_new:
            raise self._unknown("has told for earlier steps, but not")
        newest = self.newest if self._is_new else None
        self._is_new = False
        return newest

    @property
    def newest(self) -> float | None:
        """The relative loss of what was told last, whichever step it was of."""
        if isinstance(self._told, torch.Tensor):
            self._told = float(self._told.item())
        if self._told is None:
            return None
        if self.first is None and 0.0 < self._told < math.inf:
            self.first = self._told
        return self._told / (self.first or 1.0)

    def _unknown(self, what: str) -> LossUnknown:
        without = "; `dgt adaptive=false` does without" if '"dgt' in self._needed_by else ""
        return LossUnknown(
            f"{self._needed_by} adapts to the loss, which {self._name} {what} for this step: call run.loss(loss) in "
            'every step, before backward() (with push_at="step" or local steps: before optimizer.step())'
            f"{without}"
        )


def _loss_of(value: Any) -> Told:
    if isinstance(value, torch.Tensor):
        if value.numel() == 1 and value.dtype != torch.bool and not value.is_complex():
            # Whoever adds up losses goes on with the same tensor. It is read when a contribution leaves.
            return value.detach().clone()
        found = f"a tensor of {str(value.dtype).removeprefix('torch.')} with shape {tuple(value.shape)}"
    else:
        number = value.item() if isinstance(value, np.generic) else value
        if isinstance(number, int | float) and not isinstance(number, bool):
            try:
                return float(number)
            except OverflowError:
                return math.inf
        found = repr(value) if isinstance(value, str | bool | None) else f"a {type(value).__name__}"
    raise Unsupported(
        f"run.loss({found}): tell a number, or a tensor with one element: the loss that you call backward() on, such "
        "as loss or losses.mean()"
    )
