"""A generative adversarial network: a generator makes rows of noise, and a critic tells them from real ones.

    critic       min  softplus(-C(x)) + softplus(C(G(z)))
    generator    min  softplus(-C(G(z)))

Two models of one run, which step in turn. Noise belongs to places in a batch, so it is one machine's. What travels:
see `base.py`, for both. Source: Goodfellow et al., NIPS 2014.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Self

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import nn

from geomx.learn.agreement import begin
from geomx.learn.batches import Batch, batches
from geomx.learn.networks.base import Network, attached, step_on
from geomx.learn.over import Floats, Over


@dataclass(eq=False, repr=False)
class GAN(Network):
    """See the module's text, and `Network`.

    Args:
        noise: How many random numbers a row is made of.
        hidden: Units of each of two hidden layers.
        epochs: As of `Network`, and so are the others.

    Attributes:
        module_: The generator.
        critic_: The critic.
    """

    noise: int = 16
    _: KW_ONLY
    hidden: int = 128
    epochs: int = 60
    batch_size: int = 128

    def _optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(module.parameters(), lr=self.learning_rate, betas=(0.5, 0.99))

    def fit(self, X: Any, y: Any = None, run: Any = None) -> Self:  # noqa: N803
        """Train on the rows of all workers.

        Args:
            X: This worker's rows, of shape (rows, features).
            y: Nothing.
            run: The run, in which every worker makes this call; None: these are all rows.

        Returns:
            Itself, the same on all workers.
        """
        rows = self._tensor(validate_data(self, X, dtype=np.float32))
        features = rows.shape[1]
        generator = self._made(lambda: self._layers(self.noise, features))
        critic = self._made(lambda: self._layers(features, 1))
        self.module_, of_generator = attached(run, generator, self._optimizer(generator), name="generator")
        self.critic_, of_critic = attached(run, critic, self._optimizer(critic), name="critic")
        begin(Over(run), self)
        draws = torch.Generator().manual_seed(self.random_state)
        for batch in batches(run, len(rows), self.batch_size, self.epochs, self.random_state):
            real = rows[torch.from_numpy(batch.rows)]
            noise = torch.randn(batch.size, self.noise, generator=draws)[torch.from_numpy(batch.at)]
            made = generator(noise.to(self.device))
            of_critic.zero_grad()
            step_on(run, batch, partial(self._of_critic, real, made.detach()))
            of_critic.step()
            of_generator.zero_grad()
            step_on(run, batch, partial(self._of_generator, made))
            of_generator.step()
        return self

    def _of_critic(self, real: torch.Tensor, made: torch.Tensor, _: Batch) -> torch.Tensor:
        return (F.softplus(-self.critic_(real)) + F.softplus(self.critic_(made)))[:, 0]

    def _of_generator(self, made: torch.Tensor, _: Batch) -> torch.Tensor:
        return F.softplus(-self.critic_(made))[:, 0]

    @torch.no_grad()
    def sample(self, rows: int, seed: int = 0) -> Floats:
        """Rows that nobody has, of shape (rows, features)."""
        check_is_fitted(self)
        noise = torch.randn(rows, self.noise, generator=torch.Generator().manual_seed(seed))
        return self._outputs(noise)

    def _layers(self, first: int, last: int) -> nn.Module:
        return nn.Sequential(
            nn.Linear(first, self.hidden), nn.LeakyReLU(0.2),
            nn.Linear(self.hidden, self.hidden), nn.LeakyReLU(0.2), nn.Linear(self.hidden, last),
        )  # fmt: skip
