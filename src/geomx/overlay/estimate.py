"""From what nodes have measured to what is known of the network.

Every sender tells how fast bytes left for each receiver, while there were some to be sent. Where a node has
*neighbours*, its ways are its own, and such a rate is what the way can carry. Elsewhere flows may share a node's access
link, evenly:

- Of the flows of one node, those that are about as fast as its fastest share what it can carry: that is the most that
  has passed in all.
- A flow that is slower than the fastest at both its ends is limited by its own way.

What was not measured for some time is taken for as good as what is usual: so it is tried again.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf
from statistics import median

from geomx.overlay.contract import Links

ALIKE = 0.8  # of the fastest: so fast are those that share with it
KEPT = 0.3  # of what was known stays where less is measured
FORGOTTEN_AFTER = 12  # times that was settled what is known

Pair = tuple[str, str]  # who sends, and who receives


class Estimate:
    """Of the nodes of one tier, by name. `own`: those whose ways are their own."""

    def __init__(self, own: Collection[str] = ()) -> None:
        self._own = frozenset(own)
        self._news: dict[Pair, float] = {}
        self._most: dict[tuple[str, int], float] = {}
        self._settled = 0
        self._rates: dict[Pair, tuple[float, int]] = {}  # what is known, and when it was
        self._leaving: dict[str, tuple[float, int]] = {}
        self._entering: dict[str, tuple[float, int]] = {}
        self._round_trips_s: dict[Pair, float] = {}

    def told(
        self, node: str, by_receiver: Mapping[str, float], leaving: float = 0.0, entering: float = 0.0
    ) -> None:
        """A node has measured this, in bytes a second.

        `leaving`, `entering`: the most of all together; 0: it is not known.
        """
        for receiver, rate in by_receiver.items():
            self._news[node, receiver] = rate
        for end, most in enumerate((leaving, entering)):
            self._most[node, end] = max(most, self._most.get((node, end), 0.0))

    def round_trip(self, one: str, other: str, seconds: float) -> None:
        """A connection between two was answered so soon."""
        for pair in ((one, other), (other, one)):
            self._round_trips_s[pair] = seconds

    def settle(self) -> None:
        """What was told since the last time was measured in the same rounds."""
        self._settled += 1
        news, self._news = self._news, {}
        most, self._most = self._most, {}
        sharing = set[Pair]()
        for end, bounds in ((0, self._leaving), (1, self._entering)):
            for node in {pair[end] for pair in news} - self._own:
                flows = {pair: rate for pair, rate in news.items() if pair[end] == node}
                fastest = max(flows.values())
                alike = {
                    pair
                    for pair, rate in flows.items()
                    if rate >= ALIKE * fastest and not self._own & {*pair}
                }
                total = most.get((node, end), 0.0) or sum(flows.values())
                if len(alike) > 1:
                    sharing |= alike
                    bounds[node] = total, self._settled
                elif node in bounds and total > bounds[node][0]:
                    bounds[node] = total, self._settled
        for pair, rate in news.items():
            known, _ = self._rates.get(pair, (rate, 0))
            if pair not in sharing or rate > known:
                now = rate if rate >= known else KEPT * known + (1.0 - KEPT) * rate
                self._rates[pair] = now, self._settled
        since = self._settled - FORGOTTEN_AFTER
        self._rates = {pair: known for pair, known in self._rates.items() if known[1] > since}
        self._leaving = {node: known for node, known in self._leaving.items() if known[1] > since}
        self._entering = {node: known for node, known in self._entering.items() if known[1] > since}

    def links(
        self, members: Sequence[str], holders: Sequence[str], may_send: Callable[[str, str], bool]
    ) -> Links:
        """What is known. `may_send(one, other)`: whether a table may have it so."""
        nodes = [*members, *holders]
        rates = {pair: rate for pair, (rate, _) in self._rates.items() if may_send(*pair)}
        bounds = [rate for of in (self._leaving, self._entering) for rate, _ in of.values()]
        measured = [rate for rate, _ in self._rates.values()]
        usual = median(bounds) if bounds else (median(measured) if measured else 1.0)
        default_s = max(self._round_trips_s.values(), default=0.0)

        def bound(node: str, of: Mapping[str, tuple[float, int]]) -> float:
            return inf if node in self._own else of.get(node, (usual, 0))[0]

        def rate(one: str, other: str) -> float:
            if one == other or not may_send(one, other):
                return 0.0
            return rates.get((one, other), usual)

        return Links(
            len(members),
            len(holders),
            tuple(tuple(rate(one, other) for other in nodes) for one in nodes),
            tuple(bound(node, self._leaving) for node in nodes),
            tuple(bound(node, self._entering) for node in nodes),
            tuple(
                tuple(self._round_trips_s.get((one, other), default_s) for other in nodes) for one in nodes
            ),
        )
