"""Ring, butterfly, binary blocks and parameter servers against tables written by hand. Node n is the holder."""

import pytest
from networks import MBIT, even, mesh

from geomx.errors import ConfigError
from geomx.overlay.butterfly import BinaryBlocks, Butterfly
from geomx.overlay.cost import busiest_s
from geomx.overlay.ps import ParameterServers
from geomx.overlay.ring import Ring


def tables(planner, members, slices=None):
    table = planner.plan(mesh(members), even(slices or members), 1)
    return [route.up for route in table.routes], [route.down for route in table.routes]


def test_a_ring_of_three():
    assert tables(Ring(), 3) == ([(3, 2, 0), (1, 3, 0), (1, 2, 3)], [(3, 0, 1), (2, 3, 1), (2, 0, 3)])


def test_parameter_servers():
    both = [(3, 0, 0), (1, 3, 1), (2, 2, 3)]
    assert tables(ParameterServers(), 3) == (both, both)


def test_a_butterfly_of_four():
    both = [(4, 0, 0, 1), (1, 4, 0, 1), (2, 3, 4, 2), (2, 3, 3, 4)]
    assert tables(Butterfly(), 4) == (both, both)


def test_a_butterfly_of_eight_halves_the_distance_each_step():
    up = tables(Butterfly(), 8)[0][5]  # 5 is 101
    steps = {4: [], 2: [], 1: []}
    for member, parent in enumerate(up):
        if parent != 8:
            steps[member ^ parent].append(member)
    assert steps == {4: [0, 1, 2, 3], 2: [6, 7], 1: [4]}


@pytest.mark.parametrize("members", [3, 6, 12])
def test_a_butterfly_has_powers_of_two(members):
    with pytest.raises(ConfigError, match="binary-blocks"):
        Butterfly().plan(mesh(members), even(members), 1)


def test_binary_blocks_of_seven():
    # blocks 0-3, 4-5 and 6; shares 0 and 1 are 4's, 2 and 3 are 5's; 6 hands on all
    both = [
        (7, 0, 0, 1, 0, 4, 4),
        (1, 7, 0, 1, 1, 4, 4),
        (2, 3, 7, 2, 5, 2, 5),
        (2, 3, 3, 7, 5, 3, 5),
    ]
    assert tables(BinaryBlocks(), 7, 4) == (both, both)


def test_binary_blocks_of_a_power_of_two_are_a_butterfly():
    assert tables(BinaryBlocks(), 8) == tables(Butterfly(), 8)


@pytest.mark.parametrize("planner", [Ring(), Butterfly(), BinaryBlocks(), ParameterServers()])
def test_members_carry_equal_parts(planner):
    # each sends the model to others but for its own share, its share of the sum to the holder, and the update likewise
    network, loads = mesh(8, access=100 * MBIT), even(80, up_bytes=125_000, down_bytes=125_000)
    assert busiest_s(network, loads, planner.plan(network, loads, 1)) == pytest.approx(0.8 * (1 + 7 / 8))
