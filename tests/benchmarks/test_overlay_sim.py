import pytest

from benchmarks import overlay_sim


@pytest.mark.grids
@pytest.mark.parametrize("site", ["3", "5"])
def test_trees_come_near_the_programs_optimum_on_nine_sites(site):
    """Real nodes, that begin by knowing nothing of the network."""
    row = overlay_sim.measured("trees", 11e6, "static", site, 7, 5)
    assert row["round_s"] <= 1.1 * row["optimum_s"]
    assert row["optimum_s"] >= row["floor_s"] * (1 - 1e-6)
