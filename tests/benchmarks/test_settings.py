"""What geomx's configurations stand for."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.cells import Cell
from benchmarks.grounds import Ground
from benchmarks.page import settings
from benchmarks.systems.adapters import SYSTEMS, Desk, geomx_toml
from geomx.config import Run

CONFIGS = SYSTEMS["geomx"].configs
CELL = Cell("geomx", "", "cnn-179k", 178_762, "100mbit-30ms")
LOCAL = {"A": "10.0.0.1:7000", "B": "10.0.1.1:7000"}


@pytest.mark.parametrize("config", CONFIGS)
def test_each_is_a_description_that_has_what_it_sets(config: str) -> None:
    options = CONFIGS[config]
    shards = [f"10.0.2.1:{7000 + shard}" for shard in range(options.get("run.shards", 1))]
    desk = Desk(CELL, Ground(), Path(), Path(), options)
    run = Run.parse(geomx_toml(desk, shards, LOCAL), "bench.toml")
    keys = {key: value for key, value in options.items() if "." in key}
    assert run == run.changed([f"{key}={value}" for key, value in keys.items()])
    assert [run.party(site).workers for site in LOCAL] == [2, 2]
    assert (run.link_of("A") is not None) == ("in_process" in options)
    assert run.party("A").pace_mbps == (97.0 if "pace" in options else None)


def test_the_page_lists_all_that_set_something() -> None:
    rows = "\n".join(settings().lines())
    assert '`sync.policy = "hfa k1=20 k2=2"`, `wan.codec_up = "int4"`, `wan.codec_down = "int4"`' in rows
    assert "`run.shards = 2`" in rows
    assert "`party.pace_mbps`: 97% of the link" in rows
    assert "SGD in place of Adam" in rows
    assert len(settings().rows) == sum(bool(options) for options in CONFIGS.values())
