"""What networks share: a module, attached to the run, and steps on batches of all workers' rows.

    w <- w - step of the optimizer on  sum over workers of (n / B) * the mean gradient of its n rows of the batch of B

which is one machine's step, to rounding. What travels: in each step gradients up and weights down, as the run's policy
and codecs say; they tell sums over a worker's rows of a batch, of which few rows can be guessed. A run that trains a
network needs `calls = true` under `[run]`, and `fit` comes before any other call, once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from sklearn.base import BaseEstimator
from torch import nn

from geomx.learn.agreement import begin
from geomx.learn.batches import Batch, batches
from geomx.learn.over import Floats, Over

Loss = Callable[[Batch], torch.Tensor]  # of this worker's rows of a batch: each row's loss


@dataclass(eq=False, repr=False)
class Network(BaseEstimator):  # type: ignore[misc]
    """A network that is trained by Adam.

    Args:
        epochs: How often all rows are gone through.
        batch_size: Rows of all workers in a step.
        learning_rate: Of Adam.
        random_state: The seed of weights and batches, the same on all workers.
        device: Where it is trained.

    Attributes:
        module_: The network.
        losses_: Of each epoch, the mean loss over this worker's rows.
    """

    _: KW_ONLY
    epochs: int = 20
    batch_size: int = 64
    learning_rate: float = 1e-3
    random_state: int = 0
    device: str = "cpu"

    def _made(self, make: Callable[[], nn.Module]) -> nn.Module:
        """A module whose weights follow from the seed."""
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.random_state)
            return make().to(self.device)

    def _tensor(self, array: Any, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.as_tensor(array, dtype=dtype, device=self.device)

    def _optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(module.parameters(), lr=self.learning_rate)

    def _descend(self, run: Any, module: nn.Module, rows: int, loss: Loss, **alike: Any) -> None:
        """Train a module on so many rows of this worker. `alike`: what else all workers have to have alike."""
        self.module_, optimizer = attached(run, module, self._optimizer(module))
        begin(Over(run), self, **alike)
        self._steps(run, optimizer, rows, loss)

    def _steps(
        self,
        run: Any,
        optimizer: torch.optim.Optimizer,
        rows: int,
        loss: Loss,
        stepped: Callable[[Batch], None] = lambda _: None,
    ) -> None:
        """`stepped`: what else is to be done with a batch, after its step."""
        self.losses_: list[float] = []
        self.module_.train()
        total, seen = 0.0, 0
        for batch in batches(run, rows, self.batch_size, self.epochs, self.random_state):
            optimizer.zero_grad()
            total += step_on(run, batch, loss)
            optimizer.step()
            stepped(batch)
            seen += len(batch.rows)
            if seen == rows:  # all of this worker's: an epoch
                self.losses_.append(total / max(rows, 1))
                total, seen = 0.0, 0
        self.module_.eval()

    @torch.no_grad()
    def _outputs(self, x: Any) -> Floats:
        """Of rows."""
        found: Floats = self.module_(self._tensor(x)).double().cpu().numpy()
        return found


def attached(
    run: Any, module: nn.Module, optimizer: torch.optim.Optimizer, **how: Any
) -> tuple[nn.Module, torch.optim.Optimizer]:
    """As of `run.attach`; without a run they are as they were."""
    if run is None:
        return module, optimizer
    found: tuple[nn.Module, torch.optim.Optimizer] = run.attach(module, optimizer, **how)
    return found


def step_on(run: Any, batch: Batch, loss: Loss) -> float:
    """Gradients of this worker's part of a batch, which count as its rows: their summed loss."""
    if run is not None:
        run.weight(len(batch.rows))
    total = loss(batch).sum()
    (total / max(len(batch.rows), 1)).backward()  # type: ignore[no-untyped-call]
    return float(total.detach())
