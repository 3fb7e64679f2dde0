"""Which elements a sparse form holds: strictly rising indices in few bits.

Two forms, of which the encoder takes the smallest:

    bitmap   one bit an element. The smallest above a density of about 1/5
    rice     the gaps between neighbours, Golomb-Rice coded (Golomb 1966, Rice 1971): the low `r` bits of each as a
             packed field, the rest in unary. For random positions gaps are geometrically distributed, and this is
             within some hundredths of a bit of the entropy: 8.11 bits an index at 1 %, where 8.08 are possible

A form says its own size before it is read (`size_bytes`), and reading checks everything: the number of set bits,
that no index lies outside the slice, that what pads the last byte is zero.
"""

from __future__ import annotations

import torch

from geomx.codecs.pack import native
from geomx.codecs.pack.bits import pack, pack_bits, packed_bytes, unpack, unpack_bits
from geomx.errors import ProtocolError

BITMAP = 255  # in the place of the Rice parameter
MOST_RICE = 31


def choose(indices: torch.Tensor, elements: int) -> tuple[int, int]:
    """The Rice parameter, or BITMAP, with the smallest form; and the bits of its unary part (0 for a bitmap)."""
    bitmap = packed_bytes(elements, 1)
    count = indices.numel()
    best, best_unary, best_bytes = BITMAP, 0, bitmap
    if not count:
        return 0, 0
    likely = likely_rice(count, elements)
    rices = range(max(0, likely - 1), min(MOST_RICE, likely + 1) + 1)
    unaries = native.unary_bits(indices, rices.start, len(rices))
    if unaries is None:
        gaps = gaps_of(indices)
        unaries = [int((gaps >> rice).sum()) + count for rice in rices]
    for rice, unary in zip(rices, unaries, strict=True):
        size = packed_bytes(count, rice) + packed_bytes(unary, 1)
        if size < best_bytes:
            best, best_unary, best_bytes = rice, unary, size
    return best, best_unary


def likely_rice(count: int, elements: int) -> int:
    """The Rice parameter that is about the best for `count` indices, one or more, at random places."""
    return max(0, (elements // count).bit_length() - 1)


def gaps_of(indices: torch.Tensor) -> torch.Tensor:
    """How many elements are skipped before each index (int64)."""
    gaps = indices.clone()
    gaps[1:] -= indices[:-1] + 1
    return gaps


def pack_indices(indices: torch.Tensor, elements: int, rice: int, unary: int) -> torch.Tensor:
    """Rising indices (int64, flat) in the form that `choose` found, as bytes."""
    if rice == BITMAP:
        bits = torch.zeros(elements, dtype=torch.uint8, device=indices.device)
        bits[indices] = 1
        return pack_bits(bits)
    packed = native.pack_rice(indices, rice, packed_bytes(indices.numel(), rice), packed_bytes(unary, 1))
    if packed is not None:
        return packed
    gaps = gaps_of(indices)
    stops = torch.zeros(unary, dtype=torch.uint8, device=indices.device)
    stops[((gaps >> rice) + 1).cumsum(0) - 1] = 1
    return torch.cat((pack(gaps & ((1 << rice) - 1), rice), pack_bits(stops)))


def size_bytes(count: int, elements: int, rice: int, unary: int) -> int:
    """The size of a form. Raises ProtocolError where no such form exists."""
    if rice == BITMAP:
        if unary or count > elements:
            raise ProtocolError(f"a bitmap of {elements} elements holds {count} indices")
        return packed_bytes(elements, 1)
    if rice > MOST_RICE or not count <= unary <= count + (elements >> rice):
        raise ProtocolError(f"{count} of {elements} elements do not take {unary} unary bits at 2^{rice}")
    return packed_bytes(count, rice) + packed_bytes(unary, 1)


def unpack_indices(packed: torch.Tensor, count: int, elements: int, rice: int, unary: int) -> torch.Tensor:
    """The inverse of `pack_indices` (int64, flat). `packed` has `size_bytes` bytes."""
    if rice == BITMAP:
        indices = unpack_bits(packed, elements).nonzero().view(-1)
        if indices.numel() != count:
            raise ProtocolError(f"a bitmap holds {indices.numel()} indices; {count} are announced")
        return indices
    low = packed_bytes(count, rice)
    given = native.unpack_rice(packed, low, count, elements, rice, unary)
    if given is not None:
        return given
    stops = unpack_bits(packed[low:], unary).nonzero().view(-1)
    if stops.numel() != count or unary != (int(stops[-1]) + 1 if count else 0):
        raise ProtocolError(f"{stops.numel()} gaps are coded where {count} are announced")
    high = stops.clone()
    high[1:] -= stops[:-1] + 1
    gaps = (high << rice) | unpack(packed[:low], count, rice)
    indices = (gaps + 1).cumsum(0) - 1
    if count and int(indices[-1]) >= elements:
        raise ProtocolError(f"index {int(indices[-1])} lies outside {elements} elements")
    return indices
