"""The floors, against figures worked out by hand."""

import pytest

from benchmarks.floors import (
    Path,
    exchange_s,
    flat_s,
    hidden_from_mbps,
    index_bits,
    round_s,
    sharded_over_sites_s,
    shared_link_s,
)

FAST, SLOW = Path(100, 100, 0.03), Path(20, 20, 0.1)
CNN_BYTES = 4 * 1_068_490


@pytest.mark.parametrize(("path", "floor_s"), [(FAST, 0.372), (SLOW, 1.81)])
def test_push_and_update_at_once_take_one_round_trip_and_the_bytes_at_the_rate(path, floor_s):
    assert exchange_s(CNN_BYTES, path) == pytest.approx(floor_s, rel=2e-3)


@pytest.mark.parametrize(("share", "floor_s"), [(1 / 2, 0.201), (1 / 146, 0.0323)])
def test_compressed_bytes_take_their_share_of_the_rate_and_the_whole_round_trip(share, floor_s):
    assert exchange_s(CNN_BYTES * share, FAST) == pytest.approx(floor_s, rel=5e-3)


def test_the_slower_direction_counts():
    assert exchange_s(1e6, Path(100, 20, 0.0)) == pytest.approx(0.4)
    assert exchange_s(1e6, Path(20, 100, 0.0)) == pytest.approx(0.4)


def test_a_round_is_that_of_the_slowest_party():
    assert round_s(CNN_BYTES, [FAST, SLOW]) == exchange_s(CNN_BYTES, SLOW)


def test_a_round_without_a_way_over_the_wan_takes_no_time():
    assert round_s(CNN_BYTES, []) == 0.0


def test_a_link_that_all_parties_share_carries_the_bytes_of_all():
    assert shared_link_s(1e6, 4, Path(100, 100, 0.03)) == pytest.approx(0.03 + 4 * 0.08)


def test_without_local_servers_each_worker_counts():
    assert flat_s(CNN_BYTES, 2, FAST) == pytest.approx(0.03 + 2 * 0.3419, rel=1e-3)


def test_shards_at_two_sites_halve_what_crosses_and_double_what_a_link_carries():
    assert sharded_over_sites_s(CNN_BYTES, 2, FAST) == pytest.approx(exchange_s(CNN_BYTES, FAST))


def test_shards_at_more_sites_move_more():
    two, four = (sharded_over_sites_s(1e6, sites, Path(100, 100, 0.0)) for sites in (2, 4))
    assert four / two == pytest.approx(1.5)


def test_what_hides_behind_computing_needs_no_more_than_this_rate():
    rate = hidden_from_mbps(1e6, 10, 0.1)
    assert rate == pytest.approx(8.0)
    assert exchange_s(1e6, Path(rate, rate, 0.0)) == pytest.approx(10 * 0.1)


@pytest.mark.parametrize(("density", "bits"), [(0.01, 8.08), (1 / 64, 7.4)])
def test_the_place_of_a_sparse_entry_takes_its_entropy(density, bits):
    assert index_bits(density) == pytest.approx(bits, abs=0.05)


@pytest.mark.parametrize("density", [0.0, 1.0, -0.1, 2.0])
def test_a_density_is_a_share(density):
    with pytest.raises(ValueError, match="between 0 and 1"):
        index_bits(density)
