"""Dense: every element, little-endian, in the slice's own dtype. Nothing is lost, nothing is copied."""

from __future__ import annotations

import torch

from geomx.codecs.contract import Block, Codec, tiles, whole_blocks
from geomx.codecs.pack.noise import Stream
from geomx.errors import ProtocolError
from geomx.layout import ITEM_BYTES, Slice


class Dense(Codec):
    """The baseline codec; see `Codec` for the contract."""

    lossless = True
    feedback = False

    def __init__(self, stream: Stream | None = None) -> None:
        pass

    def encode(self, piece: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        return values.view(torch.uint8)

    def decode(self, piece: Slice, payload: torch.Tensor) -> torch.Tensor:
        if not self.accepts(piece, payload.numel()):
            raise ProtocolError(
                f"slice {piece.index}: {payload.numel()} bytes of dense values; expected {piece.size_bytes}"
            )
        return payload.view(getattr(torch, piece.dtype))

    def accepts(self, piece: Slice, size: int) -> bool:
        return size == piece.size_bytes

    def cut(self, piece: Slice, payload: torch.Tensor, numbers: int) -> list[Block]:
        each = ITEM_BYTES[piece.dtype]
        ranges = tiles(piece.elements, whole_blocks(numbers))
        return [Block(start, stop, payload[start * each : stop * each]) for start, stop in ranges]

    def cost_bytes(self, piece: Slice) -> int:
        return 0
