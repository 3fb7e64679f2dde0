"""What an update does to a row at its shard."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch

from geomx.errors import ConfigError, Fault


class Rule(ABC):
    """Updates rows, each by itself.

    Attributes:
        state: What it keeps of each number of a row, by name, and what that begins with.
    """

    state: Mapping[str, float] = {}

    @abstractmethod
    def step(self, rows: torch.Tensor, state: dict[str, torch.Tensor], gradients: torch.Tensor) -> None:
        """Update some rows and their state, in place.

        Args:
            rows: float32 of shape (keys, columns).
            state: By name, of the same shape.
            gradients: What was pushed, of the same shape; where workers push together, their sum.
        """


class Add(Rule):
    """w ← w + g: sums, counts, and steps that workers compute themselves. No parameters."""

    def step(self, rows: torch.Tensor, state: dict[str, torch.Tensor], gradients: torch.Tensor) -> None:
        rows.add_(gradients)


class SGD(Rule):
    """w ← w - lr · g.

    Args:
        lr: The learning rate.
    """

    def __init__(self, *, lr: float = 0.01) -> None:
        self._lr = _positive(self, "lr", lr)

    def step(self, rows: torch.Tensor, state: dict[str, torch.Tensor], gradients: torch.Tensor) -> None:
        rows.sub_(gradients, alpha=self._lr)


class Adagrad(Rule):
    """s ← s + g²; w ← w - lr · g / (√s + eps) (Duchi et al., JMLR 2011), as torch.optim.Adagrad.

    Args:
        lr: The learning rate.
        eps: So that nothing is divided by 0.
    """

    state: Mapping[str, float] = {"sum": 0.0}

    def __init__(self, *, lr: float = 0.01, eps: float = 1e-10) -> None:
        self._lr, self._eps = _positive(self, "lr", lr), _positive(self, "eps", eps)

    def step(self, rows: torch.Tensor, state: dict[str, torch.Tensor], gradients: torch.Tensor) -> None:
        state["sum"].addcmul_(gradients, gradients)
        rows.addcdiv_(gradients, state["sum"].sqrt().add_(self._eps), value=-self._lr)


class FTRL(Rule):
    """FTRL-Proximal (McMahan et al., KDD 2013): sparse weights of linear models.

        σ = (√(n + g²) - √n) / alpha;   z ← z + g - σ w;   n ← n + g²
        w ← 0 where |z| ≤ l1, else -(z - sign(z) l1) / ((beta + √n) / alpha + l2)

    Args:
        alpha: The learning rate of each number.
        beta: How slowly it falls at first.
        l1: What keeps weights at zero.
        l2: What keeps them small.
    """

    state: Mapping[str, float] = {"z": 0.0, "n": 0.0}

    def __init__(self, *, alpha: float = 0.1, beta: float = 1.0, l1: float = 1.0, l2: float = 0.0) -> None:
        self._alpha, self._beta = _positive(self, "alpha", alpha), beta
        self._l1, self._l2 = l1, l2

    def step(self, rows: torch.Tensor, state: dict[str, torch.Tensor], gradients: torch.Tensor) -> None:
        z, n = state["z"], state["n"]
        before = n.sqrt()
        n.addcmul_(gradients, gradients)
        root = n.sqrt()
        z.add_(gradients).addcmul_((root - before).div_(self._alpha), rows, value=-1.0)
        made = torch.copysign(torch.full_like(z, self._l1), z).sub_(z)
        made.div_(root.add_(self._beta).div_(self._alpha).add_(self._l2))
        rows.copy_(torch.where(z.abs() <= self._l1, 0.0, made))


def _positive(rule: Rule, key: str, value: float) -> float:
    if not value > 0.0:
        raise ConfigError(
            f"rule {type(rule).__name__.lower()}", [Fault(key, f"{value:g}", "a number above 0")]
        )
    return value
