"""What is attached where nothing is trained, and collective calls are all that a run is for."""

from __future__ import annotations

import torch
from torch import nn


class NoModel(nn.Module):
    """One number that nobody changes, since runs begin with a model."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(1))

    def optimizer(self) -> torch.optim.Optimizer:
        """Which never steps."""
        return torch.optim.SGD(self.parameters(), lr=0.0)
