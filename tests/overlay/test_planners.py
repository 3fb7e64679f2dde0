"""What holds for all planners."""

import math

import pytest
from exploring import examples
from hypothesis import assume, given
from hypothesis import strategies as st
from networks import PLANNERS, any_links, any_loads, even, links, mesh

from geomx.errors import ConfigError
from geomx.overlay import overlays
from geomx.overlay.contract import star
from geomx.overlay.cost import seconds

ADAPTIVE = ("star", "ts", "trees")


def edges(table):
    for route in table.routes:
        yield from enumerate(route.up)
        yield from ((parent, member) for member, parent in enumerate(route.down))


def check(network, loads, table):
    assert len(table.of) == len(loads)
    assert set(table.of) == set(range(len(table.routes)))
    for load, number in zip(loads, table.of, strict=True):
        assert table.routes[number].holder == network.members + load.holder
    assert [route.fault(network.members, network.nodes) for route in table.routes] == [""] * len(table.routes)
    assert all(network.rates[sender][receiver] for sender, receiver in edges(table))


@pytest.mark.parametrize("name", ["ts", "trees"])
@examples(20)
@given(st.data())
def test_tables_are_trees_over_links_that_there_are_and_no_slower_than_the_star(name, data):
    network = data.draw(any_links())
    loads = data.draw(any_loads(network.holders))
    number = data.draw(st.integers(1, 5))
    table = overlays.make(name).plan(network, loads, number)
    if table != star(network, loads):
        check(network, loads, table)
    slowest = seconds(network, loads, star(network, loads))
    assert seconds(network, loads, table) <= slowest
    assert table == star(network, loads) or seconds(network, loads, table) < 0.95 * slowest
    assert table == overlays.make(name).plan(network, loads, number)


@pytest.mark.parametrize("name", ["ring", "butterfly", "binary-blocks", "ps"])
@examples(20)
@given(st.integers(1, 17), st.integers(1, 3), st.data())
def test_fixed_tables_are_trees(name, members, holders, data):
    assume(name != "butterfly" or members & (members - 1) == 0)
    network, loads = mesh(members, holders), data.draw(any_loads(holders))
    table = overlays.make(name).plan(network, loads, 1)
    check(network, loads, table)
    assert overlays.make(name).every_turns == 0


@pytest.mark.parametrize("name", ADAPTIVE)
@pytest.mark.parametrize("holders", [1, 3])
def test_the_star_where_members_reach_holders_alone(name, holders):
    n = 4 + holders
    network = links(4, [[int((i < 4) != (j < 4)) for j in range(n)] for i in range(n)], access=2.0)
    loads = even(20, holders)
    assert overlays.make(name).plan(network, loads, 1) == star(network, loads)


@pytest.mark.parametrize("name", ["ring", "butterfly", "binary-blocks", "ps"])
def test_a_fixed_one_names_the_two_that_cannot_reach_each_other(name):
    rates = [[int(i != j and {i, j} != {0, 1}) for j in range(5)] for i in range(5)]
    with pytest.raises(ConfigError, match=f"overlay `{name}`.*\n.*from node (0 to node 1|1 to node 0)"):
        overlays.make(name).plan(links(4, rates), even(8), 1)


@pytest.mark.parametrize("name", PLANNERS)
def test_nothing_to_carry(name):
    assert overlays.make(name).plan(mesh(4), [], 1).of == ()


@pytest.mark.parametrize("name", ["ts", "trees"])
def test_an_adaptive_one_makes_another_table_after_some_turns(name):
    assert overlays.make(name).every_turns > 0
    assert overlays.make(f"{name} every=9").every_turns == 9


@pytest.mark.parametrize("spec", ["ts greed=1.5", "trees trees=0"])
def test_parameters_that_make_no_sense(spec):
    with pytest.raises(ConfigError):
        overlays.make(spec)


@pytest.mark.parametrize("name", ["ts", "trees"])
def test_sites_that_no_holder_reaches_but_through_others(name):
    chain = [[0, 5, 0, 0], [5, 0, 5, 0], [0, 5, 0, 5], [0, 0, 5, 0]]  # 3 is the holder
    network = links(3, chain)
    table = overlays.make(name).plan(network, even(10), 1)
    assert {(route.up, route.down) for route in table.routes} == {((1, 2, 3), (1, 2, 3))}
    assert math.isfinite(seconds(network, even(10), table))
