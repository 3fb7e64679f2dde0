"""Sequences by a recurrent network: gated units read one step after the other, and the last state tells the class.

What travels: see `base.py`. Source: Cho et al., EMNLP 2014.
"""

from __future__ import annotations

import torch
from torch import nn

from geomx.learn.networks.classifier import NetworkClassifier


class RNNClassifier(NetworkClassifier):
    """See the module's text, and `NetworkClassifier`.

    Args:
        shape: Of a sequence: steps, features of each; rows have so many features.
        hidden: How many units.
        epochs: As of `Network`, and so are the others.
    """

    shape: tuple[int, int]

    def __init__(
        self,
        shape: tuple[int, int] = (8, 8),
        *,
        hidden: int = 64,
        epochs: int = 30,
        batch_size: int = 64,
        learning_rate: float = 5e-3,
        random_state: int = 0,
        device: str = "cpu",
    ) -> None:
        super().__init__(
            epochs=epochs, batch_size=batch_size, learning_rate=learning_rate, random_state=random_state,
            device=device,
        )  # fmt: skip
        self.shape, self.hidden = shape, hidden

    def _module(self, _: int, outputs: int) -> nn.Module:
        _, each = self.shape
        return Recurrent(each, self.hidden, outputs)


class Recurrent(nn.Module):
    """Gated recurrent units, and a linear layer on their last state."""

    def __init__(self, features: int, hidden: int, outputs: int) -> None:
        super().__init__()
        self.units = nn.GRU(features, hidden, batch_first=True)
        self.head = nn.Linear(hidden, outputs)

    def forward(self, sequences: torch.Tensor) -> torch.Tensor:
        """[rows, steps, features] to [rows, outputs]."""
        if not len(sequences):
            return self.head(sequences.new_zeros(0, self.units.hidden_size))  # type: ignore[no-any-return]
        return self.head(self.units(sequences)[0][:, -1])  # type: ignore[no-any-return]
