"""What a planner gets and gives.

*Members* are nodes of one tier that each contribute to every slice: the servers below the shards, or the workers of a
party. *Holders* are the nodes above them, of which each holds some of the slices: shards, or the party's server. Nodes
are numbers here: the members come first, in the order of the run, then the holders.

A *route* is how some slices of one holder travel. Up, it is a tree that ends in the holder: each member sends the sum
of its own contribution and of those that it was sent. Down, it is a tree that begins there: each member passes on the
bytes of the update that it was sent. The two trees need not be alike. *Routes* give each slice a route.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

Matrix = tuple[tuple[float, ...], ...]  # [from][to]


@dataclass(frozen=True)
class Links:
    """What is known of the network.

    Attributes:
        members: How many members there are.
        holders: How many holders.
        rates: What passes from one node to another, in bytes a second, where nothing else does. 0: nothing may.
        leaving: What all that a node sends can be together, in bytes a second; inf: that is not known to have a bound.
        entering: Likewise what it receives.
        round_trips_s: Between two nodes, in seconds.
    """

    members: int
    holders: int
    rates: Matrix
    leaving: tuple[float, ...]
    entering: tuple[float, ...]
    round_trips_s: Matrix

    @property
    def nodes(self) -> int:
        """How many there are."""
        return self.members + self.holders


@dataclass(frozen=True, slots=True)
class Load:
    """One slice: its holder (0: the first), and the bytes of a contribution and of an update, as encoded."""

    holder: int
    up_bytes: int
    down_bytes: int


@dataclass(frozen=True)
class Route:
    """See the module's text.

    Attributes:
        holder: The number of the node that holds these slices.
        up: To whom each member sends its sum.
        down: From whom each member gets the update.
    """

    holder: int
    up: tuple[int, ...]
    down: tuple[int, ...]

    @cached_property
    def senders(self) -> dict[int, tuple[int, ...]]:
        """Of each node that is sent sums: by which members, in the order of adding."""
        return _children(self.up)

    @cached_property
    def receivers(self) -> dict[int, tuple[int, ...]]:
        """Of each node that sends updates on: to which members."""
        return _children(self.down)

    @property
    def depth(self) -> int:
        """How many edges the longest way up has, and the longest way down, together; 2: a star."""
        return depth_of(self.up) + depth_of(self.down)

    def fault(self, members: int, nodes: int) -> str:
        """What is wrong with it, among so many; empty where it is two trees."""
        if not len(self.up) == len(self.down) == members <= self.holder < nodes:
            return "a route has other members"
        for parents in (self.up, self.down):
            for member in range(len(parents)):
                at, steps = member, 0
                while at != self.holder:
                    if not 0 <= at < len(parents) or steps > nodes:
                        return f"node {member} does not reach its holder, node {self.holder}"
                    at, steps = parents[at], steps + 1
        return ""


@dataclass(frozen=True)
class Routes:
    """A table: its routes, and which of them each slice takes, by the slice's place in what was asked."""

    routes: tuple[Route, ...]
    of: tuple[int, ...]

    def fault(self, links: Links, loads: Sequence[Load]) -> str:
        """What is wrong with it as a table for these; empty where it is one."""
        if len(self.of) != len(loads):
            return f"the table is of {len(self.of)} slices, where there are {len(loads)}"
        for number, load in zip(self.of, loads, strict=True):
            if not 0 <= number < len(self.routes):
                return f"a slice takes route {number}, of {len(self.routes)}"
            if self.routes[number].holder != links.members + load.holder:
                return f"a slice of node {links.members + load.holder} goes to another"
        return next(filter(None, (route.fault(links.members, links.nodes) for route in self.routes)), "")


class Planner(Protocol):
    """Makes tables. Keyword-only arguments of the class are its parameters, see `geomx.registry`.

    Attributes:
        every_turns: After so many turns another table is asked for; 0: only when who takes part has changed.
    """

    every_turns: int

    def plan(self, links: Links, loads: Sequence[Load], number: int, current: Routes | None = None) -> Routes:
        """Make a table.

        Args:
            links: What is known of the network. Every member reaches every holder, be it through others.
            loads: The slices, in the order in which they leave.
            number: Of the table in its run, from 1: what is drawn depends on it alone. The same arguments give the
                same table.
            current: The table that is used now by the same members for the same slices, if one is.
        """


def alike(members: int) -> Links:
    """So many members and one holder, of which nothing is known."""
    nodes = members + 1
    rates = tuple(tuple(float(i != j) for j in range(nodes)) for i in range(nodes))
    return Links(members, 1, rates, (1.0,) * nodes, (1.0,) * nodes, ((0.0,) * nodes,) * nodes)


def with_names(text: str, nodes: Sequence[str]) -> str:
    """What a planner says of `node 3`, with that node's name."""
    return re.sub(r"node (\d+)", lambda found: nodes[int(found[1])], text)


def star(links: Links, loads: Sequence[Load]) -> Routes:
    """Everybody sends to the holder itself, and is answered by it."""
    routes = []
    for holder in range(links.members, links.nodes):
        everybody = (holder,) * links.members
        routes.append(Route(holder, everybody, everybody))
    return Routes(tuple(routes), tuple(load.holder for load in loads))


def _children(parents: Sequence[int]) -> dict[int, tuple[int, ...]]:
    found: dict[int, tuple[int, ...]] = {}
    for member, parent in enumerate(parents):
        found[parent] = (*found.get(parent, ()), member)
    return found


def depth_of(parents: Sequence[int]) -> int:
    """How many edges the longest way to the root has, in the tree of members with these parents."""
    deepest = 0
    for member in range(len(parents)):
        at, steps = member, 0
        while at < len(parents):
            at, steps = parents[at], steps + 1
        deepest = max(deepest, steps)
    return deepest
