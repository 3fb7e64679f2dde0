"""Forms of a list of real numbers: how exactly each is kept, and in how many bits.

A form knows nothing of slices: dense codecs give it all elements of a slice, sparse ones those that are sent. Every
form checks what it reads: a scale that is not finite, a code that no encoder writes, is refused.

    form      bits an element                 kept
    float32   32                              exactly (of float64: the nearest float32)
    bf16      16                              8 significant bits, float32's range
    fp16      16, and 16 for the list         11 significant bits relative to the list's largest: one power of two
                                              scales all, so nothing overflows, and little is lost to subnormals
    int8      8 + 16/128                      ±127 steps of its block's largest
    int4      4 + 16/64                       ±7 steps
    int2      2 + 16/64                       -1, -1/3, 1/3, 1 of the block's largest: no zero, for sparse values
    sign      1 + 16/1024                     ±mean|x| of its block
"""

from __future__ import annotations

import functools
import math
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable

import torch

from geomx.codecs.pack import native
from geomx.codecs.pack.bits import pack, unpack
from geomx.codecs.pack.columns import Columns
from geomx.codecs.pack.native import Taken
from geomx.errors import NotFinite, ProtocolError

SCALE_BYTES = 2
MOST_EXPONENT = {torch.float32: 126, torch.float64: 1000}  # whose powers of two are normal numbers, both ways


class ValueForm(ABC):
    """One way of writing numbers. `x` is flat, float32 or float64, and finite.

    Attributes:
        columns: How they lie in bytes.
    """

    columns: Columns

    def size_bytes(self, count: int) -> int:
        """What `count` numbers take."""
        return self.columns.size_bytes(count)

    @abstractmethod
    def most(self, dtype: torch.dtype) -> float:
        """The largest |x| in `dtype` that there is room for."""

    @abstractmethod
    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """As bytes. `noise`: uniform in [0, 1), one for each number, where rounding is to be stochastic."""

    @abstractmethod
    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Back, in `dtype`. Raises ProtocolError where no encoder wrote this."""

    def take(self, left: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """As `pack`; leaves in `left`, in place, what the bytes do not carry."""
        taken = self.taken(left, noise)
        if taken is not None:
            return taken.payload
        packed = self.pack(left, noise)
        left.sub_(self.unpack(packed, left.numel(), left.dtype))
        return packed

    def taken(
        self, left: torch.Tensor, noise: torch.Tensor | None, values: torch.Tensor | None = None
    ) -> Taken | None:
        """`take` by a kernel, of left + values where there are values; None where there is none: nothing is done."""
        return None


class Cast(ValueForm):
    """Every number in a float type of its own."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype
        self.columns = Columns(width=8 * dtype.itemsize)

    def most(self, dtype: torch.dtype) -> float:
        return min(torch.finfo(dtype).max, torch.finfo(self._dtype).max)

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        limit = torch.finfo(self._dtype).max
        kept = x.to(self._dtype, copy=True)
        if not math.isfinite(peak(kept)):  # a finite number that the type has no room for
            kept = x.clamp(-limit, limit).to(self._dtype)
        return kept.contiguous().view(torch.uint8)

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        if self._dtype == torch.bfloat16 and dtype == torch.float32:
            given = native.give_half(aligned(packed, self._dtype), self._dtype, count)
            if given is not None:
                return given
        values = aligned(packed, self._dtype).to(dtype)
        if not math.isfinite(peak(values)):
            raise ProtocolError("a number is not finite")
        return values

    def taken(
        self, left: torch.Tensor, noise: torch.Tensor | None, values: torch.Tensor | None = None
    ) -> Taken | None:
        return native.take_bf16(left, values) if self._dtype == torch.bfloat16 else None


