"""Between PyTorch's optimizer state, a dict for each parameter, and a `SliceState`, which travels.

A plane holds one of torch's per-element state tensors for the whole slice, under torch's own key; a scalar
holds one of its per-parameter numbers (`step`, `mu_product`, ...) for each part. Where a part does not hold a
plane's key (it has had no gradient yet), the plane is zero there, and the scalar of the plane's own name is
NaN for that part and 1 for the others; a plane that every part holds has no such scalar. A number that torch keeps as
an int and not as a tensor (SparseAdam's `step`) stands under a name that says so.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from geomx.errors import ProtocolError
from geomx.layout import Slice
from geomx.optim.contract import SliceState

INT = ":int"
PartState = dict[str, torch.Tensor | int]


def pack(slice_: Slice, states: Sequence[Mapping[str, torch.Tensor | float | None]]) -> SliceState:
    """The state of a slice from that of its parts, in their order; everything is copied.

    A value is a tensor of the part's elements (flat, or rows), a number (a tensor without dimensions counts as one), or
    None, which is the same as no value.
    """
    packed = SliceState()
    for key in sorted({key for state in states for key in state}):
        values = [state.get(key) for state in states]
        if any(isinstance(value, torch.Tensor) and value.dim() for value in values):
            _pack_plane(packed, slice_, key, values)
        elif any(value is not None for value in values):
            name = f"{key}{INT}" if all(isinstance(value, int | None) for value in values) else key
            packed.scalars[name] = tuple(math.nan if value is None else float(value) for value in values)
    return packed


def unpack(slice_: Slice, packed: SliceState) -> list[PartState]:
    """The inverse: for each part, what torch.optim keeps for it; empty where it has no state.

    Tensors are copies. Raises `ProtocolError` where the state is not one of this slice.
    """
    _check(slice_, packed)
    states: list[PartState] = []
    for number, part in enumerate(slice_.parts):
        state: PartState = {}
        for key, plane in packed.planes.items():
            if key not in packed.scalars or not math.isnan(packed.scalars[key][number]):
                own = plane[part.offset : part.offset + part.elements].clone()
                state[key] = own.view(slice_.rows, slice_.row) if slice_.row else own
        for key, numbers in packed.scalars.items():
            if key not in packed.planes and not math.isnan(numbers[number]):
                if key.endswith(INT):
                    state[key.removesuffix(INT)] = int(numbers[number])
                else:
                    state[key] = torch.tensor(numbers[number], dtype=_scalar_dtype())
        states.append(state)
    return states


def _pack_plane(
    packed: SliceState, slice_: Slice, key: str, values: Sequence[torch.Tensor | float | None]
) -> None:
    held = [value if isinstance(value, torch.Tensor) else None for value in values]
    first = next(value for value in held if value is not None)
    plane = first.new_zeros(slice_.elements)
    for part, value in zip(slice_.parts, held, strict=True):
        if value is not None:
            plane[part.offset : part.offset + part.elements] = value.reshape(-1)
    packed.planes[key] = plane
    if any(value is None for value in held):
        packed.scalars[key] = tuple(math.nan if value is None else 1.0 for value in held)


def _check(slice_: Slice, packed: SliceState) -> None:
    dtype = getattr(torch, slice_.dtype)
    for key, plane in packed.planes.items():
        if plane.shape != (slice_.elements,) or plane.dtype != dtype:
            raise ProtocolError(
                f"slice {slice_.index}: optimizer state {key} is {plane.dtype} of shape {tuple(plane.shape)}; "
                f"expected {slice_.elements} elements of {dtype}"
            )
    for key, numbers in packed.scalars.items():
        if len(numbers) != len(slice_.parts):
            raise ProtocolError(
                f"slice {slice_.index}: optimizer state {key} has {len(numbers)} numbers "
                f"for {len(slice_.parts)} parts"
            )


def _scalar_dtype() -> torch.dtype:
    """In which dtype torch.optim keeps its numbers."""
    return torch.float64 if torch.get_default_dtype() == torch.float64 else torch.float32
