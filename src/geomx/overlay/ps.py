"""Every member gathers a share of the slices: a parameter server on each, as BytePS (OSDI 2020) has them.

All members send the slices of share s to member s, which sends the sum on to the holder; the update takes the same way
back. So the holder's link carries the model once each way, and a member's once, and (n − 1) / n times more.
"""

from __future__ import annotations

from collections.abc import Sequence

from geomx.overlay.contract import Links, Load, Routes
from geomx.overlay.tables import Share, fixed


class ParameterServers:
    """See the module's text."""

    every_turns = 0

    def plan(self, links: Links, loads: Sequence[Load], number: int, current: Routes | None = None) -> Routes:
        """See `Planner`.

        Raises:
            ConfigError: Two members cannot reach each other.
        """
        n = links.members
        return fixed("ps", links, loads, [Share(owner, [owner] * n, [owner] * n) for owner in range(n)])
