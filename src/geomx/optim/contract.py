"""What an aggregate does to the weights: the contract of an optimizer at the root.

Only updates that treat each element alone can live there, since a shard sees slices, not tensors. State is
kept by *part* (a tensor's share of a slice), so that a parameter that had no gradient is skipped exactly
as in PyTorch. State travels (checkpoints) as *planes*, tensors of the slice's elements, and *scalars*, one
number a part.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

import torch

from geomx.layout import Slice
from geomx.wire.messages import Hyperparameters


@dataclass(slots=True)
class SliceState:
    """An optimizer's state of one slice. Scalars are NaN for parts that have no state yet."""

    planes: dict[str, torch.Tensor] = field(default_factory=dict)  # flat, the slice's elements each
    scalars: dict[str, tuple[float, ...]] = field(default_factory=dict)  # one number a part


class RootOptimizer(Protocol):
    """An elementwise update rule over slices; a method touches one slice: slices may run in parallel."""

    def adopt(self, slice_: Slice, weights: torch.Tensor) -> None:
        """Take charge of a slice; `weights` (flat) is updated in place from now on. State starts anew."""

    def apply(
        self, index: int, gradient: torch.Tensor, present: bytes | None, hyper: Hyperparameters
    ) -> None:
        """One step of slice `index` with a mean gradient (flat). Parts that are not `present` are skipped."""

    def export(self, index: int) -> SliceState:
        """The state of slice `index`; its tensors are copies."""

    def restore(self, index: int, state: SliceState) -> None:
        """Put back what `export` gave."""


class Compensation(Protocol):
    """What makes up for a gradient's age before an optimizer gets it; a method touches one slice."""

    def correct(
        self, index: int, gradient: torch.Tensor, weights: torch.Tensor, received: torch.Tensor
    ) -> None:
        """Change `gradient` (flat) in place. `received`: the weights that it was computed for; `weights`: those now."""

    def begin(self, index: int) -> None:
        """Slice `index` has been given weights: what was known of its gradients is of others."""
