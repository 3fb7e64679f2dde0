"""FTML, follow the moving leader: the minimum of all losses so far, of which those long ago count less.

    v <- b2 v + (1 - b2) g^2,     d_t = (1 - b1^t) / rate (sqrt(v / (1 - b2^t)) + eps)
    z <- b1 z + (1 - b1) g - (d_t - b1 d_{t-1}) w,     w <- -z / d_t

`FTML` is an optimizer of PyTorch, also for a training loop of one's own. Source: Zheng and Kwok, ICML 2017.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import nn

from geomx.learn.networks.classifier import NetworkClassifier


class FTML(torch.optim.Optimizer):
    """See the module's text.

    Args:
        params: As of any optimizer.
        lr: The rate.
        betas: b1 and b2.
        eps: So that nothing is divided by 0.

    Raises:
        ValueError: A number that is out of range.
    """

    def __init__(
        self,
        params: Iterable[Any],
        lr: float = 2.5e-3,
        betas: tuple[float, float] = (0.6, 0.999),
        eps: float = 1e-8,
    ) -> None:
        if not (lr > 0.0 and all(0.0 <= each < 1.0 for each in betas) and eps > 0.0):
            raise ValueError(
                f"lr={lr}, betas={betas}, eps={eps}: a rate above 0, betas from 0 to below 1, eps above 0"
            )
        super().__init__(params, {"lr": lr, "betas": betas, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """One step on all parameters that have a gradient."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            b1, b2 = group["betas"]
            for parameter in group["params"]:
                if parameter.grad is None:
                    continue
                state = self.state[parameter]
                if not state:
                    state["step"] = torch.zeros(())
                    state |= {name: torch.zeros_like(parameter) for name in ("v", "d", "z")}
                state["step"] += 1
                step, v, z = float(state["step"]), state["v"], state["z"]
                v.mul_(b2).addcmul_(parameter.grad, parameter.grad, value=1.0 - b2)
                d = (v / (1.0 - b2**step)).sqrt_().add_(group["eps"]).mul_((1.0 - b1**step) / group["lr"])
                z.mul_(b1).add_(parameter.grad, alpha=1.0 - b1).sub_((d - b1 * state["d"]) * parameter)
                parameter.copy_(-z / d)
                state["d"] = d
        return loss


@dataclass(eq=False, repr=False)
class FTMLClassifier(NetworkClassifier):
    """Linear scores, learned in one pass by `FTML`. See `NetworkClassifier`.

    Args:
        epochs: As of `Network`, and so are the others.
    """

    _: KW_ONLY
    epochs: int = 1
    batch_size: int = 8
    learning_rate: float = 2e-2

    def _module(self, features: int, outputs: int) -> nn.Module:
        return nn.Linear(features, outputs)

    def _optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        return FTML(module.parameters(), lr=self.learning_rate)
