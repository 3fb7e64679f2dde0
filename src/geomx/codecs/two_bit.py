"""2-bit quantisation, as in MXNet's key-value store (after Strom, Interspeech 2015).

    left ← residual + values;   left ≥ t: +t,   left ≤ -t: -t,   else 0;   residual ← left - what was sent

16 values in 4 bytes. `threshold` t is in the unit of the mean gradient, as in MXNet where workers' weights are 1; it is
multiplied by the contribution's weight, so that batch sizes do not change what it means.
"""

from __future__ import annotations

import torch

from geomx.codecs.dense import Dense
from geomx.codecs.error_feedback import SIZE_LOWER_BOUND, working
from geomx.codecs.pack import native
from geomx.codecs.pack.bits import BYTE, pack, unpack
from geomx.codecs.pack.columns import Columns
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.pack.values import aligned
from geomx.codecs.whole import Every
from geomx.errors import ConfigError, Fault, ProtocolError
from geomx.layout import Slice

STEP_BYTES, WIDTH = 4, 2
ZERO, UP, DOWN = 0, 1, 2


class TwoBit(Every):
    """Sends plus, minus or nothing of a threshold for each element (Strom, Interspeech 2015).

    Args:
        stream: The key of its random numbers, which it does not use.
        threshold: In the unit of the mean gradient, above 0.
        size_lower_bound: Tensors with fewer elements travel dense.

    Raises:
        ConfigError: `threshold` is out of range.
    """

    form = "2-bit values"
    columns = Columns(head=STEP_BYTES, grain=BYTE // WIDTH, width=WIDTH)

    def __init__(
        self, stream: RngKey, *, threshold: float = 0.5, size_lower_bound: int = SIZE_LOWER_BOUND
    ) -> None:
        super().__init__(stream, Dense(), size_lower_bound)
        if not 0.0 < threshold < float("inf"):
            raise ConfigError("codec two_bit", [Fault("threshold", f"{threshold}", "a number above 0")])
        self._threshold = threshold

    def compress(self, slice_: Slice, turn: int, left: torch.Tensor, weight: float) -> torch.Tensor:
        step = self._step(left, weight)
        taken = native.take_two_bits(left, float(step), None)
        codes = self._take(left, float(step)) if taken is None else taken.payload
        return torch.cat((step.view(torch.uint8), codes))

    def absorb(
        self, slice_: Slice, turn: int, left: torch.Tensor, values: torch.Tensor, weight: float
    ) -> torch.Tensor:
        step = self._step(left, weight)
        taken = native.take_two_bits(left, float(step), values)
        if taken is None:
            return super().absorb(slice_, turn, left, values, weight)
        self.room(slice_).check(slice_, taken.largest)
        return torch.cat((step.view(torch.uint8), taken.payload))

    def _step(self, left: torch.Tensor, weight: float) -> torch.Tensor:
        return torch.tensor([self._threshold * (weight or 1.0)], dtype=torch.float32, device=left.device)

    def _take(self, left: torch.Tensor, size: float) -> torch.Tensor:
        up, down = left >= size, left <= -size
        left.sub_(up.to(left.dtype).sub_(down.to(left.dtype)), alpha=size)
        return pack(up.to(torch.uint8) | (down.to(torch.uint8) << 1), WIDTH)

    def numbers(self, slice_: Slice, packed: torch.Tensor, count: int) -> torch.Tensor:
        step = float(aligned(packed[:STEP_BYTES], torch.float32))
        if not 0.0 < step < float("inf"):
            raise ProtocolError(f"slice {slice_.index}: a threshold of {step}")
        dtype = working(getattr(torch, slice_.dtype))
        if dtype == torch.float32:
            given = native.give_two_bits(packed[STEP_BYTES:], count, step)
            if given is not None:
                return given
        codes = unpack(packed[STEP_BYTES:], count, WIDTH)
        if int(codes.max()) > DOWN:
            raise ProtocolError(f"slice {slice_.index}: a code that no encoder writes")
        steps = torch.tensor([0.0, step, -step], dtype=dtype, device=codes.device)
        return steps[codes.to(torch.int64)]
