"""What `lossy.py` prints of its rows, and one turn of it over a network that is really up."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import lossy, sweep
from lab import system

ROOT = Path(__file__).parents[2]
MISSING = system.missing_here()
KEY = {"network": "bad", "system": "TCP", "codec": "fp16"}
ROW = KEY | {"rounds": 2, "seconds": [1.0, 1.0, 2.0, 4.0], "up_bytes": 2e6, "down_bytes": 1e6}
ROW |= {"stalled": 0.1, "late": 0.0}


def test_rounds_are_pooled_over_turns():
    (line,) = lossy.pooled([ROW, ROW | {"seconds": [1.0, 1.0, 1.0, 1.0], "up_bytes": 4e6, "stalled": 0.3}])
    figures = {"rounds": 4, "median s": 1.0, "p95 s": 4.0, "p99 s": 4.0, "MB up": 3.0, "MB down": 1.0}
    assert line == pytest.approx(KEY | figures | {"stalled": "20%", "late": "0%"})


def test_a_turn_without_a_round_has_a_line_without_figures():
    (line,) = lossy.pooled([KEY | {"rounds": 0, "seconds": []}])
    assert (line["rounds"], line["median s"]) == (0, "–")


def test_rows_that_the_page_was_made_of_can_be_shown():
    found = lossy.pooled(sweep.rows_of(ROOT / "docs" / "data" / "lossy.jsonl"))
    bbr = next(
        line for line in found if (line["network"], line["system"]) == ("20mbit-100ms-1loss", "TCP bbr")
    )
    assert f"{bbr['median s']:.2f} ({bbr['p99 s']:.2f})" == "1.35 (2.14)"


def test_every_network_of_the_file_exists_and_every_system_is_described():
    networks = {path.stem for path in (ROOT / "lab" / "networks").glob("*.toml")}
    assert {*lossy.TABLE["networks"]} <= networks
    assert all("." in key for options in lossy.TABLE["systems"].values() for key in options)


@pytest.mark.grids
@pytest.mark.lab
@pytest.mark.processes
@pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))
def test_a_turn_leaves_its_rounds_and_what_the_router_counted(tmp_path):
    path, rounds, parameters = tmp_path / "rows.jsonl", 12, 20_000  # what is counted at either end is a guess
    command = [sys.executable, str(ROOT / "benchmarks" / "lossy.py"), "--networks", "20mbit-100ms-5loss"]
    options = ["--systems", "TCP bbr", "--rounds", str(rounds), "--parameters", str(parameters)]
    options += ["--out", str(path), "--let-cores-sleep"]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = sweep.rows_of(path)
    assert row["state"] == "ok"
    assert len(row["seconds"]) == 2 * rounds
    assert min(row["seconds"]) > 0.1  # the round trip
    assert row["up_bytes"] > 2 * parameters
    assert row["down_bytes"] > 2 * parameters
