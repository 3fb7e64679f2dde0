"""A codec of the tests' own: float32 slices travel as float16, with the number of the turn behind them."""

from __future__ import annotations

import torch

from geomx.codecs.contract import Codec
from geomx.codecs.pack.noise import RngKey
from geomx.errors import ProtocolError
from geomx.layout import Slice


class Half(Codec):
    """Two bytes an element, and two more."""

    lossless = True  # as far as the streams are concerned: each update stands for itself
    feedback = False

    def __init__(self, stream: RngKey) -> None:
        pass

    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        return torch.cat([values.to(torch.float16), torch.tensor([turn], dtype=torch.float16)]).view(
            torch.uint8
        )

    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        return payload.view(torch.float16)[:-1].to(torch.float32)

    def accepts(self, slice_: Slice, size: int) -> bool:
        return size == 2 * slice_.elements + 2

    def cost_bytes(self, slice_: Slice) -> int:
        return 6 * slice_.elements


class Torn(Half):
    """What worker B/0 sends cannot be read."""

    def __init__(self, stream: RngKey) -> None:
        self._tears = stream.origin == "B/0"

    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        return super().encode(slice_, -1 if self._tears else turn, values, weight)

    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        if float(payload.view(torch.float16)[-1]) < 0:
            raise ProtocolError("it is torn")
        return super().decode(slice_, payload)
