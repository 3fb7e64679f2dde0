"""Bitmaps of places: the bit of place 0 is the lowest of the first byte."""

from __future__ import annotations

from collections.abc import Iterable


def bitmap_of(places: Iterable[int]) -> bytes:
    """The bitmap of these places, as short as it can be."""
    bits = 0
    for place in places:
        bits |= 1 << place
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")


def places_of(bitmap: bytes) -> list[int]:
    """The places of a bitmap, in order."""
    return [8 * at + bit for at, byte in enumerate(bitmap) if byte for bit in range(8) if byte >> bit & 1]


def is_in(place: int, bitmap: bytes) -> bool:
    """Whether a place is one of a bitmap's."""
    return place >> 3 < len(bitmap) and bool(bitmap[place >> 3] >> (place & 7) & 1)
