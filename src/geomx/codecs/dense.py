"""Dense: every element, little-endian, in the dtype that the model has it in."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from geomx.codecs.blocks import cut_alike, joined, laid_out
from geomx.codecs.contract import Block, Codec, Room
from geomx.codecs.pack.columns import Columns
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.pack.values import FORMS, ValueForm, aligned
from geomx.errors import ProtocolError
from geomx.layout import ITEM_BYTES, Slice


class Exact(Codec):
    """Sends every element as it is, in the slice's dtype. Nothing is lost, nothing is copied."""

    lossless = True
    feedback = False

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


class Dense(Exact):
    """Sends every element in the dtype that the model has it in. No parameters; lossless in float32 and float64.

    Half precision is rounded to it from the float32 in which it is added up: bfloat16 as it is, float16 scaled by a
    power of two for each slice, so that nothing overflows.
    """

    def __init__(self, stream: RngKey | None = None) -> None:
        pass

    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        if not slice_.stored:
            return super().encode(slice_, turn, values, weight)
        return _STORED[slice_.stored].pack(values)

    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        if not slice_.stored:
            return super().decode(slice_, payload)
        return self._unpacked(slice_, payload, slice_.elements)

    def _unpacked(self, slice_: Slice, payload: torch.Tensor, count: int) -> torch.Tensor:
        form = _STORED[slice_.stored]
        if payload.numel() != form.size_bytes(count):
            raise ProtocolError(f"slice {slice_.index}: {payload.numel()} bytes of {count} {slice_.stored}")
        return form.unpack(payload, count, getattr(torch, slice_.dtype))

    def accepts(self, slice_: Slice, size: int) -> bool:
        return size == self.size(slice_)

    def size(self, slice_: Slice) -> int:
        """How many bytes a payload has."""
        if not slice_.stored:
            return slice_.size_bytes
        return _STORED[slice_.stored].size_bytes(slice_.elements)

    def room(self, slice_: Slice) -> Room:
        if not slice_.stored:
            return super().room(slice_)
        return Room(_STORED[slice_.stored].most(getattr(torch, slice_.dtype)), slice_.stored)

    def cut(self, slice_: Slice, payload: torch.Tensor, most_bytes: int) -> list[Block]:
        if not slice_.stored:
            return super().cut(slice_, payload, most_bytes)
        return cut_alike(slice_, payload, _STORED[slice_.stored].columns, most_bytes)

    def decode_blocks(self, slice_: Slice, blocks: Sequence[Block]) -> torch.Tensor:
        if not (slice_.stored and blocks):
            return super().decode_blocks(slice_, blocks)
        found, payload = joined(slice_, blocks, _STORED[slice_.stored].columns)
        values = self._unpacked(slice_, payload, sum(stop - start for start, stop, _ in found))
        return laid_out(values, found, slice_.elements)

    def cost_bytes(self, slice_: Slice) -> int:
        return 2 * slice_.size_bytes if slice_.stored else 0


_STORED: dict[str, ValueForm] = {"bfloat16": FORMS["bf16"](), "float16": FORMS["fp16"]()}


def _columns(slice_: Slice) -> Columns:
    return Columns(width=8 * ITEM_BYTES[slice_.dtype])
