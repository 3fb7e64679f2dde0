"""Parameters whose gradients are sparse: the weights of `nn.Embedding(sparse=True)` and `nn.EmbeddingBag(sparse=True)`.

Of such a gradient the rows travel that it has; see `geomx.codecs.rows`. Nothing here is as large as the parameter.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import nn

from geomx.codecs.measure import scaled
from geomx.codecs.rows import indices_of, made
from geomx.errors import Unsupported
from geomx.layout import Part, Slice


def rows_of(model: nn.Module) -> Mapping[int, int]:
    """The parameters (by id) with such gradients, and how many elements their rows have."""
    return {
        id(module.weight): module.weight.shape[1]
        for module in model.modules()
        if isinstance(module, nn.Embedding | nn.EmbeddingBag)
        and module.sparse
        and module.weight.requires_grad
    }


def check_rows_group(group: Mapping[str, Any]) -> None:
    """Raise `Unsupported` for hyper-parameters by which rows without a gradient would change at the global servers."""
    if group.get("momentum"):
        raise Unsupported(
            "momentum of sparse gradients moves every row that has ever had one, which the global servers do not send; "
            'set optimizer.place = "workers" (torch.optim.lr_scheduler.OneCycleLR sets momentum unless '
            "cycle_momentum=False)"
        )
    if group.get("weight_decay"):
        raise Unsupported(
            "weight_decay changes every row in every step; leave it 0 for embeddings with sparse=True"
        )


def strided(state: Mapping[str, Any]) -> dict[str, Any]:
    """A parameter's state in an optimizer, without sparse tensors, such as the momentum of sparse gradients."""
    return {
        key: value.to_dense() if isinstance(value, torch.Tensor) and value.is_sparse else value
        for key, value in state.items()
    }


def as_rows(gradient: torch.Tensor) -> torch.Tensor:
    """A gradient, coalesced; where the parameter was used densely as well, of the rows that are not zero."""
    return (gradient if gradient.is_sparse else gradient.to_sparse(1)).coalesce()


def gather_rows(slice_: Slice, gradient: torch.Tensor, weight: float) -> tuple[torch.Tensor, float]:
    """weight · those rows of a gradient (as `as_rows` gives it) that are in the slice, and the largest |value|."""
    first = slice_.parts[0].start // slice_.row
    indices = indices_of(gradient)
    start, stop = torch.searchsorted(indices, indices.new_tensor([first, first + slice_.rows])).tolist()
    own = gradient.values()[start:stop].reshape(-1).detach()
    dtype = getattr(torch, slice_.dtype)
    values = torch.empty(own.numel(), dtype=dtype)
    largest = scaled(own.to("cpu", dtype), weight, values)
    return made(slice_, (indices[start:stop] - first).cpu(), values), largest


def write_rows(tensor: torch.Tensor, part: Part, rows: torch.Tensor) -> None:
    """Give a parameter those rows of a part of it."""
    with torch.no_grad():
        indices = indices_of(rows) + part.start // rows.shape[1]
        tensor.index_copy_(0, indices.to(tensor.device), rows.values().to(tensor.device, tensor.dtype))


def joined(parameter: torch.Tensor, parts: Iterable[tuple[Part, torch.Tensor]]) -> torch.Tensor:
    """A sparse gradient of a parameter, from the rows of its parts, in order."""
    every = list(parts)
    indices = torch.cat([indices_of(rows) + part.start // parameter.shape[1] for part, rows in every])
    values = torch.cat([rows.values() for _, rows in every]).to(parameter.device, parameter.dtype)
    return torch.sparse_coo_tensor(
        indices[None].to(parameter.device), values, parameter.shape, is_coalesced=True, check_invariants=False
    )
