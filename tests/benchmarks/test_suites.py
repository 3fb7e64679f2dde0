"""The suites, and how their cells are seated."""

import pytest
from torch.distributed.algorithms.model_averaging import averagers

from benchmarks.cells import Cell
from benchmarks.grounds import NETWORKS, ways_of
from benchmarks.sitting import sittings
from benchmarks.suites import NETWORK_NAMES, SUITES, cells_of_suite
from benchmarks.systems.adapters import SYSTEMS
from benchmarks.systems.ddp import train as ddp

NAMES = [name for name in SUITES if name != "synthetic"]  # which is described on the command line
ALL = [(name, cell) for name in NAMES for cell in cells_of_suite(name)]
FAST = "100mbit-30ms"


def test_every_cell_has_a_network_that_there_is_and_a_hub_where_the_system_has_one():
    for name, cell in ALL:
        assert cell.network in NETWORK_NAMES
        assert (NETWORKS / f"{cell.network}.toml").exists()
        assert (cell.hub == "none") == (SYSTEMS[cell.system].hub == "none"), f"{name}: {cell}"


def test_no_cell_is_run_twice():
    for name in NAMES:
        cells = [str((cell, cell.identity)) for cell in cells_of_suite(name)]
        assert len(set(cells)) == len(cells)


def test_cells_that_are_compared_sit_together():
    cells = list(cells_of_suite("full"))
    groups = sittings(cells)
    for group in groups:
        assert len({(cell.network, cell.congestion, cell.workload, cell.shape) for cell in group}) == 1
    assert sum(map(len, groups)) == len(cells)


def test_the_quick_suite_is_one_sitting_of_who_is_compared_first():
    (sitting,) = sittings(cells_of_suite("quick"))
    assert {"raw", "geomx", "ddp", "mxnet"} == {cell.system for cell in sitting}


def test_rounds_of_many_steps_are_fewer():
    cells = cells_of_suite("full", rounds_a_turn=30)
    cell = next(cell for cell in cells if cell.every == 10)
    assert (cell.rounds_a_turn, cell.warmup, cell.steps) == (3, 1, 40)


def test_what_begins_dense_is_measured_behind_that():
    begins_dense = [
        cell for _, cell in ALL if cell.system == "ddp" and cell.config.startswith(("PowerSGD", "post"))
    ]
    assert begins_dense
    for cell in begins_dense:
        assert cell.warmup * cell.every > ddp.WARMUP, str(cell)


def test_whoever_averages_seldom_does_so_behind_the_steps_that_are_looked_at(monkeypatch):
    averaged = []
    monkeypatch.setattr(
        averagers.utils, "average_parameters_or_parameter_groups", lambda step, _: averaged.append(step)
    )
    averager = averagers.PeriodicModelAverager(**ddp.averaging(10), process_group=object())
    for step in range(1, 41):  # asked behind each step, as PostLocalSGDOptimizer does
        averager.average_parameters(step)
    assert averaged == [10, 20, 30, 40]


def test_parties_have_names_beyond_the_alphabet():
    assert cell_of(parties=28).sites[24:] == ("Y", "Z", "P26", "P27")


def cell_of(network=FAST, **more):
    return Cell("geomx", "dense", "cnn-1m", 1_068_490, network, **more)


@pytest.mark.parametrize(("hub", "ways"), [("own site", 2), ("none", 2), ("A", 1)])
def test_whoever_stands_in_the_hubs_site_has_no_way_over_the_wan(hub, ways):
    found = ways_of(cell_of(hub=hub)).values()
    assert [(way.up_mbps, way.down_mbps, way.round_trip_s) for way in found] == [(100, 100, 0.03)] * ways


def test_unequal_parties_have_ways_of_their_own():
    rates = [way.up_mbps for way in ways_of(cell_of("unequal", parties=3)).values()]
    assert sorted(rates, reverse=True) == [100, 20, 5]


def test_more_parties_than_the_file_has_sites_get_sites_of_the_same_kind():
    assert len(ways_of(cell_of(parties=16))) == 16
