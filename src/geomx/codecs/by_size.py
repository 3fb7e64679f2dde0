"""Slices of large tensors through one codec, slices of tiny ones through another: dense, or MPQ's half precision.

A tensor is large from `layout.size_lower_bound` elements on. What goes dense for being tiny keeps no residual.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch

from geomx.codecs.contract import Block, Codec, Lossy, check_finite
from geomx.codecs.pack.values import peak
from geomx.layout import Slice


class BySize(Codec):
    """See the module's text."""

    lossless = False

    def __init__(self, large: Lossy, tiny: Codec) -> None:
        self.large, self.tiny = large, tiny
        self.ratio, self.momentum = large.ratio, large.momentum

    def _of(self, piece: Slice) -> Codec:
        return self.large if piece.large else self.tiny

    @property
    def feedback(self) -> bool:
        return self.large.feedback

    @feedback.setter
    def feedback(self, given: bool) -> None:
        self.large.feedback = given
        self.tiny.feedback = given and not self.tiny.lossless

    def encode(self, piece: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        codec = self._of(piece)
        if codec.lossless:  # NaN is refused wherever it is
            check_finite(piece, peak(values))
        return codec.encode(piece, turn, values, weight)

    def decode(self, piece: Slice, payload: torch.Tensor) -> torch.Tensor:
        return self._of(piece).decode(piece, payload)

    def accepts(self, piece: Slice, size: int) -> bool:
        return self._of(piece).accepts(piece, size)

    def cut(self, piece: Slice, payload: torch.Tensor, numbers: int) -> list[Block]:
        return self._of(piece).cut(piece, payload, numbers)

    def cost_bytes(self, piece: Slice) -> int:
        return self.large.cost_bytes(piece)

    def settle(self, piece: Slice, lost: Iterable[Block]) -> None:
        self._of(piece).settle(piece, lost)

    def state(self, piece: Slice) -> dict[str, torch.Tensor]:
        return self._of(piece).state(piece)

    def restore(self, piece: Slice, state: Mapping[str, torch.Tensor]) -> None:
        self._of(piece).restore(piece, state)
