"""Slices of large tensors through one codec, slices of tiny ones through another.

A tensor is large from `size_lower_bound` elements on, which is a parameter of codecs that use this. What goes dense for
its size keeps no residual.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from geomx.codecs.contract import Block, Codec, Room
from geomx.codecs.pack.values import peak
from geomx.errors import ConfigError, Fault
from geomx.layout import Slice

LARGEST_BOUND = 1 << 40


class BySize(Codec):
    """Sends slices of large tensors through one codec, and slices of tiny ones through another."""

    lossless = False

    def __init__(self, large: Codec, tiny: Codec, size_lower_bound: int) -> None:
        if not 1 <= size_lower_bound <= LARGEST_BOUND:
            allowed = f"an integer from 1 to {LARGEST_BOUND}"
            raise ConfigError("codec", [Fault("size_lower_bound", f"{size_lower_bound}", allowed)])
        self.large, self.tiny = large, tiny
        self.size_lower_bound = size_lower_bound
        self.ratio, self.momentum, self.decay = large.ratio, large.momentum, large.decay

    def of(self, slice_: Slice) -> Codec:
        """The codec that a slice goes through."""
        return self.large if slice_.smallest_tensor >= self.size_lower_bound else self.tiny

    @property
    def feedback(self) -> bool:
        return self.large.feedback or self.tiny.feedback

    @feedback.setter
    def feedback(self, given: bool) -> None:
        for codec in (self.large, self.tiny):
            codec.feedback = given and not codec.lossless

    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        codec = self.of(slice_)
        if codec is self.tiny or codec.lossless:  # NaN is refused wherever it is
            codec.room(slice_).check(slice_, peak(values))
        return codec.encode(slice_, turn, values, weight)

    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        return self.of(slice_).decode(slice_, payload)

    def accepts(self, slice_: Slice, size: int) -> bool:
        return self.of(slice_).accepts(slice_, size)

    def room(self, slice_: Slice) -> Room:
        return self.of(slice_).room(slice_)

    def cut(self, slice_: Slice, payload: torch.Tensor, most_bytes: int) -> list[Block]:
        return self.of(slice_).cut(slice_, payload, most_bytes)

    def decode_blocks(self, slice_: Slice, blocks: Sequence[Block]) -> torch.Tensor:
        return self.of(slice_).decode_blocks(slice_, blocks)

    def cost_bytes(self, slice_: Slice) -> int:
        codec = self.of(slice_)
        return slice_.size_bytes if codec.lossless else codec.cost_bytes(slice_)  # see `encode`

    def settle(self, slice_: Slice, lost: Sequence[Block]) -> None:
        self.of(slice_).settle(slice_, lost)

    def held(self, slice_: Slice) -> torch.Tensor | None:
        return self.of(slice_).held(slice_)

    def state(self, slice_: Slice) -> dict[str, torch.Tensor]:
        return self.of(slice_).state(slice_)

    def restore(self, slice_: Slice, state: Mapping[str, torch.Tensor]) -> None:
        self.of(slice_).restore(slice_, state)
