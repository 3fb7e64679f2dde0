"""Optimizer state between torch's form (a dict for each parameter) and slices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from geomx.layout import Slice
from geomx.node.slices.slice_state import optimizers
from geomx.optim import state as slice_state
from geomx.optim.contract import SliceState
from geomx.train.model.fsdp import is_cut
from geomx.train.model.model_slices import ModelSlices, real, write_flat
from geomx.train.model.rows import strided

_NUMBERS = (
    "step",
    "mu_product",
    "eta",
    "mu",
)  # of torch.optim's elementwise rules; all else is an element's own


def assemble(
    model_slices: ModelSlices, states: Mapping[int, SliceState]
) -> dict[torch.Tensor, dict[str, Any]]:
    """The state of whole parameters from that of their slices; parameters without state are left out."""
    whole: dict[torch.Tensor, dict[str, Any]] = {}
    for index, state in states.items():
        slice_ = model_slices.layout.slices[index]
        own = SliceState(optimizers(state.planes), state.scalars)
        for part, values in zip(slice_.parts, slice_state.unpack(slice_, own), strict=True):
            parameter = model_slices.trained[part.tensor]
            for key, value in values.items():
                kept = whole.setdefault(parameter, {})
                if isinstance(value, int) or value.dim() == 0:
                    kept[key] = value
                else:
                    write_flat(kept.setdefault(key, _empty(parameter, slice_)), part, value.reshape(-1))
    return whole


def _empty(parameter: torch.Tensor, slice_: Slice) -> torch.Tensor:
    """Room for a value of each element; on the CPU where no process holds them all."""
    dtype = getattr(torch, slice_.dtype) if slice_.stored else parameter.dtype
    if is_cut(parameter):
        return torch.empty(parameter.shape, dtype=dtype)
    return torch.empty_like(parameter, dtype=dtype)


def divide(
    model_slices: ModelSlices, whole: Mapping[torch.Tensor, Mapping[str, Any]]
) -> dict[int, SliceState]:
    """The inverse: slice -> its state, on the CPU."""

    def cut(slice_: Slice, start: int, stop: int, tensor: int) -> dict[str, torch.Tensor | float | None]:
        dtype = getattr(torch, slice_.dtype)
        return {
            key: real(value.detach()).reshape(-1)[start:stop].to("cpu", dtype)
            if isinstance(value, torch.Tensor) and key not in _NUMBERS
            else value
            for key, value in strided(whole.get(model_slices.trained[tensor], {})).items()
        }

    return {
        slice_.index: slice_state.pack(
            slice_, [cut(slice_, part.start, part.stop, part.tensor) for part in slice_.parts]
        )
        for slice_ in model_slices.slices("weight")
    }
