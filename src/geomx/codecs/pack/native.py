"""The compiled inner loops of the codecs (kernels/), where the package was built with a C compiler.

Each function does what the torch operations beside its caller do, with the same bits, or returns None where it cannot:
not compiled, not on the CPU, not float32, or switched off. `take_...` gives a payload and leaves in
`left`, in place, what the payload does not carry; `give_...` is the way back. A `take_...` that is given values takes
from left + values, in one pass over memory, and says how large they are. ctypes lets other threads run meanwhile.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch

from geomx.codecs.pack.library import load
from geomx.errors import ProtocolError

SCALE_BYTES = 2
SIGN_BLOCK = 1024  # of kernels/kernels.h
_LARGEST = 0x7F7FFFFF  # the bits of float32's largest number
_FAULTS = {
    1: "a code lies outside its range",
    2: "bits are set behind the last field",
    3: "the indices are not as many as announced",
    4: "an index lies outside the slice",
}
_library = load()


class Taken(NamedTuple):
    """What a kernel has taken out of `left`. `largest`: |value| of what was added before; NaN or Inf where one is."""

    payload: torch.Tensor
    largest: float


def available() -> bool:
    """Whether the kernels are there and switched on."""
    return _library is not None


def switch_off() -> None:
    """Use torch operations alone from now on, in all threads."""
    global _library  # noqa: PLW0603 (there is one library in a process)
    _library = None


@contextmanager
def switched_off() -> Iterator[None]:
    """Use torch operations alone, for comparisons; in all threads."""
    global _library  # noqa: PLW0603 (there is one library in a process)
    library, _library = _library, None
    try:
        yield
    finally:
        _library = library


def _for(x: torch.Tensor, values: torch.Tensor | None = None) -> ctypes.CDLL | None:
    """The library, where it can read and write these tensors."""
    fits = x.dtype == torch.float32 and x.device.type == "cpu" and x.is_contiguous()
    return _library if fits and (values is None or _for(values)) else None


def _at(x: torch.Tensor | None) -> int | None:
    return None if x is None else x.data_ptr()


def _checked(fault: int) -> None:
    if fault:
        raise ProtocolError(_FAULTS[fault])


def peak(x: torch.Tensor) -> float | None:
    """The largest |x|, 0 of no elements; NaN or Inf where there is one."""
    if (library := _for(x)) is None:
        return None
    return _float(library.largest_bits(x.data_ptr(), x.numel()))


def add(left: torch.Tensor, values: torch.Tensor) -> tuple[float, float] | None:
    """left += values; the largest |values| and then |left|, or NaN or Inf where there is one."""
    if (library := _for(left, values)) is None:
        return None
    sums = ctypes.c_uint32()
    largest = library.add_to(left.data_ptr(), values.data_ptr(), left.numel(), ctypes.byref(sums))
    return _float(largest), _float(sums.value)


def scale(x: torch.Tensor, weight: float, out: torch.Tensor) -> float | None:
    """out = x · weight, where `out` may be `x`; the largest |out|, or NaN or Inf where there is one."""
    if (library := _for(x, out)) is None:
        return None
    return _float(library.scale_to(x.data_ptr(), x.numel(), weight, out.data_ptr()))


def add_up(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor) -> float | None:
    """out = x + y; the largest |out|, or NaN or Inf where there is one."""
    if (library := _for(x, y)) is None or _for(out) is None:
        return None
    return _float(library.sum_to(x.data_ptr(), y.data_ptr(), x.numel(), out.data_ptr()))


def _float(bits: int) -> float:
    return ctypes.c_float.from_buffer(ctypes.c_uint32(bits)).value


# -- every element --------------------------------------------------------------------------------------------


class _Payload:
    """A payload in two parts, both seen as memory: a scale for each block, and codes."""

    def __init__(self, count: int, block: int, width: int) -> None:
        scales = SCALE_BYTES * -(-count // block)
        self.whole = torch.empty(scales + (count * width + 7) // 8, dtype=torch.uint8)
        self.scales = self.whole.data_ptr()
        self.codes = self.scales + scales


def take_blocks(
    left: torch.Tensor,
    block: int,
    width: int,
    most_scale: int,
    noise: torch.Tensor | None,
    values: torch.Tensor | None,
) -> Taken | None:
    """See `values.ScaledBlocks`."""
    if (library := _for(left, values)) is None:
        return None
    count, out = left.numel(), _Payload(left.numel(), block, width)
    largest = library.take_blocks(
        left.data_ptr(), _at(values), count, block, width, most_scale, _at(noise), out.scales, out.codes
    )
    return Taken(out.whole, _float(largest))


def take_thirds(left: torch.Tensor, block: int, most_scale: int) -> Taken | None:
    """See `values.Thirds`."""
    if (library := _for(left)) is None:
        return None
    out = _Payload(left.numel(), block, 2)
    library.take_thirds(left.data_ptr(), left.numel(), block, most_scale, out.scales, out.codes)
    return Taken(out.whole, 0.0)


def take_signs(left: torch.Tensor, most_scale: int, values: torch.Tensor | None) -> Taken | None:
    """See `values.Sign`."""
    if (library := _for(left, values)) is None:
        return None
    out = _Payload(left.numel(), SIGN_BLOCK, 1)
    largest = library.take_signs(
        left.data_ptr(), _at(values), left.numel(), most_scale, out.scales, out.codes
    )
    return Taken(out.whole, _float(largest))


def give_blocks(
    scales: torch.Tensor, codes: torch.Tensor, count: int, block: int, width: int
) -> torch.Tensor | None:
    """Numbers of `values.ScaledBlocks`; `scales` bfloat16 and checked, `codes` uint8. Raises ProtocolError."""
    out = torch.empty(count, dtype=torch.float32, device=codes.device)
    if (library := _for(out)) is None:
        return None
    _checked(library.give_blocks(scales.data_ptr(), codes.data_ptr(), count, block, width, out.data_ptr()))
    return out


def give_thirds(scales: torch.Tensor, codes: torch.Tensor, count: int, block: int) -> torch.Tensor | None:
    """Numbers of `values.Thirds`; see `give_blocks`."""
    out = torch.empty(count, dtype=torch.float32, device=codes.device)
    if (library := _for(out)) is None:
        return None
    _checked(library.give_thirds(scales.data_ptr(), codes.data_ptr(), count, block, out.data_ptr()))
    return out


def give_signs(scales: torch.Tensor, codes: torch.Tensor, count: int) -> torch.Tensor | None:
    """Numbers of `values.Sign`; see `give_blocks`."""
    out = torch.empty(count, dtype=torch.float32, device=codes.device)
    if (library := _for(out)) is None:
        return None
    _checked(library.give_signs(scales.data_ptr(), codes.data_ptr(), count, out.data_ptr()))
    return out


def take_two_bits(left: torch.Tensor, step: float, values: torch.Tensor | None) -> Taken | None:
    """Codes of `two_bit.TwoBit`."""
    if (library := _for(left, values)) is None:
        return None
    codes = torch.empty(-(-left.numel() // 4), dtype=torch.uint8)
    largest = library.take_two_bits(left.data_ptr(), _at(values), left.numel(), step, codes.data_ptr())
    return Taken(codes, _float(largest))


def give_two_bits(codes: torch.Tensor, count: int, step: float) -> torch.Tensor | None:
    """Numbers of `two_bit.TwoBit`. Raises ProtocolError."""
    out = torch.empty(count, dtype=torch.float32, device=codes.device)
    if (library := _for(out)) is None:
        return None
    _checked(library.give_two_bits(codes.data_ptr(), count, step, out.data_ptr()))
    return out


def take_bf16(left: torch.Tensor, values: torch.Tensor | None) -> Taken | None:
    """bfloat16 of left, as bytes."""
    if (library := _for(left, values)) is None:
        return None
    out = torch.empty(2 * left.numel(), dtype=torch.uint8)
    largest = library.take_bf16(left.data_ptr(), _at(values), left.numel(), out.data_ptr())
    return Taken(out, _float(largest))


def has_fp16(left: torch.Tensor) -> bool:
    """Whether there is a kernel that takes float16 from this tensor."""
    library = _for(left)
    return library is not None and bool(library.has_fp16())


def take_fp16(left: torch.Tensor, exponent: int, head: torch.Tensor) -> torch.Tensor:
    """`head` (bytes), then float16 of left · 2^-exponent. For tensors of which `has_fp16` says so."""
    assert _library is not None
    out = torch.empty(head.numel() + 2 * left.numel(), dtype=torch.uint8)
    out[: head.numel()] = head
    codes = out.data_ptr() + head.numel()
    _library.take_fp16(left.data_ptr(), left.numel(), 2.0**-exponent, 2.0**exponent, codes)
    return out


def give_half(packed: torch.Tensor, dtype: torch.dtype, count: int, exponent: int = 0) -> torch.Tensor | None:
    """The way back, into float32; `packed` as its type lies in memory. Raises ProtocolError for NaN and Inf."""
    out = torch.empty(count, dtype=torch.float32, device=packed.device)
    library = _for(out)
    if library is None or not (dtype == torch.bfloat16 or library.has_fp16()):
        return None
    if dtype == torch.bfloat16:
        largest = library.give_bf16(packed.data_ptr(), count, out.data_ptr())
    else:
        largest = library.give_fp16(packed.data_ptr(), count, 2.0**exponent, out.data_ptr())
    if largest > _LARGEST:
        raise ProtocolError("a number is not finite")
    return out


# -- some elements --------------------------------------------------------------------------------------------


def kth_largest(x: torch.Tensor, rank: int, start: int = 0, stride: int = 1) -> float | None:
    """The `rank`-th largest of |x[start::stride]|, from 1."""
    if (library := _for(x)) is None:
        return None
    return float(library.kth_largest(x.data_ptr(), x.numel(), start, stride, rank))


def at_least(x: torch.Tensor, bound: float, room: int) -> torch.Tensor | None:
    """Rising indices of |x| ≥ bound, of x ≠ 0 where it is 0; more than `room` of them where there are more."""
    if (library := _for(x)) is None:
        return None
    out = torch.empty(room, dtype=torch.int64)
    count = library.at_least(x.data_ptr(), x.numel(), bound, out.data_ptr(), room)
    return out[:count] if count <= room else None


class Added(NamedTuple):
    """What is added to a residual: values, or with a velocity u ← momentum · u + values."""

    values: torch.Tensor
    velocity: torch.Tensor | None = None
    momentum: float = 0.0


def sample_sums(left: torch.Tensor, added: Added, start: int, stride: int) -> torch.Tensor | None:
    """What left[start::stride] would be; nothing is added."""
    if (library := _for(left, added.values)) is None:
        return None
    count, out = left.numel(), torch.empty(-(-(left.numel() - start) // stride), dtype=torch.float32)
    library.sample_sums(left.data_ptr(), *_pointers(added), count, start, stride, out.data_ptr())
    return out


def add_at_least(
    left: torch.Tensor, added: Added, bound: float, room: int
) -> tuple[torch.Tensor | None, float]:
    """Add to left; then `at_least`, and the largest |values|. For tensors that `sample_sums` has taken."""
    assert _library is not None
    out, largest = torch.empty(room, dtype=torch.int64), ctypes.c_uint32()
    count = _library.add_at_least(
        left.data_ptr(),
        *_pointers(added),
        left.numel(),
        bound,
        out.data_ptr(),
        room,
        ctypes.byref(largest),
    )
    return (out[:count] if count <= room else None), _float(largest.value)


def _pointers(added: Added) -> tuple[int | None, int | None, float]:
    return _at(added.velocity), _at(added.values), added.momentum


def gather(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor | None:
    """x[indices]; the indices (int64) must lie inside."""
    if (library := _for(x)) is None:
        return None
    out = torch.empty(indices.numel(), dtype=torch.float32)
    library.gather(x.data_ptr(), indices.data_ptr(), indices.numel(), out.data_ptr())
    return out


def scatter(x: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> bool:
    """x[indices] = values, as `gather`; False where it cannot."""
    if (library := _for(x, values)) is None:
        return False
    library.scatter(x.data_ptr(), indices.data_ptr(), indices.numel(), values.data_ptr())
    return True


def spread(indices: torch.Tensor, values: torch.Tensor, elements: int) -> torch.Tensor | None:
    """Zeros, but for `values` at rising indices (int64), which must lie inside."""
    if (library := _for(values)) is None:
        return None
    out = torch.empty(elements, dtype=torch.float32)
    library.spread(out.data_ptr(), elements, indices.data_ptr(), indices.numel(), values.data_ptr())
    return out


def unary_bits(indices: torch.Tensor, first: int, many: int) -> list[int] | None:
    """Bits of the unary part at each of the Rice parameters first, first + 1, ..."""
    if _library is None or indices.device.type != "cpu":
        return None
    sums = (ctypes.c_int64 * many)()
    _library.unary_bits(indices.data_ptr(), indices.numel(), first, many, sums)
    return list(sums)


def pack_rice(indices: torch.Tensor, rice: int, low_bytes: int, stop_bytes: int) -> torch.Tensor | None:
    """See `indices.pack_indices`."""
    if _library is None or indices.device.type != "cpu":
        return None
    out = torch.zeros(low_bytes + stop_bytes, dtype=torch.uint8)
    start = out.data_ptr()
    _library.pack_rice(indices.data_ptr(), indices.numel(), rice, start, start + low_bytes)
    return out


def unpack_rice(
    packed: torch.Tensor, low_bytes: int, count: int, elements: int, rice: int, unary: int
) -> torch.Tensor | None:
    """See `indices.unpack_indices`. Raises ProtocolError."""
    if _library is None or packed.device.type != "cpu":
        return None
    out = torch.empty(count, dtype=torch.int64)
    start = packed.data_ptr()
    _checked(_library.unpack_rice(start, start + low_bytes, count, elements, rice, unary, out.data_ptr()))
    return out


def pack_narrow(values: torch.Tensor) -> torch.Tensor | None:
    """Whole numbers in few bytes; see `narrow.py`."""
    if _library is None:
        return None
    values = values.contiguous()
    count = values.numel()
    packed = torch.empty(9 * count + count // 8 + 24, dtype=torch.uint8)
    size = _library.pack_narrow(values.data_ptr(), count, packed.data_ptr())
    return packed[:size]


def unpack_narrow(packed: torch.Tensor, count: int) -> torch.Tensor | None:
    """The way back."""
    if _library is None:
        return None
    packed, values = packed.contiguous(), torch.empty(count, dtype=torch.int64)
    _checked(_library.unpack_narrow(packed.data_ptr(), packed.numel(), count, values.data_ptr()))
    return values
