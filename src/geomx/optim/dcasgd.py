"""DC-ASGD, delay-compensated asynchronous SGD (Zheng et al., ICML 2017, arXiv 1609.08326).

    g' = g + λ · g ⊙ g ⊙ (w − w_d)

w_d: the weights that party d had when it computed g; w: the weights now. `strength` is λ; with `adaptive` it is
divided, element by element, by the root of a moving mean of squares:

    s ← decay · s + (1 − decay) · g ⊙ g;   λ = strength / √(s + 1e-7)

for which the paper takes a strength of 2. What comes of g' is the optimizer's business, whichever it is. GeoMX keeps
one w_d for all parties; here each has its own.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch

from geomx.errors import ConfigError, Fault

EPSILON = 1e-7


class DCASGD:
    """DC-ASGD: corrects a gradient for how the weights have changed since it was computed, approximately.

    Args:
        strength: λ, above 0. With `adaptive` the paper takes 2.
        adaptive: Divide λ by the root of a moving mean of squared gradients.
        decay: Of that mean, from 0 to below 1.

    Raises:
        ConfigError: A parameter is out of range.
    """

    def __init__(self, *, strength: float = 0.04, adaptive: bool = False, decay: float = 0.95) -> None:
        faults = []
        if not strength > 0.0:
            faults.append(Fault("strength", f"{strength}", "a number above 0"))
        if not 0.0 <= decay < 1.0:
            faults.append(Fault("decay", f"{decay}", "a number from 0, below 1"))
        if faults:
            raise ConfigError("compensation dcasgd", faults)
        self._strength, self._adaptive, self._decay = strength, adaptive, decay
        self._squares: dict[int, torch.Tensor] = {}

    def correct(
        self, index: int, gradient: torch.Tensor, weights: torch.Tensor, received: torch.Tensor
    ) -> None:
        drift = weights - received
        square = gradient * gradient
        if self._adaptive:
            mean = self._squares.setdefault(index, torch.zeros_like(square))
            mean.mul_(self._decay).add_(square, alpha=1 - self._decay)
            square.div_((mean + EPSILON).sqrt_())
        gradient.addcmul_(square, drift, value=self._strength)

    def export(self, index: int) -> dict[str, torch.Tensor]:
        return {"squares": self._squares[index].clone()} if index in self._squares else {}

    def restore(self, index: int, kept: Mapping[str, torch.Tensor]) -> None:
        self.begin(index)
        if "squares" in kept:
            self._squares[index] = kept["squares"].clone()

    def begin(self, index: int) -> None:
        self._squares.pop(index, None)
