"""Codecs that keep every element, in fewer bits: one list of numbers for all of a slice.

    fp16    scaled by a power of two for each slice: no Inf, whatever the values; tiny slices as well
    bf16    float32's range, 8 bits of precision; tiny slices as well
    int8    ±127 steps of the largest of each 128 elements
    int4    ±7 steps of the largest of each 64
    sign    1 bit an element, times the mean of |x| over each 1024 (1-bit Adam: Tang et al., ICML 2021)

Sums are never in these forms: a server decodes, adds in float32 or float64, and encodes anew. GeoMX adds in FP16, and
its values overflow. `stochastic = true` of int8 and int4 rounds up with the probability that makes the mean right.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch

from geomx.codecs.blocks import cut_alike, joined, laid_out
from geomx.codecs.contract import Block, Codec, Room
from geomx.codecs.dense import Dense
from geomx.codecs.error_feedback import SIZE_LOWER_BOUND, Lossy, working
from geomx.codecs.pack.columns import Columns
from geomx.codecs.pack.noise import RngKey, uniform
from geomx.codecs.pack.values import FORMS
from geomx.errors import ProtocolError
from geomx.layout import Slice


class Every(Lossy):
    """Sends every element, in a list of numbers.

    Attributes:
        form: What the numbers are, for messages.
        columns: How they lie in bytes.
    """

    form: str
    columns: Columns

    @abstractmethod
    def numbers(self, slice_: Slice, packed: torch.Tensor, count: int) -> torch.Tensor:
        """Decode a list of `count` numbers of a slice, which has `columns.size_bytes(count)` bytes.

        Returns:
            Values of shape (count,), in the dtype of the slice's residual.

        Raises:
            ProtocolError: `compress` cannot have written these bytes.
        """

    def expand(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        if not self.possible(slice_.elements, payload.numel()):
            raise ProtocolError(f"slice {slice_.index}: {payload.numel()} bytes are no {self.form}")
        return self.numbers(slice_, payload, slice_.elements)

    def possible(self, elements: int, size: int) -> bool:
        return size == self.columns.size_bytes(elements)

    def cut(self, slice_: Slice, payload: torch.Tensor, most_bytes: int) -> list[Block]:
        return cut_alike(slice_, payload, self.columns, most_bytes)

    def expand_blocks(self, slice_: Slice, blocks: Sequence[Block]) -> torch.Tensor:
        if not blocks:
            return super().expand_blocks(slice_, blocks)
        found, payload = joined(slice_, blocks, self.columns)
        values = self.numbers(slice_, payload, sum(stop - start for start, stop, _ in found))
        return laid_out(values, found, slice_.elements)


class Whole(Every):
    """Sends every element in one number form, which subclasses name."""

    def __init__(
        self, stream: RngKey, tiny: Codec | None = None, size_lower_bound: int = SIZE_LOWER_BOUND
    ) -> None:
        super().__init__(stream, tiny, size_lower_bound)
        self._form = FORMS[self.form]()
        self.columns = self._form.columns

    def compress(self, slice_: Slice, turn: int, left: torch.Tensor, weight: float) -> torch.Tensor:
        return self._form.take(left, self.noise(slice_, turn, left))

    def noise(self, slice_: Slice, turn: int, left: torch.Tensor) -> torch.Tensor | None:
        """Uniform in [0, 1), where rounding is to be stochastic."""
        return None

    def absorb(
        self, slice_: Slice, turn: int, left: torch.Tensor, values: torch.Tensor, weight: float
    ) -> torch.Tensor:
        taken = self._form.taken(left, self.noise(slice_, turn, left), values)
        if taken is None:
            return super().absorb(slice_, turn, left, values, weight)
        self.room(slice_).check(slice_, taken.largest)
        return taken.payload

    def numbers(self, slice_: Slice, packed: torch.Tensor, count: int) -> torch.Tensor:
        return self._form.unpack(packed, count, working(getattr(torch, slice_.dtype)))

    def room(self, slice_: Slice) -> Room:
        return Room(self._form.most(working(getattr(torch, slice_.dtype))), self.form)


class FP16(Whole):
    """Sends float16, scaled by a power of two for each slice, so that nothing overflows. No parameters."""

    form = "fp16"


class BF16(Whole):
    """Sends bfloat16. No parameters."""

    form = "bf16"


class Quantized(Whole):
    """Sends multiples of a fraction of each block's largest magnitude.

    Args:
        stream: The key of its random numbers.
        stochastic: Round up or down by chance, so that the mean is right; else to the nearest.
        size_lower_bound: Tensors with fewer elements travel dense.
    """

    def __init__(
        self, stream: RngKey, *, stochastic: bool = False, size_lower_bound: int = SIZE_LOWER_BOUND
    ) -> None:
        super().__init__(stream, Dense(), size_lower_bound)
        self._stochastic = stochastic

    def noise(self, slice_: Slice, turn: int, left: torch.Tensor) -> torch.Tensor | None:
        if not self._stochastic:
            return None
        return uniform(self.stream.key(turn, slice_), left.numel(), left.device)


class Int8(Quantized):
    """Sends a byte for each element: ±127 steps of the largest of each 128. Parameters as `Quantized`."""

    form = "int8"


class Int4(Quantized):
    """Sends half a byte for each element: ±7 steps of the largest of each 64. Parameters as `Quantized`."""

    form = "int4"


class SignBit(Whole):
    """Sends the sign of each element, and the mean magnitude of each 1024 (1-bit Adam: Tang et al., ICML 2021).

    Args:
        stream: The key of its random numbers, which it does not use.
        size_lower_bound: Tensors with fewer elements travel dense.
    """

    form = "sign"

    def __init__(self, stream: RngKey, *, size_lower_bound: int = SIZE_LOWER_BOUND) -> None:
        super().__init__(stream, Dense(), size_lower_bound)
