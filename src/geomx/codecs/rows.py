"""Rows: of a tensor whose gradients are sparse, those rows that have a gradient, each with its index.

Source: `nn.Embedding(sparse=True)`, PyTorch's hybrid COO tensors. In memory such values are one of those, coalesced, of
shape (rows, row) of the slice. As a payload:

    count       int64
    indices     count x int32, rising, and padding up to 8 bytes
    values      count x row, as `Dense` sends them

Rows are neither rounded nor held back, whatever the edge's codec: a residual would be as large as the tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from geomx.codecs.contract import Codec, Room
from geomx.codecs.dense import Dense
from geomx.errors import ProtocolError
from geomx.layout import Slice

HEAD_BYTES, INDEX_BYTES = 8, 4
_DENSE = Dense()


class Rows(Codec):
    """Sends the rows that there are."""

    lossless = True
    feedback = False

    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        count = values._nnz()
        head = torch.zeros(_head_bytes(count), dtype=torch.uint8)
        head[:HEAD_BYTES].view(torch.int64)[0] = count
        if not count:
            return head
        indices = head[HEAD_BYTES : HEAD_BYTES + INDEX_BYTES * count]
        indices.view(torch.int32).copy_(indices_of(values))
        body = _DENSE.encode(_of(slice_, count), turn, values.values().reshape(-1))
        return torch.cat((head, body))

    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        if payload.numel() < HEAD_BYTES:
            raise ProtocolError(f"slice {slice_.index}: {payload.numel()} bytes of rows")
        count = int(payload[:HEAD_BYTES].clone().view(torch.int64)[0])
        if not 0 <= count <= slice_.rows or payload.numel() != self._size(slice_, count):
            raise ProtocolError(
                f"slice {slice_.index}: {payload.numel()} bytes of {count} rows; it has {slice_.rows}"
            )
        if not count:
            return no_rows(slice_)
        start = _head_bytes(count)
        stored = payload[HEAD_BYTES : HEAD_BYTES + INDEX_BYTES * count].clone()
        indices = stored.view(torch.int32).to(torch.int64)
        if int(indices[0]) < 0 or int(indices[-1]) >= slice_.rows or not bool((indices.diff() > 0).all()):
            raise ProtocolError(f"slice {slice_.index}: indices of rows that do not rise below {slice_.rows}")
        return made(slice_, indices, _DENSE.decode(_of(slice_, count), payload[start:]))

    def accepts(self, slice_: Slice, size: int) -> bool:
        return HEAD_BYTES <= size <= self._size(slice_, slice_.rows)

    def room(self, slice_: Slice) -> Room:
        return _DENSE.room(slice_)

    def cost_bytes(self, slice_: Slice) -> int:
        return slice_.size_bytes

    def _size(self, slice_: Slice, count: int) -> int:
        return _head_bytes(count) + (_DENSE.size(_of(slice_, count)) if count else 0)


def made(slice_: Slice, indices: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Rows of a slice: `indices` (int64, rising) and `values` (flat)."""
    return _coalesced(indices, values.view(-1, slice_.row), (slice_.rows, slice_.row))


def no_rows(slice_: Slice) -> torch.Tensor:
    """None of a slice."""
    return made(slice_, torch.empty(0, dtype=torch.int64), torch.empty(0, dtype=getattr(torch, slice_.dtype)))


def indices_of(rows: torch.Tensor) -> torch.Tensor:
    """Which rows there are: int64, rising."""
    return rows.indices()[0]


def taken(slice_: Slice, weights: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """The same rows of a slice's weights (flat), copied."""
    indices = indices_of(like)
    return made(slice_, indices, weights.view(-1, slice_.row).index_select(0, indices).view(-1))


def write(slice_: Slice, weights: torch.Tensor, rows: torch.Tensor) -> None:
    """Write rows into a slice's weights (flat), in place."""
    weights.view(-1, slice_.row).index_copy_(0, indices_of(rows), rows.values())


def summed(every: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of rows from left to right, in memory of its own."""
    first = every[0]
    if len(every) == 1:
        return first.clone()
    indices = torch.unique(torch.cat([indices_of(rows) for rows in every]))
    total = first.values().new_zeros((indices.numel(), first.shape[1]))
    for rows in every:
        total.index_add_(0, torch.searchsorted(indices, indices_of(rows)), rows.values())
    return _coalesced(indices, total, first.shape)


def _coalesced(indices: torch.Tensor, values: torch.Tensor, shape: Sequence[int]) -> torch.Tensor:
    return torch.sparse_coo_tensor(
        indices[None], values, tuple(shape), is_coalesced=True, check_invariants=False
    )


def _of(slice_: Slice, count: int) -> Slice:
    """A slice of so many rows."""
    return slice_.within(0, count * slice_.row)


def _head_bytes(count: int) -> int:
    return HEAD_BYTES + -(-INDEX_BYTES * count // 8) * 8
