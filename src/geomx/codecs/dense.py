"""Dense: every element, little-endian, in the slice's own dtype. Nothing is lost, nothing is copied."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from geomx.codecs.blocks import cut_alike, joined, laid_out
from geomx.codecs.contract import Block, Codec
from geomx.codecs.pack.columns import Columns
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.pack.values import aligned
from geomx.errors import ProtocolError
from geomx.layout import ITEM_BYTES, Slice


class Dense(Codec):
    """Sends every element as it is, in the slice's own dtype. No parameters; lossless."""

    lossless = True
    feedback = False

    def __init__(self, stream: RngKey | None = None) -> None:
        pass

    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        return values.view(torch.uint8)

    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        if not self.accepts(slice_, payload.numel()):
            raise ProtocolError(
                f"slice {slice_.index}: {payload.numel()} bytes of dense values; expected {slice_.size_bytes}"
            )
        return aligned(payload, getattr(torch, slice_.dtype))

    def accepts(self, slice_: Slice, size: int) -> bool:
        return size == slice_.size_bytes

    def cut(self, slice_: Slice, payload: torch.Tensor, most_bytes: int) -> list[Block]:
        return cut_alike(slice_, payload, _columns(slice_), most_bytes)

    def decode_blocks(self, slice_: Slice, blocks: Sequence[Block]) -> torch.Tensor:
        dtype = getattr(torch, slice_.dtype)
        if not blocks:
            return torch.zeros(slice_.elements, dtype=dtype)
        found, payload = joined(slice_, blocks, _columns(slice_))
        return laid_out(aligned(payload, dtype), found, slice_.elements)

    def cost_bytes(self, slice_: Slice) -> int:
        return 0


def _columns(slice_: Slice) -> Columns:
    return Columns(width=8 * ITEM_BYTES[slice_.dtype])
