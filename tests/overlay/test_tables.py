import pytest
from networks import even, mesh

from geomx.overlay.contract import Load, Route, star
from geomx.overlay.cost import last_s
from geomx.overlay.tables import best, dealt

A, B, C = (Route(2, up, (2, 2)) for up in ((2, 2), (1, 2), (2, 0)))


def test_slices_take_turns_by_their_routes_shares():
    table = dealt(even(10), {0: [(A, 3), (B, 1), (C, 1)]})
    assert "".join("ABC"[number] for number in table.of) in (
        "ABACAABACA",
        "ABCAAABCAA",
        "AABCAAABCA",
        "ABACAABCAA",
    )
    assert table.routes == (A, B, C)


def test_shares_are_of_bytes():
    loads = [Load(0, 300, 0), *even(3, up_bytes=100, down_bytes=0)]
    assert dealt(loads, {0: [(A, 1), (B, 1)]}).of == (0, 1, 1, 1)


def test_a_route_without_slices_is_left_out():
    table = dealt(even(2), {0: [(A, 1), (B, 100)]})
    assert (table.routes, table.of) == ((B,), (0, 0))


def test_each_holder_has_its_own():
    other = Route(3, (3, 3), (3, 3))
    table = dealt([Load(1, 1, 1), Load(0, 1, 1), Load(1, 1, 1)], {0: [(A, 1)], 1: [(other, 1)]})
    assert (table.routes, table.of) == ((other, A), (0, 1, 0))


def test_the_star_is_left_for_more_than_a_small_gain():
    network, loads = mesh(2, access=1e5), even(10)
    relayed = dealt(loads, {0: [(Route(2, (2, 0), (2, 0)), 1), (Route(2, (1, 2), (1, 2)), 1)]})
    assert best(network, loads, [relayed]) == relayed
    assert best(network, loads, [relayed], gain=0.5) == star(network, loads)


def test_a_table_is_left_for_more_than_a_small_gain():
    network, loads = mesh(2, access=1e5), even(100)
    ways = [Route(2, (2, 0), (2, 0)), Route(2, (1, 2), (1, 2))]
    even_shares, near, far = (dealt(loads, {0: [(ways[0], 100), (ways[1], by)]}) for by in (100, 97, 50))
    assert best(network, loads, [even_shares], current=near) == near
    assert best(network, loads, [even_shares], current=far) == even_shares


def test_the_last_slice_passes_every_edge():
    network = mesh(3, rate=1e5)
    chain = dealt(even(4), {0: [(Route(3, (1, 2, 3), (1, 2, 3)), 1)]})
    assert last_s(network, even(4), chain) == pytest.approx(6.0)
    assert last_s(network, even(4), star(network, even(4))) == pytest.approx(2.0)
