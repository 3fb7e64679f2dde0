"""Fine-tuning: a network that has been trained before goes on, with a new last layer, on the rows of all workers.

    w_trunk <- from w before, by small steps;     w_head <- from 0, by larger ones

All begin with the first worker's network, so the others need not have it trained. What travels: see
`networks/base.py`. Source: Yosinski et al., NIPS 2014.
"""

from __future__ import annotations

import copy
from dataclasses import KW_ONLY, dataclass
from typing import Any

import torch
from torch import nn

from geomx.learn.networks.classifier import NetworkClassifier


@dataclass(eq=False, repr=False)
class FineTunedClassifier(NetworkClassifier):
    """See the module's text, and `NetworkClassifier`.

    Args:
        trunk: The network; what it gives is made flat. It is copied.
        shape: Of a row, as the network takes it; None: as it comes.
        slower: By how much its steps are smaller than those of the new layer.
        epochs: As of `Network`, and so are the others.
    """

    trunk: nn.Module
    shape: tuple[int, ...] | None = None
    _: KW_ONLY
    slower: float = 0.3
    epochs: int = 10
    learning_rate: float = 3e-3

    def _module(self, features: int, outputs: int) -> nn.Module:
        trunk = copy.deepcopy(self.trunk).to("cpu").requires_grad_(requires_grad=True)
        row = torch.zeros(1, features) if self.shape is None else torch.zeros(1, *self.shape)
        with torch.no_grad():
            wide = trunk(row).flatten(1).shape[1]
        head = nn.Linear(wide, outputs)
        nn.init.zeros_(head.weight)
        nn.init.zeros_(head.bias)
        return nn.Sequential(trunk, nn.Flatten(), head)

    def _optimizer(self, module: Any) -> torch.optim.Optimizer:
        rates = (module[0], self.slower * self.learning_rate), (module[2], self.learning_rate)
        return torch.optim.Adam([{"params": list(part.parameters()), "lr": rate} for part, rate in rates])
