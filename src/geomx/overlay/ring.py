"""A ring: bandwidth-optimal all-reduce (Patarasuk and Yuan, JPDC 2009), with a holder beside it.

There are as many shares of the slices as members. The sums of share s travel around the ring from member s + 1 to
member s, which sends the total to the holder. The update goes on around the ring from there, s → s + 1 → …, as in the
all-gather; so every edge between neighbours is used in one direction only.
"""

from __future__ import annotations

from collections.abc import Sequence

from geomx.overlay.contract import Links, Load, Routes
from geomx.overlay.tables import Share, fixed


class Ring:
    """See the module's text. The members' order in the run is that of the ring."""

    every_turns = 0

    def plan(self, links: Links, loads: Sequence[Load], number: int, current: Routes | None = None) -> Routes:
        """See `Planner`.

        Raises:
            ConfigError: A member cannot reach the next one.
        """
        n = links.members
        later, earlier = [(member + 1) % n for member in range(n)], [(member - 1) % n for member in range(n)]
        return fixed("ring", links, loads, [Share(owner, later, earlier) for owner in range(n)])
