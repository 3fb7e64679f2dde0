"""The suites, and how their cells are seated."""

import pytest
from torch.distributed.algorithms.model_averaging import averagers

from benchmarks import systems
from benchmarks.cells import CNN_1M, Cell, party_names
from benchmarks.grounds import NETWORKS, ways_of
from benchmarks.sitting import sittings
from benchmarks.suites import FAST, SUITES, UNEQUAL, base, cells_of, quick
from benchmarks.systems.ddp import train as ddp

ALL = [(name, cell) for name, make in SUITES.items() for cell in make().cells]


def test_every_cell_names_a_system_and_a_configuration_that_there_is():
    for name, cell in ALL:
        assert cell.config in systems.find(cell.system).configs, f"{name}: {cell}"


def test_every_cell_has_a_network_that_there_is():
    for network in {cell.network for _, cell in ALL}:
        assert (NETWORKS / f"{network}.toml").exists()


def test_a_hub_stands_somewhere_where_the_system_has_one():
    for name, cell in ALL:
        assert (cell.hub != "none") == systems.find(cell.system).has_hub, f"{name}: {cell}"


def test_the_steps_between_synchronisations_are_those_of_the_configuration():
    for name, cell in ALL:
        assert systems.find(cell.system).configs[cell.config].get("every", 1) == cell.every, f"{name}: {cell}"


def test_no_cell_is_run_twice():
    for make in SUITES.values():
        cells = [str((cell, cell.workload)) for cell in make().cells]
        assert len(set(cells)) == len(cells)


def test_cells_that_are_compared_sit_together():
    groups = sittings(SUITES["full"]().cells)
    for group in groups:
        assert len({(cell.network, cell.congestion, cell.workload, cell.shape) for cell in group}) == 1
    assert sum(map(len, groups)) == len(SUITES["full"]().cells)


def test_the_quick_suite_is_one_sitting_of_who_is_compared_first():
    suite = quick()
    assert len(sittings(suite.cells)) == 1
    assert {"raw", "geomx", "ddp", "mxnet"} == {cell.system for cell in suite.cells}


def test_rounds_of_many_steps_are_fewer():
    (cell,) = cells_of(
        [entry for entry in _entries() if entry.every == 10][:1], base(CNN_1M, FAST, 2, 1, rounds=30)
    )
    assert (cell.rounds, cell.warmup, cell.steps) == (3, 1, 40)


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


def _entries():
    from benchmarks.suites import EVERY_TEN  # noqa: PLC0415

    return EVERY_TEN


def test_parties_have_names_beyond_the_alphabet():
    assert party_names(28)[24:] == ("Y", "Z", "P26", "P27")


@pytest.mark.parametrize(("hub", "ways"), [("own site", 2), ("none", 2), ("A", 1)])
def test_whoever_stands_in_the_hubs_site_has_no_way_over_the_wan(hub, ways):
    found = ways_of(Cell("geomx", "dense", CNN_1M, FAST, hub=hub))
    assert [(way.up_mbps, way.down_mbps, way.round_trip_s) for way in found] == [(100, 100, 0.03)] * ways


def test_unequal_parties_have_ways_of_their_own():
    rates = [way.up_mbps for way in ways_of(Cell("geomx", "dense", CNN_1M, UNEQUAL, parties=3))]
    assert sorted(rates, reverse=True) == [100, 20, 5]


def test_more_parties_than_the_file_has_sites_get_sites_of_the_same_kind():
    assert len(ways_of(Cell("geomx", "dense", CNN_1M, FAST, parties=16))) == 16
