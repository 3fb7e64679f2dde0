"""Dense: every element, little-endian, in the slice's own dtype. Nothing is lost, nothing is copied."""

from __future__ import annotations

import torch

from geomx.codecs.contract import Block, Codec, tiles, whole_blocks
from geomx.codecs.pack.noise import RngKey
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
        return payload.view(getattr(torch, slice_.dtype))

    def accepts(self, slice_: Slice, size: int) -> bool:
        return size == slice_.size_bytes

    def cut(self, slice_: Slice, payload: torch.Tensor, numbers: int) -> list[Block]:
        each = ITEM_BYTES[slice_.dtype]
        ranges = tiles(slice_.elements, whole_blocks(numbers))
        return [Block(start, stop, payload[start * each : stop * each]) for start, stop in ranges]

    def cost_bytes(self, slice_: Slice) -> int:
        return 0
