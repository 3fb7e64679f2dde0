from itertools import product

from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.overlay.arborescence import cheapest, shallower

costs = st.sampled_from([0.0, 1.0, 1.5, 4.0]) | st.floats(0, 10)


@st.composite
def graphs(draw):
    nodes = draw(st.integers(2, 5))
    pairs = [(i, j) for i, j in product(range(nodes), repeat=2) if i != j and draw(st.integers(0, 3))]
    return nodes, [(i, j, draw(costs)) for i, j in pairs]


def parents(edges, chosen, root):
    return {edges[place][1]: edges[place][0] for node, place in enumerate(chosen) if node != root}


def depth(above, node, root):
    steps = 0
    while node != root and steps <= len(above):
        node, steps = above[node], steps + 1
    return steps


@examples(60)
@given(graphs())
def test_none_is_cheaper(graph):
    nodes, edges = graph
    root = nodes - 1
    chosen = cheapest(nodes, root, edges)
    into = [[place for place, edge in enumerate(edges) if edge[1] == node] for node in range(root)]
    trees = [
        each
        for each in product(*into)
        if all(depth(parents(edges, each, root), v, root) < nodes for v in range(root))
    ]
    assert (chosen is None) == (not trees)
    if chosen is None:
        return
    assert tuple(chosen[:root]) in trees
    totals = {each: sum(edges[place][2] for place in each) for each in trees}
    assert totals[tuple(chosen[:root])] <= min(totals.values()) + 1e-9
    before = totals[tuple(chosen[:root])]
    assert shallower(root, edges, chosen, nodes)
    assert totals[tuple(chosen[:root])] <= before + 1e-9
    if all((root, node) in {edge[:2] for edge in edges} for node in range(root)):
        assert shallower(root, edges, chosen, 1)
        assert set(parents(edges, chosen, root).values()) == {root}
    assert tuple(chosen[:root]) in trees


def test_a_circle_is_entered_where_that_costs_least():
    edges = [(0, 1, 1.0), (1, 0, 1.0), (2, 0, 9.0), (2, 1, 8.0)]
    assert cheapest(3, 2, edges) == [1, 3, -1]
    assert cheapest(3, 2, edges) is not None
    assert cheapest(3, 2, edges[:2]) is None
