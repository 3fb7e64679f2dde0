"""How long a round takes by a table, as far as links go.

All slices are under way at the same time, so the busiest of all resources bounds the round: a directed link, or all
that a node sends, or receives. To that comes the way of the last slice, which has nothing behind it to overlap with.
"""

from __future__ import annotations

from collections.abc import Sequence

from geomx.overlay.contract import Links, Load, Routes


def busiest_s(links: Links, loads: Sequence[Load], table: Routes) -> float:
    """The seconds for which the busiest link, or node, has something to carry in a round."""
    n = links.nodes
    crossing = [[0.0] * n for _ in range(n)]
    up_bytes, down_bytes = [0] * len(table.routes), [0] * len(table.routes)
    for load, number in zip(loads, table.of, strict=True):
        up_bytes[number] += load.up_bytes
        down_bytes[number] += load.down_bytes
    for number, route in enumerate(table.routes):
        for member in range(links.members):
            crossing[member][route.up[member]] += up_bytes[number]
            crossing[route.down[member]][member] += down_bytes[number]
    worst = 0.0
    for i in range(n):
        leaves, enters = sum(crossing[i]), sum(row[i] for row in crossing)
        worst = max(worst, leaves / links.leaving[i], enters / links.entering[i])
        for size_bytes, rate in zip(crossing[i], links.rates[i], strict=True):
            if size_bytes:
                worst = max(worst, size_bytes / rate if rate else float("inf"))
    return worst


def last_s(links: Links, loads: Sequence[Load], table: Routes) -> float:
    """The seconds that the last slice of the slowest route is on its way, alone."""
    last = dict(zip(table.of, loads, strict=True))
    return max(
        (
            _way_s(links, table.routes[number].up, load.up_bytes, True)
            + _way_s(links, table.routes[number].down, load.down_bytes, False)
            for number, load in last.items()
        ),
        default=0.0,
    )


def seconds(links: Links, loads: Sequence[Load], table: Routes) -> float:
    """The time of a round by a table."""
    return busiest_s(links, loads, table) + last_s(links, loads, table)


def _way_s(links: Links, parents: Sequence[int], size_bytes: int, up: bool) -> float:
    """Of the member that is furthest from the holder."""
    far_s: dict[int, float] = {}
    for member in range(links.members):
        way = [member]
        while way[-1] not in far_s and way[-1] < links.members:
            way.append(parents[way[-1]])
        total_s = far_s.get(way.pop(), 0.0)
        for at in reversed(way):
            one, other = (at, parents[at]) if up else (parents[at], at)
            rate = min(links.rates[one][other], links.leaving[one], links.entering[other])
            total_s += links.round_trips_s[one][other] / 2 + (size_bytes / rate if rate else float("inf"))
            far_s[at] = total_s
    return max(far_s.values(), default=0.0)
