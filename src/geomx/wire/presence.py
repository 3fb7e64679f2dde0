"""Which parts of a slice have a value: the bitmaps that `Push` and `Update` carry.

None means every part. Otherwise part 0 is the lowest bit of the first byte, and the bits behind the last part
are 0. Two contributions are present where either is: a value that is missing counts as zero.
"""

from __future__ import annotations

from collections.abc import Sequence

from geomx.errors import ProtocolError


def pack(present: Sequence[bool]) -> bytes | None:
    """The bitmap of one truth value a part."""
    if all(present):
        return None
    bitmap = bytearray(_size_bytes(len(present)))
    for part, is_present in enumerate(present):
        bitmap[part >> 3] |= is_present << (part & 7)
    return bytes(bitmap)


def unpack(bitmap: bytes | None, parts: int) -> list[bool]:
    """One truth value a part; raises `ProtocolError` where the bitmap is not one of `parts` parts."""
    if bitmap is None:
        return [True] * parts
    _checked(bitmap, parts)
    return [bool(bitmap[part >> 3] >> (part & 7) & 1) for part in range(parts)]


def union(first: bytes | None, second: bytes | None) -> bytes | None:
    """Present in either; raises `ProtocolError` where the two differ in length."""
    if first is None or second is None:
        return None
    if len(first) != len(second):
        raise ProtocolError(f"bitmaps of {len(first)} and {len(second)} bytes do not belong to one slice")
    return bytes(ours | theirs for ours, theirs in zip(first, second, strict=True))


def is_absent(bitmap: bytes | None, parts: int) -> bool:
    """Whether no part has a value; raises `ProtocolError` as `unpack` does."""
    return _checked(bitmap, parts) == 0


def _checked(bitmap: bytes | None, parts: int) -> int:
    if bitmap is None:
        return (1 << parts) - 1
    if len(bitmap) != _size_bytes(parts):
        raise ProtocolError(
            f"a bitmap of {len(bitmap)} bytes for {parts} parts; {_size_bytes(parts)} are needed"
        )
    bits = int.from_bytes(bitmap, "little")
    if bits >> parts:
        raise ProtocolError(f"a bitmap marks part {bits.bit_length() - 1} of {parts}")
    return bits


def _size_bytes(parts: int) -> int:
    return (parts + 7) // 8
