"""The star: what a run does without an overlay. Everybody sends to the holder of a slice, and is answered by it."""

from __future__ import annotations

from collections.abc import Sequence

from geomx.overlay.contract import Links, Load, Routes, star


class Star:
    """See the module's text."""

    every_turns = 0

    def plan(self, links: Links, loads: Sequence[Load], number: int, current: Routes | None = None) -> Routes:
        """See `Planner`."""
        return star(links, loads)
