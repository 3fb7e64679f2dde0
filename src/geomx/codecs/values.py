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

from collections.abc import Callable
from typing import Protocol

import torch

from geomx.codecs.bits import pack, packed_bytes, unpack
from geomx.errors import ProtocolError

SCALE_BYTES = 2
MOST_EXPONENT = 1000  # of float64's numbers, 1023 at most


class Form(Protocol):
    """One way of writing numbers. `x` is flat, float32 or float64, and finite."""

    def size_bytes(self, count: int) -> int:
        """What `count` numbers take."""

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        """As bytes. `noise`: uniform in [0, 1), one for each number, where rounding is to be stochastic."""

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        """Back, in `dtype`. Raises ProtocolError where no encoder wrote this."""


class Cast:
    """Every number in a float type of its own."""

    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def size_bytes(self, count: int) -> int:
        return count * self._dtype.itemsize

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        limit = torch.finfo(self._dtype).max
        kept = x.to(self._dtype)
        if not bool(torch.isfinite(kept).all()):  # a finite number that the type has no room for
            kept = x.clamp(-limit, limit).to(self._dtype)
        return kept.contiguous().view(torch.uint8)

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        values = aligned(packed, self._dtype).to(dtype)
        if count and not bool(torch.isfinite(values).all()):
            raise ProtocolError("a number is not finite")
        return values


class Half:
    """fp16 behind one power of two, an int16: the list's largest number lies in [2^14, 2^15) before rounding."""

    TOP = 15

    def size_bytes(self, count: int) -> int:
        return SCALE_BYTES + 2 * count

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        largest = float(torch.linalg.vector_norm(x, float("inf"))) if x.numel() else 0.0
        exponent = int(torch.frexp(torch.tensor(largest, dtype=torch.float64)).exponent) - self.TOP
        exponent = max(exponent, -MOST_EXPONENT) if largest else 0
        scaled = x.mul(2.0**-exponent).to(torch.float16)
        head = torch.tensor([exponent], dtype=torch.int16, device=x.device)
        return torch.cat((head.view(torch.uint8), scaled.view(torch.uint8)))

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        exponent = int(aligned(packed[:SCALE_BYTES], torch.int16))
        if abs(exponent) > MOST_EXPONENT:
            raise ProtocolError(f"a scale of 2^{exponent}")
        values = aligned(packed[SCALE_BYTES:], torch.float16).to(dtype).mul_(2.0**exponent)
        if not bool(torch.isfinite(values).all()):
            raise ProtocolError("a number is not finite")
        return values


class Blocks:
    """Codes of `width` bits, and for each block of `block` numbers a scale (bfloat16, rounded up)."""

    def __init__(self, width: int, block: int) -> None:
        self._width, self._block = width, block
        self._most = (1 << (width - 1)) - 1  # codes lie in ±_most, and are written with _most added

    def size_bytes(self, count: int) -> int:
        return SCALE_BYTES * -(-count // self._block) + packed_bytes(count, self._width)

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        scales = [rounded_up(b.abs().amax(1) / self._most, self._most) for b in in_blocks(x, self._block)]
        steps = self._steps(x, scales)
        codes = torch.round(steps) if noise is None else torch.floor(steps.add_(noise))
        codes = codes.clamp_(-self._most, self._most).add_(self._most)
        return torch.cat((torch.cat(scales).view(torch.uint8), pack(codes.to(torch.uint8), self._width)))

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        scales, codes = split_scales(packed, count, self._block, self._width, self._most)
        if count and int(codes.max()) > 2 * self._most:
            raise ProtocolError("a code lies outside its range")
        values = codes.to(dtype).sub_(self._most)
        return scaled(values, scales, self._block)

    def _steps(self, x: torch.Tensor, scales: list[torch.Tensor]) -> torch.Tensor:
        inverse = [torch.where(s > 0, 1.0 / s.to(x.dtype), 0.0) for s in scales]
        return scaled(x.clone(), torch.cat(inverse), self._block)


class Thirds:
    """Two bits: ±1 and ±1/3 of the block's largest. For numbers that are not near zero, as sparse ones are not."""

    WIDTH, BLOCK = 2, 64

    def size_bytes(self, count: int) -> int:
        return SCALE_BYTES * -(-count // self.BLOCK) + packed_bytes(count, self.WIDTH)

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        scales = [rounded_up(block.abs().amax(1)) for block in in_blocks(x, self.BLOCK)]
        inverse = torch.cat([torch.where(s > 0, 1.5 / s.to(x.dtype), 0.0) for s in scales])
        steps = scaled(x.clone(), inverse, self.BLOCK).add_(1.5)  # 0, 1, 2, 3
        codes = torch.round(steps) if noise is None else torch.floor(steps.add_(noise))
        return torch.cat(
            (torch.cat(scales).view(torch.uint8), pack(codes.clamp_(0, 3).to(torch.uint8), self.WIDTH))
        )

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        scales, codes = split_scales(packed, count, self.BLOCK, self.WIDTH)
        return scaled(codes.to(dtype).sub_(1.5).div_(1.5), scales, self.BLOCK)


class Sign:
    """One bit: the sign, times the mean of its block's |x| (1-bit Adam, arXiv 2102.02888)."""

    BLOCK = 1024

    def size_bytes(self, count: int) -> int:
        return SCALE_BYTES * -(-count // self.BLOCK) + packed_bytes(count, 1)

    def pack(self, x: torch.Tensor, noise: torch.Tensor | None = None) -> torch.Tensor:
        scales = [rounded_up(tree_sum(b.abs()) / b.shape[1]) for b in in_blocks(x, self.BLOCK)]
        return torch.cat((torch.cat(scales).view(torch.uint8), pack((x >= 0).to(torch.uint8), 1)))

    def unpack(self, packed: torch.Tensor, count: int, dtype: torch.dtype) -> torch.Tensor:
        scales, codes = split_scales(packed, count, self.BLOCK, 1)
        return scaled(codes.to(dtype).mul_(2).sub_(1), scales, self.BLOCK)


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


def _largest_scale(most: int) -> int:
    """The bits of the largest bfloat16 that float32 holds `most` times."""
    return int(torch.tensor(torch.finfo(torch.float32).max / most).view(torch.int32)) >> 16


def split_scales(
    packed: torch.Tensor, count: int, block: int, width: int, most: int = 1
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales (bfloat16) and codes of a blockwise form; scales that no encoder writes are refused."""
    head = SCALE_BYTES * -(-count // block)
    scales = aligned(packed[:head], torch.bfloat16)
    bits = scales.view(torch.int16)
    if count and not 0 <= int(bits.min()) <= int(bits.max()) <= _largest_scale(most):
        raise ProtocolError("a scale is negative, or too large")
    return scales, unpack(packed[head:], count, width)


def tree_sum(blocks: torch.Tensor) -> torch.Tensor:
    """The sum of each row, added in the order of a fixed tree: the same bits on every machine."""
    while blocks.shape[1] > 1:
        half = blocks.shape[1] // 2
        rest = blocks[:, 2 * half :]
        blocks = blocks[:, :half] + blocks[:, half : 2 * half]
        if rest.shape[1]:
            blocks = torch.cat((blocks, rest), 1)
    return blocks[:, 0]


FORMS: dict[str, Callable[[], Form]] = {
    "float32": lambda: Cast(torch.float32),
    "bf16": lambda: Cast(torch.bfloat16),
    "fp16": Half,
    "int8": lambda: Blocks(8, 128),
    "int4": lambda: Blocks(4, 64),
    "int2": Thirds,
    "sign": Sign,
}