class Half(ValueForm):
    """fp16 behind one power of two, an int16: the list's largest number lies in [2^14, 2^15) before rounding."""

    TOP, LARGEST = 15, 32752.0  # fp16's largest number below 2^15: what is larger may be rounded up to that
    columns = Columns(head=SCALE_BYTES, width=16)

    def most(self, dtype: torch.dtype) -> float:
        end = math.frexp(torch.finfo(dtype).max)[1]  # powers of two from here on are Inf
        unrounded = math.ldexp(self.LARGEST, end - self.TOP)
        return min(unrounded, math.nextafter(math.ldexp(1.0, self.TOP + MOST_EXPONENT[dtype]), 0.0))

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        exponent = self._exponent(peak(x), x.dtype)
        halves = x.mul(2.0**-exponent).to(torch.float16).view(torch.uint8)
        return torch.cat((self._head(exponent).to(x.device), halves))

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        exponent = int(aligned(packed[:SCALE_BYTES], torch.int16))
        if abs(exponent) > MOST_EXPONENT[dtype]:
            raise ProtocolError(f"a scale of 2^{exponent}")
        halves = aligned(packed[SCALE_BYTES:], torch.float16)
        if dtype == torch.float32:
            given = native.give_half(halves, torch.float16, count, exponent)
            if given is not None:
                return given
        values = halves.to(dtype).mul_(2.0**exponent)
        if not math.isfinite(peak(values)):
            raise ProtocolError("a number is not finite")
        return values

    def _exponent(self, largest: float, dtype: torch.dtype) -> int:
        if not largest <= self.most(dtype):
            raise NotFinite("a sum over several rounds is NaN, Inf, or too large")
        return max(math.frexp(largest)[1] - self.TOP, -MOST_EXPONENT[dtype]) if largest else 0

    def _head(self, exponent: int) -> torch.Tensor:
        return torch.tensor([exponent], dtype=torch.int16).view(torch.uint8)

    def taken(
        self, left: torch.Tensor, noise: torch.Tensor | None, values: torch.Tensor | None = None
    ) -> Taken | None:
        if not native.has_fp16(left):
            return None
        added = (0.0, peak(left)) if values is None else native.add(left, values)
        if added is None:
            return None
        largest, largest_sum = added
        if not largest <= self.most(left.dtype):
            return Taken(left[:0].view(torch.uint8), largest)  # which nobody sends
        exponent = self._exponent(largest_sum, left.dtype)
        return Taken(native.take_fp16(left, exponent, self._head(exponent)), largest)


class ScaledBlocks(ValueForm):
    """Codes of `width` bits, and for each block of `block` numbers a scale (bfloat16, rounded up)."""

    def __init__(self, width: int, block: int) -> None:
        self._width, self._block = width, block
        self.columns = Columns(grain=block, scale=SCALE_BYTES, width=width)
        self._most = (1 << (width - 1)) - 1  # codes lie in ±_most, and are written with _most added

    def most(self, dtype: torch.dtype) -> float:
        return self._most * _value_of(_largest_scale(self._most))

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        scales = [rounded_up(b.abs().amax(1) / self._most, self._most) for b in in_blocks(x, self._block)]
        steps = self._steps(x, scales)
        codes = torch.round(steps) if noise is None else torch.floor(steps.add_(noise))
        codes = codes.clamp_(-self._most, self._most).add_(self._most)
        return torch.cat((torch.cat(scales).view(torch.uint8), pack(codes.to(torch.uint8), self._width)))

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        scales, packed_codes = split_scales(packed, count, self._block, self._most)
        if dtype == torch.float32:
            given = native.give_blocks(scales, packed_codes, count, self._block, self._width)
            if given is not None:
                return given
        codes = unpack(packed_codes, count, self._width)
        if count and int(codes.max()) > 2 * self._most:
            raise ProtocolError("a code lies outside its range")
        values = codes.to(dtype).sub_(self._most)
        return scaled(values, scales, self._block)

    def _steps(self, x: torch.Tensor, scales: list[torch.Tensor]) -> torch.Tensor:
        return scaled(x.clone(), inverses(scales, 1.0, x.dtype), self._block)

    def taken(
        self, left: torch.Tensor, noise: torch.Tensor | None, values: torch.Tensor | None = None
    ) -> Taken | None:
        return native.take_blocks(left, self._block, self._width, _largest_scale(self._most), noise, values)


class Thirds(ValueForm):
    """Two bits: ±1 and ±1/3 of the block's largest. For numbers that are not near zero, as sparse ones are not."""

    WIDTH, BLOCK = 2, 64
    columns = Columns(grain=BLOCK, scale=SCALE_BYTES, width=WIDTH)

    def most(self, dtype: torch.dtype) -> float:
        return _value_of(_largest_scale(1))

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        scales = [rounded_up(block.abs().amax(1)) for block in in_blocks(x, self.BLOCK)]
        steps = scaled(x.clone(), inverses(scales, 1.5, x.dtype), self.BLOCK).add_(1.5)  # 0, 1, 2, 3
        codes = torch.round(steps).clamp_(0, 3).to(torch.uint8)
        return torch.cat((torch.cat(scales).view(torch.uint8), pack(codes, self.WIDTH)))

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        scales, codes = split_scales(packed, count, self.BLOCK)
        if dtype == torch.float32:
            given = native.give_thirds(scales, codes, count, self.BLOCK)
            if given is not None:
                return given
        thirds = unpack(codes, count, self.WIDTH).to(dtype).sub_(1.5).div_(1.5)
        return scaled(thirds, scales, self.BLOCK)

    def taken(
        self, left: torch.Tensor, noise: torch.Tensor | None, values: torch.Tensor | None = None
    ) -> Taken | None:
        return None if values is not None else native.take_thirds(left, self.BLOCK, _largest_scale(1))


