"""How much of the first weights has come to a node: what people see while a large model travels over a slow link.

A slice counts when it has come whole. Records are kept a few times a second; the log has a line every few seconds.
"""

from __future__ import annotations

from collections.abc import Callable

from geomx.layout import Layout

RECORD_S = 0.25
LOG_S = 5.0
LOG_LEVEL = "warning"  # a worker's process shows no less, unless its script sets up logging


class FirstWeights:
    """See the module's text. `note(name, level, **fields)`: where it is told; `now`: when the node has attached."""

    def __init__(self, layout: Layout, note: Callable[..., None], now: float) -> None:
        self._lacking = {slice_.index: slice_.size_bytes for slice_ in layout.slices}
        self._bytes = sum(self._lacking.values())
        self._arrived_bytes = 0
        self._note = note
        self._recorded = now
        self._logged: float | None = (
            None  # None: none has come, which may be because others are not there yet
        )
        self._is_long = False
        self._tell("debug", now)

    def arrived(self, index: int, now: float) -> None:
        """A slice has come from above, or word that nobody has changed it."""
        size_bytes = self._lacking.pop(index, None)
        if size_bytes is None:
            return
        self._arrived_bytes += size_bytes
        is_last = not self._lacking
        self._logged = now if self._logged is None else self._logged
        if now - self._logged >= LOG_S or (is_last and self._is_long):
            self._is_long, self._logged = True, now
            self._tell(LOG_LEVEL, now)
        elif is_last or now - self._recorded >= RECORD_S:
            self._tell("debug", now)

    def _tell(self, level: str, now: float) -> None:
        self._recorded = now
        share = self._arrived_bytes / self._bytes if self._bytes else 1.0
        arrived_mb, of_mb = self._arrived_bytes * 1e-6, self._bytes * 1e-6
        self._note("first_weights", level, share=share, arrived_mb=arrived_mb, of_mb=of_mb)
