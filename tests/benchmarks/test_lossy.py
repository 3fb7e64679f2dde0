"""What `lossy.py` prints of its rows, and one turn of it over a network that is really up."""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import lossy, sweep
from lab import system

ROOT = Path(__file__).parents[2]
MISSING = system.missing_here()
ROW = {
    **{
        "kind": "rounds",
        "workload": "synthetic",
        "shape": "2x1",
        "network": "bad",
        "system": "TCP",
        "codec": "fp16",
    },
    **{"rounds": 2, "seconds": [1.0, 1.0, 2.0, 4.0], "up_bytes": 2e6, "down_bytes": 1e6, "up_lost": 0.01},
    **{"up_overflowed": 0.0, "down_overflowed": 0.002, "stalled": 0.1, "late": 0.0},
}
TRAINED = {key: ROW[key] for key in ("workload", "shape", "network", "system", "codec")} | {"kind": "train"}


def test_rounds_are_pooled_over_turns():
    other = ROW | {"seconds": [1.0, 1.0, 1.0, 1.0], "up_bytes": 4e6, "stalled": 0.3}
    line = lossy.table([ROW, other]).splitlines()[-1]
    assert line == (
        "| bad | TCP | fp16 | 4 | 1.000 | 4.000 | 4.000 | 3.00 | 1.00 | 1.00% | 0.00% | 0.20% | 20% | 0% |"
    )


def test_a_turn_without_a_round_has_a_line_without_figures():
    line = lossy.table([{key: ROW[key] for key in TRAINED} | {"kind": "rounds", "rounds": 0, "seconds": []}])
    assert line.splitlines()[-1].startswith("| bad | TCP | fp16 | 0 | – |")


def test_seeds_that_reach_the_target_are_counted():
    found = {"to_target_s": 20.0, "accuracy": 0.86, "wan_bytes": 3e6}
    rows = [TRAINED | {"seed": 0} | found, TRAINED | {"seed": 1, "best_accuracy": 0.5}]
    line = lossy.table(rows).splitlines()[-1]
    assert line == "| bad | TCP | fp16 | 0, 1 | 1 of 2 | 20.0 | 20.0 | 20.0 | 86.00% | 3.0 |"


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