class Sign(ValueForm):
    """One bit: the sign, times the mean of its block's |x| (1-bit Adam, arXiv 2102.02888)."""

    BLOCK = native.SIGN_BLOCK
    columns = Columns(grain=BLOCK, scale=SCALE_BYTES, width=1)

    def most(self, dtype: torch.dtype) -> float:
        return _value_of(_largest_scale(1))

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        scales = [rounded_up(tree_sum(b.abs()) / b.shape[1]) for b in in_blocks(x, self.BLOCK)]
        return torch.cat((torch.cat(scales).view(torch.uint8), pack((x >= 0).to(torch.uint8), 1)))

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        scales, codes = split_scales(packed, count, self.BLOCK)
        if dtype == torch.float32:
            given = native.give_signs(scales, codes, count)
            if given is not None:
                return given
        return scaled(unpack(codes, count, 1).to(dtype).mul_(2).sub_(1), scales, self.BLOCK)

    def taken(
        self, left: torch.Tensor, noise: torch.Tensor | None, values: torch.Tensor | None = None
    ) -> Taken | None:
        return native.take_signs(left, _largest_scale(1), values)


def peak(x: torch.Tensor) -> float:
    """The largest |x|, 0 of no elements; NaN or Inf where there is one."""
    found = native.peak(x)
    if found is None:
        low, high = torch.aminmax(x) if x.numel() else (0.0, 0.0)
        found = max(abs(float(low)), abs(float(high)))
    return found


def aligned(packed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Bytes seen as `dtype`; copied where they do not lie as such a view needs them."""
    if packed.data_ptr() % dtype.itemsize or packed.storage_offset() % dtype.itemsize:
        packed = packed.clone()
    return packed.view(dtype)


def in_blocks(x: torch.Tensor, block: int) -> list[torch.Tensor]:
    """Views [blocks, block] of the whole blocks, and [1, rest] of what is left."""
    whole = x.numel() - x.numel() % block
    parts = [x[:whole].view(-1, block)] if whole else []
    return parts + ([x[whole:].view(1, -1)] if whole < x.numel() else [])


def scaled(x: torch.Tensor, scales: torch.Tensor, block: int) -> torch.Tensor:
    """`x` with each block multiplied, in place, by its scale."""
    place = 0
    for part in in_blocks(x, block):
        part.mul_(scales[place : place + part.shape[0]].to(x.dtype).unsqueeze(1))
        place += part.shape[0]
    return x


def rounded_up(scales: torch.Tensor, most: int = 1) -> torch.Tensor:
    """Non-negative scales as bfloat16, not smaller than they were unless `most` of them would overflow float32."""
    bits = scales.to(torch.float32).view(torch.int32)
    up = ((bits + 0xFFFF) >> 16).clamp_(max=_largest_scale(most))
    return up.to(torch.int16).view(torch.bfloat16)


def inverses(scales: list[torch.Tensor], over: float, dtype: torch.dtype) -> torch.Tensor:
    """`over` / scale for each block, the largest number that there is at most; 0 where the scale is 0."""
    most = torch.finfo(dtype).max
    return torch.cat([torch.where(s > 0, (over / s.to(dtype)).clamp_(max=most), 0.0) for s in scales])


@functools.cache
def _largest_scale(most: int) -> int:
    """The bits of the largest bfloat16 that float32 holds `most` times."""
    largest = torch.tensor(torch.finfo(torch.float32).max / most, dtype=torch.float32)
    return int(largest.view(torch.int32)) >> 16


def _value_of(scale: int) -> float:
    """A bfloat16 by its bits."""
    return float(struct.unpack("<f", struct.pack("<I", scale << 16))[0])


def split_scales(
    packed: torch.Tensor, count: int, block: int, most: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales (bfloat16) and the packed codes of a blockwise form; scales that no encoder writes are refused."""
    head = SCALE_BYTES * -(-count // block)
    scales = aligned(packed[:head], torch.bfloat16)
    bits = scales.view(torch.int16)
    if count and not 0 <= int(bits.min()) <= int(bits.max()) <= _largest_scale(most):
        raise ProtocolError("a scale is negative, or too large")
    return scales, packed[head:]


def tree_sum(blocks: torch.Tensor) -> torch.Tensor:
    """The sum of each row, added in the order of a fixed tree: the same bits on every machine."""
    while blocks.shape[1] > 1:
        half = blocks.shape[1] // 2
        rest = blocks[:, 2 * half :]
        blocks = blocks[:, :half] + blocks[:, half : 2 * half]
        if rest.shape[1]:
            blocks = torch.cat((blocks, rest), 1)
    return blocks[:, 0]


FORMS: dict[str, Callable[[], ValueForm]] = {
    "float32": lambda: Cast(torch.float32),
    "bf16": lambda: Cast(torch.bfloat16),
    "fp16": Half,
    "int8": lambda: ScaledBlocks(8, 128),
    "int4": lambda: ScaledBlocks(4, 64),
    "int2": Thirds,
    "sign": Sign,
}
