import random

import pytest
from networks import even, links, mesh

from geomx.overlay.contract import star
from geomx.overlay.ts import TSEngine, played


def play(network, greed=1.0, up=True, size_bytes=100.0, seed="1"):
    return played(network, network.members, size_bytes, greed, random.Random(seed), up)


# 0 and 1, and 2 and 3, are near each other; 4 is the holder, which 2 reaches best
RATES = [
    [0, 90, 10, 10, 20],
    [80, 0, 10, 10, 30],
    [10, 10, 0, 50, 60],
    [10, 10, 70, 0, 20],
    [20, 30, 60, 20, 0],
]


def test_up_the_best_pairs_among_those_that_ask():
    # at once 0 → 1 (90 is the best) and 3 → 2 (70); then 2 → 4, faster than anything with 1, which is left with 4
    assert play(links(4, RATES)) == (1, 4, 4, 2)


def test_down_the_best_receivers_first_and_they_relay():
    # 4 → 2 (60) alone; then 2 → 3 (50) and 4 → 1 (30); then 2 → 0 (10), since 2 asks before 1 does
    assert play(links(4, RATES), up=False) == (2, 4, 4, 2)


def test_a_node_does_one_thing_at_a_time():
    assert play(mesh(3)) == (1, 3, 3)  # 0 → 1 and 2 → holder; then 1 → holder
    assert play(mesh(7), up=False) == (7, 0, 7, 0, 1, 2, 7)  # who has it doubles each time


def test_nobody_leaves_others_cut_off():
    # 1 is the best sender of all, and the only way for 0
    network = links(3, [[0, 5, 0, 0], [5, 0, 90, 0], [0, 90, 0, 5], [0, 0, 5, 0]])
    assert play(network) == (1, 2, 3)
    assert play(links(2, [[0, 5, 0], [5, 0, 0], [0, 0, 0]])) is None


@pytest.mark.parametrize("greed", [1.0, 0.9, 0.5, 0.0])
def test_others_than_the_best_are_tried_as_often_as_greed_says(greed):
    # 0 is told first, unless one of two is drawn, and that is 1; then 1 tells 0, unless drawn otherwise
    network = links(2, [[0, 5, 1], [20, 0, 1], [9, 1, 0]])
    drawn = (1 - greed) / 2
    found = sum(play(network, greed, False, seed=f"{k}")[0] == 1 for k in range(1000)) / 1000
    assert found == pytest.approx(drawn * (1 - drawn), abs=0.03)


def test_draws_depend_on_the_table_and_the_route():
    network, loads = mesh(6, access=1e5), even(32)
    plans = [TSEngine(greed=0.5).plan(network, loads, number) for number in (1, 1, 2)]
    assert plans[0] == plans[1] != plans[2]
    assert len(set(plans[0].routes)) > 8
    assert len(plans[0].routes) == 16


def test_without_in_cast_nothing_is_won():
    assert TSEngine().plan(mesh(6), even(32), 1) == star(mesh(6), even(32))
