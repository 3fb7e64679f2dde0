"""The cheapest tree that spans all nodes from a root: Chu and Liu (1965), Edmonds (1967).

Each node takes its cheapest edge in. Where these make a circle, the circle becomes one node, and an edge into it costs
what it would add: its cost − that of the circle's edge which it would replace. So until there is no circle.
"""

from __future__ import annotations

from collections.abc import Sequence

Edge = tuple[int, int, float]  # from, to, cost


def cheapest(nodes: int, root: int, edges: Sequence[Edge]) -> list[int] | None:
    """Find it.

    Args:
        nodes: How many there are.
        root: The one from which every other is reached.
        edges: Each with its cost. Of equal ones, the first is taken.

    Returns:
        The place in `edges` of each node's edge in, -1 for the root; None where the root does not reach all.
    """
    best = [-1] * nodes
    for place, (_, to, cost) in enumerate(edges):
        if to != root and (best[to] < 0 or cost < edges[best[to]][2]):
            best[to] = place
    if any(place < 0 for node, place in enumerate(best) if node != root):
        return None
    group, groups, circles = _contracted(nodes, root, edges, best)
    if groups == nodes:
        return best
    kept = [place for place, (one, to, _) in enumerate(edges) if group[one] != group[to]]
    inner = []
    for place in kept:
        one, to, cost = edges[place]
        inner.append((group[one], group[to], cost - edges[best[to]][2] if to in circles else cost))
    found = cheapest(groups, group[root], inner)
    if found is None:
        return None
    for place in found:
        if place >= 0:
            best[edges[kept[place]][1]] = kept[place]
    return best


def _contracted(
    nodes: int, root: int, edges: Sequence[Edge], best: Sequence[int]
) -> tuple[list[int], int, set[int]]:
    """Of each node its new number, how many numbers there are, and which nodes are in circles."""
    seen, group, circles, groups = [-1] * nodes, [-1] * nodes, set[int](), 0
    for start in range(nodes):
        at = start
        while at != root and seen[at] < 0:
            seen[at] = start
            at = edges[best[at]][0]
        if at != root and seen[at] == start and group[at] < 0:
            while group[at] < 0:
                group[at] = groups
                circles.add(at)
                at = edges[best[at]][0]
            groups += 1
    for node in range(nodes):
        if group[node] < 0:
            group[node], groups = groups, groups + 1
    return group, groups, circles


def shallower(root: int, edges: Sequence[Edge], chosen: list[int], deepest: int) -> bool:
    """Hang nodes nearer to the root: where that costs nothing, or a branch is too deep.

    Args:
        root: Also how many other nodes there are.
        edges: As `cheapest` takes them.
        chosen: As it returns them; changed.
        deepest: How many edges there may be from the root to a node.

    Returns:
        Whether no node is deeper.
    """
    into: list[list[Edge]] = [[] for _ in range(root + 1)]
    places = {edge[:2]: place for place, edge in enumerate(edges)}
    for edge in edges:
        into[edge[1]].append(edge)
    depths, reaches = _levels(root, edges, chosen)
    changed = True
    while changed:
        changed = False
        for node in sorted(range(root), key=lambda one: -depths[one]):
            too_deep, most = reaches[node] > deepest, edges[chosen[node]][2] + 1e-12
            spare = deepest - 1 - (reaches[node] - depths[node])  # how deep its parent may be
            choices = [
                (too_deep and depths[parent] > spare, cost, depths[parent], parent)
                for parent, _, cost in into[node]
                if depths[parent] + 1 < depths[node] and (too_deep or cost <= most)
            ]
            if choices:
                chosen[node] = places[min(choices)[3], node]
                depths, reaches = _levels(root, edges, chosen)
                changed = True
    return max(depths) <= deepest


def _levels(root: int, edges: Sequence[Edge], chosen: Sequence[int]) -> tuple[list[int], list[int]]:
    """How deep each node is, and the deepest of those below it."""
    depths, reaches = [0] * (root + 1), [0] * (root + 1)
    for node in range(root):
        way = [node]
        while way[-1] != root:
            way.append(edges[chosen[way[-1]]][0])
        depths[node] = len(way) - 1
        for one in way:
            reaches[one] = max(reaches[one], depths[node])
    return depths, reaches
