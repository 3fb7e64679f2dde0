"""Fields of a few bits each, packed without gaps: the bottom of every small encoding.

Bit order is little-endian throughout: field 0 takes the lowest bits of byte 0. What does not fill the last byte is
zero, and is checked to be when it is read, so that one sequence of fields has exactly one form.
"""

from __future__ import annotations

import torch

from geomx.errors import ProtocolError

BYTE = 8


def packed_bytes(count: int, width: int) -> int:
    """The bytes that `count` fields of `width` bits take."""
    return (count * width + BYTE - 1) // BYTE


def pack_bits(bits: torch.Tensor) -> torch.Tensor:
    """Bits (flat, bool or 0 and 1 in uint8) as bytes."""
    padded = torch.nn.functional.pad(bits.to(torch.uint8), (0, -bits.numel() % BYTE)).view(-1, BYTE)
    places = torch.arange(BYTE, dtype=torch.uint8, device=bits.device)
    return (padded << places).sum(1, dtype=torch.uint8)


def unpack_bits(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The first `count` bits of `packed` as 0 and 1 in uint8. Raises ProtocolError where the rest is not zero."""
    places = torch.arange(BYTE, dtype=torch.uint8, device=packed.device)
    bits = ((packed.unsqueeze(1) >> places) & 1).view(-1)
    if bits[count:].any():
        raise ProtocolError("bits are set behind the last field")
    return bits[:count]


def pack(fields: torch.Tensor, width: int) -> torch.Tensor:
    """Fields (flat, non-negative integers below 2^width) as bytes. `width`: 0 to 32."""
    if width == 0:
        return torch.empty(0, dtype=torch.uint8, device=fields.device)
    if width == BYTE:
        return fields.to(torch.uint8)
    if BYTE % width == 0:
        return _pack_whole(fields.to(torch.uint8), width)
    places = torch.arange(width, dtype=torch.int64, device=fields.device)
    return pack_bits(((fields.to(torch.int64).unsqueeze(1) >> places) & 1).view(-1))


def unpack(packed: torch.Tensor, count: int, width: int) -> torch.Tensor:
    """`count` fields of `width` bits: uint8 where they fit into a byte, else int64."""
    if width == 0:
        return torch.zeros(count, dtype=torch.uint8, device=packed.device)
    if width == BYTE:
        return packed
    if BYTE % width == 0:
        return _unpack_whole(packed, count, width)
    places = torch.arange(width, dtype=torch.int64, device=packed.device)
    bits = unpack_bits(packed, count * width).view(count, width)
    fields = (bits.to(torch.int64) << places).sum(1)
    return fields.to(torch.uint8) if width < BYTE else fields


def _pack_whole(fields: torch.Tensor, width: int) -> torch.Tensor:
    """Fields of 1, 2 or 4 bits: a byte is so many whole ones."""
    each = BYTE // width
    padded = torch.nn.functional.pad(fields, (0, -fields.numel() % each)).view(-1, each)
    packed = padded[:, 0].clone()
    for place in range(1, each):
        packed |= padded[:, place] << (width * place)
    return packed


def _unpack_whole(packed: torch.Tensor, count: int, width: int) -> torch.Tensor:
    each = BYTE // width
    places = torch.arange(0, BYTE, width, dtype=torch.uint8, device=packed.device)
    fields = ((packed.unsqueeze(1) >> places) & ((1 << width) - 1)).view(-1)
    if fields[count:].any():
        raise ProtocolError("bits are set behind the last field")
    return fields[:count] if each > 1 else fields
