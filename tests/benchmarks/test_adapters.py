"""What the adapters of all systems start, without starting it."""

from __future__ import annotations

import sys
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from benchmarks.suites import SUITES, cells_of_suite
from benchmarks.systems.adapters import SYSTEMS, Desk

WHOLE_PARTIES = ("raw", "simulated")  # in one process
CELLS = {
    (cell.system, cell.config): cell
    for suite in SUITES
    if suite != "synthetic"
    for cell in cells_of_suite(suite)
    if cell.system not in WHOLE_PARTIES
}


class Nowhere:
    """Addresses alone."""

    def __init__(self) -> None:
        self._ports = count(7000)

    def address(self, site: str) -> str:
        return "127.0.0.1"

    def port(self) -> int:
        return next(self._ports)


@pytest.mark.parametrize(("name", "config"), CELLS)
def test_each_worker_is_started_once_at_its_partys_site(name: str, config: str, tmp_path: Path) -> None:
    cell, system = replace(CELLS[name, config], parties=2, workers=2), SYSTEMS[name]
    desk = Desk(cell, Nowhere(), Path(sys.executable), tmp_path, system.configs[config])
    nodes, _ = system.nodes(desk)
    assert len({node.name for node in nodes}) == len(nodes)
    training = [node for node in nodes if not node.serves]
    assert sorted(node.name for node in training) == sorted(cell.worker_names)
    assert all(node.site == node.name.partition("/")[0] for node in training)
    if cell.hub != "none":
        sites = {node.site for node in nodes if node.serves and node.name not in cell.sites}
        assert sites == {cell.hub_site}
