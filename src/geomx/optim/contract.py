"""What a mean gradient does to the weights: the contract of an optimizer at the root.

Only elementwise updates can run there, since a shard sees slices, not tensors. State is kept by *part* (a tensor's
share of a slice), so that a parameter without a gradient is skipped exactly as in PyTorch. For checkpoints, state
travels as *planes*, tensors of the slice's elements, and *scalars*, one number for each part.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch

from geomx.layout import Slice
from geomx.wire.messages import Hyperparameters


@dataclass(slots=True)
class SliceState:
    """An optimizer's state of one slice, for checkpoints.

    Attributes:
        planes: State that each element has, by name: tensors of shape (elements,) and the slice's dtype.
        scalars: State that each part has, by name: one number for each part; NaN where a part has no state yet.
    """

    planes: dict[str, torch.Tensor] = field(default_factory=dict)
    scalars: dict[str, tuple[float, ...]] = field(default_factory=dict)


class RootOptimizer(Protocol):
    """An elementwise update rule that runs on a shard. The class is called with its name, as the description has it.

    Each method works on one slice. Slices may be worked on in parallel, from several threads; calls for one slice come
    one after the other.
    """

    def adopt(self, slice_: Slice, weights: torch.Tensor) -> None:
        """Take charge of a slice, with no state yet.

        Args:
            slice_: The slice, with its parts.
            weights: Its weights, of shape (elements,) and the slice's dtype; later calls of `apply` change them in
                place.
        """

    def apply(
        self, index: int, gradient: torch.Tensor, present: bytes | None, hyper: Hyperparameters
    ) -> None:
        """Take one step of a slice: update its weights in place.

        Args:
            index: The slice's index.
            gradient: The mean gradient, of shape (elements,); of a slice of rows a sparse one, of shape (rows, row).
            present: Which parts have a gradient, as `geomx.wire.presence` packs them; None: all. Others are skipped.
            hyper: Hyper-parameters of this step, as the workers' parameter groups have them.

        Raises:
            ProtocolError: The gradient or the hyper-parameters do not fit.
            Unsupported: A hyper-parameter has a value that this rule cannot compute with.
        """

    def export(self, index: int) -> SliceState:
        """Return a copy of a slice's state, for a checkpoint."""

    def restore(self, index: int, state: SliceState) -> None:
        """Set a slice's state to what `export` returned."""


class Compensation(Protocol):
    """Corrects a gradient that was computed with old weights, before the optimizer gets it; see `dcasgd.py`.

    Each method works on one slice. Slices may be worked on in parallel, from several threads.
    """

    def correct(
        self, index: int, gradient: torch.Tensor, weights: torch.Tensor, received: torch.Tensor
    ) -> None:
        """Correct a gradient in place.

        Args:
            index: The slice's index.
            gradient: The mean gradient of a party, of shape (elements,).
            weights: The weights now, of the same shape.
            received: The weights with which the gradient was computed, of the same shape.
        """

    def export(self, index: int) -> dict[str, torch.Tensor]:
        """Return a copy of what is kept of a slice's gradients, by name: tensors of shape (elements,)."""

    def restore(self, index: int, kept: Mapping[str, torch.Tensor]) -> None:
        """Set it to what `export` returned."""

    def begin(self, index: int) -> None:
        """Slice `index` was given other weights (`attach`, `load`): forget what was kept of its gradients."""
