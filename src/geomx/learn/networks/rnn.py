"""Sequences by a recurrent network: gated units read one step after the other, and the last state tells the class.

What travels: see `base.py`. Source: Cho et al., EMNLP 2014.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

import torch
from torch import nn

from geomx.learn.networks.classifier import NetworkClassifier


@dataclass(eq=False, repr=False)
class RNNClassifier(NetworkClassifier):
    """See the module's text, and `NetworkClassifier`.

    Args:
        shape: Of a sequence: steps, features of each; rows have so many features.
        hidden: How many units.
        epochs: As of `Network`, and so are the others.
    """

    shape: tuple[int, int] = (8, 8)
    _: KW_ONLY
    hidden: int = 64
    epochs: int = 30
    learning_rate: float = 5e-3

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
