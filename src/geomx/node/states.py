"""Weights and optimizer state of one slice as one payload: checkpoints travel this way.

The bytes are the weights (where there are any), then each plane, every one with the slice's dtype and elements.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch

from geomx.layout import Slice
from geomx.optim.base import SliceState

Scalars = tuple[tuple[str, tuple[float, ...]], ...]


class Described(Protocol):
    """A message that says which planes its payload holds."""

    @property
    def planes(self) -> tuple[str, ...]: ...

    @property
    def scalars(self) -> Scalars: ...


def pack_state(
    weights: torch.Tensor | None, state: SliceState | None
) -> tuple[Any, tuple[str, ...], Scalars]:
    """The payload (None where there is nothing), the names of its planes, and the scalars."""
    planes = {} if state is None else state.planes
    scalars: Scalars = () if state is None else tuple(state.scalars.items())
    tensors = [t.reshape(-1) for t in ([] if weights is None else [weights])] + [
        t.reshape(-1) for t in planes.values()
    ]
    if not tensors:
        return None, (), scalars
    flat = tensors[0] if len(tensors) == 1 else torch.cat(tensors)
    return flat.contiguous().view(torch.uint8), tuple(planes), scalars


def unpack_weights(piece: Slice, payload: torch.Tensor) -> torch.Tensor:
    """The weights at the head of a payload (flat, the slice's dtype)."""
    return payload[: piece.size_bytes].view(getattr(torch, piece.dtype))


def unpack_state(piece: Slice, described: Described, payload: torch.Tensor | None) -> SliceState:
    """The planes at the tail of a payload, and the scalars."""
    size = piece.size_bytes
    total = 0 if payload is None else payload.numel()
    start = total - size * len(described.planes)
    planes = {
        name: payload[start + place * size : start + (place + 1) * size].view(getattr(torch, piece.dtype))
        for place, name in enumerate(described.planes)
        if payload is not None
    }
    return SliceState(planes, dict(described.scalars))
