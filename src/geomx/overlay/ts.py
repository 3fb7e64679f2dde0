"""TSEngine (Zhou et al., IEEE TNSM 2021): nodes that are ready ask a scheduler whom to send to.

Up, the scheduler pairs two that ask: one sends the sum that it holds to the other, which asks again when it has added
it, until the holder has all. Down, whoever has the update asks, is told a receiver, and both ask again behind it. In
either direction it chooses the pair with the greatest measured throughput with probability `greed`, else any at random.
A node sends or receives one thing at a time, which is what keeps many from sending to one at once.

Deviations: the process is played here in virtual time, with the rates measured, and its outcome is a table; so nobody
waits for a scheduler's answer before each message. Slices take turns on a few plays with different draws. Nobody sends
to another if then some could no longer reach the holder. The star is kept unless that costs time, see `tables.best`.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Collection, Sequence

import numpy as np
from numpy.typing import NDArray

from geomx.overlay.contract import Links, Load, Route, Routes
from geomx.overlay.tables import MOST_EVERY, best, check_range, dealt

Floats = NDArray[np.float64]

PLAYS = 16  # of all holders together, or one each


class TSEngine:
    """See the module's text."""

    def __init__(self, *, greed: float = 0.9, every: int = 5) -> None:
        """Set it up.

        Args:
            greed: How often the best pair known is taken; otherwise another is tried.
            every: Another table is made after so many turns.
        """
        check_range("greed", greed, 0, 1)
        check_range("every", every, 1, MOST_EVERY)
        self.greed = greed
        self.every_turns = every

    def plan(self, links: Links, loads: Sequence[Load], number: int, current: Routes | None = None) -> Routes:
        """See `Planner`."""
        routes: dict[int, list[tuple[Route, int]]] = {}
        held = {load.holder: [other for other in loads if other.holder == load.holder] for load in loads}
        for holder, some in sorted(held.items()):
            up_bytes = sum(load.up_bytes for load in some) / len(some)
            down_bytes = sum(load.down_bytes for load in some) / len(some)
            routes[holder] = []
            for play in range(max(1, min(PLAYS // len(held), len(some)))):
                draw = random.Random(f"{number} {holder} {play}")
                up = played(links, links.members + holder, up_bytes, self.greed, draw, True)
                down = played(links, links.members + holder, down_bytes, self.greed, draw, False)
                if up is not None and down is not None:
                    routes[holder].append((Route(links.members + holder, up, down), 1))
        return best(links, loads, [dealt(loads, routes)] if all(routes.values()) else [])


def played(
    links: Links, holder: int, size_bytes: float, greed: float, draw: random.Random, up: bool
) -> tuple[int, ...] | None:
    """One slice's way: to whom each member sends its sum, or from whom it gets the update.

    Args:
        links: Of the network.
        holder: The number of the node that holds the slice.
        size_bytes: What a message has.
        greed: See `TSEngine`.
        draw: Of the random choices.
        up: Which way.

    Returns:
        Them; None where some do not reach the holder.
    """
    m, n = links.members, links.nodes
    rates = np.minimum(np.array(links.rates), np.minimum.outer(links.leaving, links.entering))
    rates[np.arange(n), np.arange(n)] = 0
    if up and not _all_reach(rates, holder, range(m)):
        return None
    parents = [-1] * m
    to_go = set(range(m))  # who has not sent, or not been sent, yet
    senders, receivers = np.zeros(n, bool), np.zeros(n, bool)  # who asks
    receivers[:m] = True
    senders[:m], senders[holder], receivers[holder] = up, not up, up
    under_way: list[tuple[float, int, int]] = []
    now_s = 0.0
    while to_go:
        able = np.where(np.outer(senders, receivers), rates, 0)
        pair = _pair(able, greed, draw)
        while pair and up and not _all_reach(rates, holder, to_go - {pair[0]}):
            able[pair[0]] = 0  # others need it
            pair = _pair(able, greed, draw)
        if pair:
            sender, receiver = pair
            takes_s = links.round_trips_s[sender][receiver] / 2 + size_bytes / float(rates[pair])
            heapq.heappush(under_way, (now_s + takes_s, sender, receiver))
            senders[[sender, receiver]] = receivers[[sender, receiver]] = False
            child, parent = pair if up else (receiver, sender)
            parents[child] = parent
            to_go.remove(child)
        elif under_way:
            now_s = under_way[0][0]
            while under_way and under_way[0][0] == now_s:
                _, sender, receiver = heapq.heappop(under_way)
                senders[receiver] = receiver < m
                receivers[receiver] = up
                senders[sender] = not up
        else:
            return None
    return tuple(parents)


def _pair(able: Floats, greed: float, draw: random.Random) -> tuple[int, int] | None:
    """One of those that may send, and to whom: the rates of pairs, 0 for those that may not."""
    if draw.random() < greed:
        place = int(able.argmax())  # of equal ones the first
    else:
        places = np.flatnonzero(able)
        place = int(places[draw.randrange(len(places))]) if len(places) else 0
    pair = divmod(place, len(able))
    return pair if able[pair] else None


def _all_reach(rates: Floats, holder: int, members: Collection[int]) -> bool:
    """Whether these members all reach the holder, through each other."""
    left = {one for one in members if not rates[one, holder]}
    reached = [one for one in members if one not in left]
    while left and reached:
        at = reached.pop()
        near = {one for one in left if rates[one, at]}
        left -= near
        reached.extend(near)
    return not left
