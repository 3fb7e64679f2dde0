"""What a process holds of a tensor that FSDP2 has cut along its first dimension: one range of its logical elements.

    rows of rank r of n    [r·c, (r + 1)·c) of the tensor's, c = ⌈rows / n⌉; the last ranks may have fewer, or none

A tensor that is not cut is held whole by everybody.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeGuard

import torch

from geomx.errors import Unsupported

if TYPE_CHECKING:  # it takes most of a second to import, and whoever has such tensors has done so
    from torch.distributed.tensor import DTensor


def is_cut(tensor: torch.Tensor) -> TypeGuard[DTensor]:
    """Whether other processes hold the rest of this tensor."""
    return type(tensor).__name__ == "DTensor"


def held(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    """What this process has of a tensor, as it lies in memory, and how many of its elements come before that."""
    if not is_cut(tensor):
        return tensor, 0
    with torch.no_grad():  # the very memory, and no view of it for autograd
        local = tensor.to_local()
    return local, range_of(tensor.shape, tensor.device_mesh.get_local_rank(), tensor.device_mesh.size())[0]


def range_of(shape: Sequence[int], rank: int, ranks: int) -> tuple[int, int]:
    """Which logical elements [start, stop) of a tensor one of `ranks` processes holds."""
    rows, row = shape[0], 1
    for extent in shape[1:]:
        row *= extent
    each = -(-rows // ranks)
    return min(rank * each, rows) * row, min((rank + 1) * each, rows) * row


def held_of(tensor: torch.Tensor, whole: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """What this process has of a tensor, and the same part of another one, which is whole."""
    local, start = held(tensor)
    if not is_cut(tensor):
        return local, whole
    return local, whole.reshape(-1)[start : start + local.numel()].view(local.shape)


def cut_like(tensor: torch.Tensor, whole: torch.Tensor) -> torch.Tensor:
    """This process's part of `whole`, as the part of a tensor that is cut as `tensor` is."""
    if not is_cut(tensor):
        return whole
    local, mine = held_of(tensor, whole)
    return type(tensor).from_local(
        mine.to(local.device, copy=True), tensor.device_mesh, tensor.placements, run_check=False,
        shape=tensor.shape, stride=tensor.stride(),
    )  # fmt: skip


def check_cut(name: str, tensor: DTensor, ranks: int) -> None:
    """Raise `Unsupported` where a tensor is not cut over the `ranks` workers of the party as this module says."""
    mesh, placements = tensor.device_mesh, tensor.placements
    how = f"{name} is a DTensor with placements {placements} on a mesh of {tuple(mesh.shape)}"
    if mesh.ndim != 1 or mesh.size() != ranks or not placements[0].is_shard(0):
        raise Unsupported(
            f"{how}; supported are those that torch.distributed.fsdp.fully_shard cuts along their first dimension, "
            f"over all {ranks} workers of the party"
        )
    local, start = held(tensor)
    if local.is_cpu and mesh.device_type != "cpu":
        raise Unsupported(f"{how}, and offloaded to the CPU; leave out CPUOffloadPolicy")
    if start + local.numel() != range_of(tensor.shape, mesh.get_local_rank(), ranks)[1]:
        raise Unsupported(f"{how}, and has {local.shape[0]} rows here, which is no even cut; use fully_shard")
