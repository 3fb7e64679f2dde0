"""What planners share: how slices are dealt to routes, when the star is left, and who must reach whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NoReturn

from geomx.errors import ConfigError, Fault
from geomx.overlay.contract import Links, Load, Route, Routes, star
from geomx.overlay.cost import seconds

GAIN = 0.05  # below that, what was measured does not bear a prediction
# Likewise, of another table in the place of one: while tables change, less is under way at once.
CHANGE = 0.03
MOST_EVERY = 1_000_000  # turns

Shared = Sequence[tuple[Route, int]]


@dataclass(frozen=True, slots=True)
class Share:
    """How a part of every holder's slices travels.

    Attributes:
        owner: The member that sends the sum to the holder, and is sent the update by it.
        up: To whom each other member sends its sum.
        down: From whom each other member gets the update.
    """

    owner: int
    up: Sequence[int]
    down: Sequence[int]

    def route(self, holder: int) -> Route:
        """The route of a holder's slices, by that node's number."""
        up, down = list(self.up), list(self.down)
        up[self.owner] = down[self.owner] = holder
        return Route(holder, tuple(up), tuple(down))


def check_range(name: str, value: float, least: float, most: float) -> None:
    """Raise ValueError for a parameter that is not within these."""
    if not least <= value <= most:
        raise ValueError(f"{name} is {value}; allowed: {least} to {most}")


def dealt(loads: Sequence[Load], routes: Mapping[int, Shared]) -> Routes:
    """Give each slice a route, so that all routes of a holder are busy all the time.

    Each slice goes to the route that is furthest behind its share of the bytes so far: weighted round robin, by bytes.

    Args:
        loads: The slices, in the order in which they leave.
        routes: The routes of each holder (0: the first) that has slices, with their shares of its bytes, in any unit. A
            route that no slice takes is left out.
    """
    used: dict[tuple[int, int], int] = {}
    table: list[Route] = []
    shares = {holder: [share for _, share in some] for holder, some in routes.items()}
    sums = {holder: sum(some) for holder, some in shares.items()}
    owed = {holder: [0] * len(some) for holder, some in routes.items()}  # bytes, times the sum of shares
    of = []
    for load in loads:
        size = load.up_bytes + load.down_bytes
        due = [
            so_far + share * size
            for so_far, share in zip(owed[load.holder], shares[load.holder], strict=True)
        ]
        chosen = due.index(max(due))
        due[chosen] -= sums[load.holder] * size
        owed[load.holder] = due
        if (load.holder, chosen) not in used:
            used[load.holder, chosen] = len(table)
            table.append(routes[load.holder][chosen][0])
        of.append(used[load.holder, chosen])
    return Routes(tuple(table), tuple(of))


def best(
    links: Links,
    loads: Sequence[Load],
    tables: Iterable[Routes],
    gain: float = GAIN,
    current: Routes | None = None,
) -> Routes:
    """The table of the shortest round; the star, unless that saves at least the part `gain` of the star's time.

    `current` stays, unless another saves at least the part `CHANGE` of its time.
    """
    found = star(links, loads)
    least_s = seconds(links, loads, found) * (1 - gain)
    if current is not None and (current_s := seconds(links, loads, current)) < least_s:
        found, least_s = current, current_s * (1 - CHANGE)
    for table in tables:
        if (taken_s := seconds(links, loads, table)) < least_s:
            found, least_s = table, taken_s
    return found


def fixed(name: str, links: Links, loads: Sequence[Load], shares: Sequence[Share]) -> Routes:
    """A table that does not depend on rates: each holder's slices in equal shares.

    Args:
        name: Of the overlay, for messages.
        links: Of the network.
        loads: The slices.
        shares: How each share travels.

    Raises:
        ConfigError: Nothing may pass over an edge that is needed.
    """
    routes = {}
    for holder in sorted({load.holder for load in loads}):
        node = links.members + holder
        routes[holder] = [(share.route(node), 1) for share in shares]
        for route, _ in routes[holder]:
            edges = [*enumerate(route.up), *((parent, member) for member, parent in enumerate(route.down))]
            for sender, receiver in edges:
                if not links.rates[sender][receiver]:
                    _refuse(name, sender, receiver)
    return dealt(loads, routes)


def _refuse(name: str, sender: int, receiver: int) -> NoReturn:
    found = f"nothing may pass from node {sender} to node {receiver}"
    allowed = "only where each can dial those to whom it sends (`neighbours`, `address_wan`); trees and ts do without"
    raise ConfigError(f"overlay `{name}`", [Fault("overlay", found, allowed, "take `trees`, `ts` or `star`")])
