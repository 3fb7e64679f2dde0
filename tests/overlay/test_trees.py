import math
from itertools import pairwise

import pytest
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st
from networks import MBIT, any_links, even, mesh, sites

from benchmarks.overlay_floors import least_cut, nine_sites, optimum
from geomx.overlay import packing
from geomx.overlay.contract import Load, Route, star
from geomx.overlay.cost import busiest_s, seconds
from geomx.overlay.trees import Trees

DRAWS = list(nine_sites(40))
SLICES = 396


def rate(network, loads, table):
    """Of an all-reduce, in Mbit/s."""
    return sum(load.up_bytes for load in loads) / busiest_s(network, loads, table) / MBIT


@pytest.mark.parametrize("draw", [0, 13, 39])
@pytest.mark.parametrize("holders", [[0], [4], [8], range(9)], ids=str)
def test_near_the_optimum_on_nine_sites(draw, holders):
    rates, network, loads = DRAWS[draw], sites(DRAWS[draw], holders), even(SLICES, len(holders))
    table = Trees().plan(network, loads, 1)
    most = optimum(rates, [(site in holders) / len(holders) for site in range(9)])
    assert most <= least_cut(rates) + 1e-6
    assert 0.93 * most <= rate(network, loads, table) <= most + 1e-6


@pytest.mark.parametrize("draw", [0, 13, 39])
@pytest.mark.parametrize("changed", [{"MOST_LINKS": 0}, {"available": lambda: False}], ids=["links", "scipy"])
def test_the_greedy_way_is_not_far_behind(draw, changed, monkeypatch):
    """Where links are many, or scipy is not there."""
    for name, value in changed.items():
        monkeypatch.setattr(packing, name, value)
    network, loads = sites(DRAWS[draw], [4]), even(SLICES)
    table = Trees().plan(network, loads, 1)
    assert rate(network, loads, table) >= 0.75 * optimum(DRAWS[draw], [float(site == 4) for site in range(9)])


def test_links_of_members_that_bound_what_passes():
    # the star takes 8 units each way; each member receives the update, and 7/8 of a contribution for others
    network, loads = mesh(8, access=100 * MBIT), even(800, up_bytes=12_500, down_bytes=12_500)
    assert busiest_s(network, loads, star(network, loads)) == pytest.approx(6.4)
    table = Trees().plan(network, loads, 1)
    assert 0.8 * 16 / 9 * 0.999 < busiest_s(network, loads, table) < 0.8 * 1.9
    assert max(route.depth for route in table.routes) == 4


def test_chains_where_a_tree_is_all_that_there_is():
    line = [[50.0 * (abs(i - j) == 1) for j in range(5)] for i in range(5)]
    table = Trees().plan(sites(line, [0]), even(10), 1)
    assert table.routes == (Route(5, (5, 0, 1, 2, 3), (5, 0, 1, 2, 3)),)


def test_the_two_directions_may_differ():
    # what goes up may have all of a link, if nothing comes down
    rates = [[0, 100, 100], [100, 0, 100], [100, 100, 0]]
    network = sites(rates, [0])
    loads = even(100, up_bytes=125_000, down_bytes=1)
    assert rate(network, loads, Trees().plan(network, loads, 1)) == pytest.approx(200, rel=0.03)
    assert optimum(rates, [1, 0, 0]) == pytest.approx(150)
    assert rate(network, even(100), Trees().plan(network, even(100), 1)) == pytest.approx(150, rel=0.03)


@examples(15)
@given(any_links(), st.integers(1, 4), st.integers(1, 40))
def test_so_many_trees_at_most(network, most, slices):
    table = Trees(trees=most).plan(network, even(slices, network.holders), 1)
    for holder in range(network.members, network.nodes):
        routes = [route for route in table.routes if route.holder == holder]
        assert len({route.up for route in routes}) <= most
        assert len({route.down for route in routes}) <= most


def test_all_trees_are_busy_all_the_time():
    network, loads = sites(DRAWS[0], [3]), even(SLICES)
    table = Trees().plan(network, loads, 1)
    assert len(table.routes) > 1
    for number in range(len(table.routes)):
        places = [place for place, of in enumerate(table.of) if of == number]
        longest = math.ceil(2 * SLICES / len(places))
        assert max(b - a for a, b in pairwise(places)) <= longest


def test_round_trips_make_trees_shallower():
    near, far = (mesh(8, access=100 * MBIT) for _ in range(2))
    line = [[10.0 if abs(i - j) > 1 else 100.0 * (i != j) for j in range(5)] for i in range(5)]
    near, far = (_with_round_trips(sites(line, [0]), trip_s) for trip_s in (0.0, 5.0))
    depths = [max(route.depth for route in Trees().plan(each, even(40), 1).routes) for each in (near, far)]
    assert depths[0] > depths[1]


def _with_round_trips(network, trip_s):
    trips = ((trip_s,) * network.nodes,) * network.nodes
    return type(network)(
        network.members, network.holders, network.rates, network.leaving, network.entering, trips
    )


def test_many_members():
    network, loads = mesh(40, access=100 * MBIT), even(64, up_bytes=125_000, down_bytes=125_000)
    table = Trees().plan(network, loads, 1)
    assert seconds(network, loads, table) < seconds(network, loads, star(network, loads)) / 10


def test_one_slice_takes_one_tree():
    network = mesh(4, access=100 * MBIT)
    table = Trees().plan(network, [Load(0, 10**6, 10**6)], 1)
    assert len(table.routes) == 1
