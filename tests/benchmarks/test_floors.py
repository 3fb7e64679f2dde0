"""The floors, against figures worked out by hand."""

import pytest

from benchmarks.grounds import Way, round_s

FAST, SLOW = Way(100, 100, 0.03), Way(20, 20, 0.1)
CNN_BYTES = 4 * 1_068_490


@pytest.mark.parametrize(("way", "floor_s"), [(FAST, 0.372), (SLOW, 1.81)])
def test_push_and_update_at_once_take_one_round_trip_and_the_bytes_at_the_rate(way, floor_s):
    assert round_s(CNN_BYTES, [way]) == pytest.approx(floor_s, rel=2e-3)


@pytest.mark.parametrize(("share", "floor_s"), [(1 / 2, 0.201), (1 / 146, 0.0323)])
def test_compressed_bytes_take_their_share_of_the_rate_and_the_whole_round_trip(share, floor_s):
    assert round_s(CNN_BYTES * share, [FAST]) == pytest.approx(floor_s, rel=5e-3)


def test_the_slower_direction_counts():
    assert round_s(1e6, [Way(100, 20, 0.0)]) == pytest.approx(0.4)
    assert round_s(1e6, [Way(20, 100, 0.0)]) == pytest.approx(0.4)


def test_a_round_is_that_of_the_slowest_party():
    assert round_s(CNN_BYTES, [FAST, SLOW]) == round_s(CNN_BYTES, [SLOW])


def test_a_round_without_a_way_over_the_wan_takes_no_time():
    assert round_s(CNN_BYTES, []) == 0.0
