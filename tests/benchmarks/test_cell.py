"""One small cell of the benchmark, whole: a network, processes, figures.

Skipped, with the reason, where it cannot be had.
"""

import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.cells import read_results
from lab import system

ROOT = Path(__file__).parents[2]
MISSING = system.missing_here()
PARAMETERS = 20_000


@pytest.mark.grids
@pytest.mark.lab
@pytest.mark.processes
@pytest.mark.skipif(bool(MISSING), reason="; ".join(MISSING))
def test_a_cell_of_geomx_beside_raw_sockets_leaves_its_figures(tmp_path):
    path = tmp_path / "cell.jsonl"
    command = [sys.executable, str(ROOT / "benchmarks" / "run.py"), "--synthetic", str(PARAMETERS)]
    options = ["--only", "geomx", "raw", "--configs", "dense", "sockets"]
    options += ["--rounds", "2", "--turns", "1", "--out", str(path)]
    done = subprocess.run([*command, *options], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr
    results = read_results(path)
    assert {(result.system, result.hub) for result in results} == {
        (system, hub) for system in ("geomx", "raw") for hub in ("own site", "A")
    }
    for result in results:
        assert result.is_ok, result.state
        assert result.rounds == 2
        assert result.round_s_median is not None
        assert result.floor_s is not None
        assert result.round_s_median > result.floor_s > 0
        assert result.wan_bytes_up is not None
        # A network carried them, but for what other workers had sent of a round when the first one read its counters.
        assert result.wan_bytes_up * result.rounds > 4 * PARAMETERS * (result.rounds - 1)
        assert result.cpu_s
