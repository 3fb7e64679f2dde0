"""In which lane a slice travels (P3): what the next forward needs first overtakes the rest."""

from __future__ import annotations

from geomx.layout import Slice

REQUESTS = (
    1  # the lane of what is no slice, and may be large: behind control, so that no heartbeat waits for it
)
LAST = 65_535  # the lane behind all others


def priority_of(slice_: Slice) -> int:
    """A slice's lane. 0 is for control."""
    return min(1 + slice_.index, LAST)
