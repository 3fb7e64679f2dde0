"""In which lane a slice travels (P3): what the next forward needs first overtakes the rest."""

from __future__ import annotations

from geomx.layout import Slice

LAST = 65_535  # the lane behind all others


def priority_of(slice_: Slice) -> int:
    """A slice's lane. 0 is for control."""
    return min(1 + slice_.index, LAST)
