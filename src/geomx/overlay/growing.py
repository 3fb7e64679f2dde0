"""A given number of trees, of equal shares, grown edge by edge where there is most room.

    the cost of one more tree on a resource = ((load + share) / cap)^8 − (load / cap)^8

A tree begins with its holder, and takes the cheapest edge from a node that it has to one that it has not. What a node
sends to one child makes the next dearer, so that trees branch where rates allow, and each elsewhere (as SplitStream's,
SOSP 2003). When all are there, each is taken up and grown again beside the others, twice. A high power of the load
comes near the greatest load, which bounds a round. Garg and Könemann (SIAM J. Comput. 2007) let prices grow with the
load, too, in many small steps where these are a few large ones.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from geomx.overlay.contract import Links
from geomx.overlay.program import Floats

POWER = 8
TIMES, MANY = 2, 64  # how often each is grown again; unless there are so many
DEEPER = 0.05  # by so much dearer is an edge for each one above it


class Growth:
    """The trees as they are, and their load."""

    def __init__(self, links: Links) -> None:
        """Begin without trees."""
        self._members, n = links.members, links.nodes
        rates = np.array(links.rates)
        rates[np.arange(n), np.arange(n)] = rates[links.members :, links.members :] = 0
        caps = [rates, np.array(links.leaving), np.array(links.entering)]
        scale = max(cap[np.isfinite(cap)].max(initial=0) for cap in caps)
        self._caps = [cap / scale for cap in caps]
        self._loads = [np.zeros_like(cap) for cap in caps]

    def put(self, tree: Sequence[int], up: bool, share: float) -> None:
        """Load the network with a tree; with a negative share, take it up."""
        for member, parent in enumerate(tree):
            sender, receiver = (member, parent) if up else (parent, member)
            self._loads[0][sender, receiver] += share
            self._loads[1][sender] += share
            self._loads[2][receiver] += share

    def grow(self, holder: int, up: bool, share: float, deepest: int) -> tuple[int, ...] | None:
        """Grow one more tree. None: not all can be reached so.

        Args:
            holder: Its root.
            up: Which way what it carries goes.
            share: How much it carries.
            deepest: How many edges there may be from the holder to a member.
        """
        usable = (self._caps[0].T if up else self._caps[0])[:, : self._members] > 0
        least = _distances(usable, holder)
        if least.max() > deepest:
            return None
        found = self._grow(holder, up, share, np.full(len(least), deepest))
        if found is None:  # again, so that a shortest way to each stays open
            found = self._grow(holder, up, share, least + (deepest - least.max()))
        return found

    def _grow(self, holder: int, up: bool, share: float, deepest: Floats) -> tuple[int, ...] | None:
        """`deepest`: of each member."""
        m, [caps, far_caps, near_caps], [loads, far, near] = self._members, self._caps, self._loads
        if up:  # as seen from the holder
            caps, far_caps, near_caps, loads, far, near = caps.T, near_caps, far_caps, loads.T, near, far
        edges = _cost(loads[:, :m], caps[:, :m], share) + _cost(near[:m], near_caps[:m], share)
        far = far.copy()
        parents, depths, outside = [-1] * m, [0] * len(far), np.ones(m, bool)
        costs = np.full((len(far), m), np.inf)

        def offer(node: int) -> None:
            load, cap = float(far[node]), float(far_caps[node])
            branch = (_part(load + share, cap) ** POWER - _part(load, cap) ** POWER) if cap else np.inf
            dearer = 1 + DEEPER * depths[node]
            costs[node] = np.where(
                outside & (deepest > depths[node]), (edges[node] + branch) * dearer, np.inf
            )

        offer(holder)
        for _ in range(m):
            parent, child = divmod(int(costs.argmin()), m)
            if costs[parent, child] == np.inf:
                return None
            parents[child], depths[child] = parent, depths[parent] + 1
            far[parent] += share
            outside[child] = False
            costs[:, child] = np.inf
            offer(parent)
            offer(child)
        return tuple(parents)


def _distances(usable: NDArray[np.bool_], holder: int) -> Floats:
    """How many edges each member is away from the holder."""
    found: Floats = np.full(usable.shape[1], np.inf)
    nodes, steps = np.array([holder]), 0
    while len(nodes):
        steps += 1
        nodes = np.flatnonzero(usable[nodes].any(0) & np.isinf(found))
        found[nodes] = steps
    return found


def _part(load: float, cap: float) -> float:
    return min(load / cap, 1e30)


def _cost(loads: Floats, caps: Floats, share: float) -> Floats:
    usable = caps > 0
    before, behind = np.full(loads.shape, np.inf), np.full(loads.shape, np.inf)
    np.divide(loads, caps, out=before, where=usable)
    np.divide(loads + share, caps, out=behind, where=usable)
    found: Floats = np.full(loads.shape, np.inf)
    np.subtract(np.minimum(behind, 1e30) ** POWER, np.minimum(before, 1e30) ** POWER, out=found, where=usable)
    return found


def grown(
    links: Links, demands: Sequence[tuple[int, bool, float]], trees: int, deepest: int
) -> list[list[tuple[int, ...]]] | None:
    """Grow trees for all demands together.

    Args:
        links: Of the network.
        demands: Of each its holder's number, whether it goes up, and its bytes.
        trees: How many for each.
        deepest: How many edges there may be from a holder to a member.

    Returns:
        Them, of each demand; None where some members cannot be reached so.
    """
    growth = Growth(links)
    total = sum(size for _, _, size in demands) * trees
    times = TIMES if len(demands) * trees < MANY else 0
    found: list[list[tuple[int, ...]]] = [[] for _ in demands]
    for again in range(1 + times):
        for number in range(trees):
            for some, (holder, up, size) in zip(found, demands, strict=True):
                share = size / total
                if again:
                    growth.put(some[number], up, -share)
                tree = growth.grow(holder, up, share, deepest) or (some[number] if again else None)
                if tree is None:
                    return None
                growth.put(tree, up, share)
                some[number : number + 1] = [tree]
    return found
