"""An overlay between parties and inside of them, in real processes: what they train, and who sends to whom."""

from __future__ import annotations

import json
import os
from pathlib import Path

import forks
import pytest
import torch
from safetensors.torch import load_file
from same_as_alone import SCRIPT, alone

pytestmark = pytest.mark.processes

PARTIES = {"paris": 2, "bonn": 1, "boston": 1}


@pytest.mark.grids
@pytest.mark.processes
def test_parties_and_workers_in_rings_train_what_one_process_does(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    model, toml, report = (tmp_path / name for name in ("model.safetensors", "run.toml", "report.json"))
    lines = ["[run]", 'script = "train.py"', f'arguments = ["{model}"]', "ledger = true", 'overlay = "ring"']
    lines += ["[lan]", 'overlay = "ring"', "link = { rate_mbps = 900, delay_ms = 1 }", "timeout_s = 60"]
    lines += ["[layout]", "slice_elements = 1000", "[wan]", "link = { rate_mbps = 200, delay_ms = 1 }"]
    lines += ["timeout_s = 60"]  # where much else runs, a process may not for a while
    lines += [f'[[party]]\nname = "{name}"\nworkers = {workers}' for name, workers in PARTIES.items()]
    toml.write_text("\n".join(lines))
    done = forks.geomx(["run", str(toml), "--plain", "--report", str(report)], os.environ, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = load_file(model)
    for name, values in alone(sum(PARTIES.values())).items():
        torch.testing.assert_close(found[f"model.{name}"], values, rtol=0.0, atol=1e-12)
    told = json.loads(report.read_text())
    assert told["counted_exactly_once"] is True
    assert isinstance(told["parameters_sha256"], str)
    between = told["overlay"]["between"]
    crossed = sum(size for node, sent in between.items() if "/" not in node for size in sent.values())
    assert told["wan_bytes_up"] > crossed  # what parties send each other goes over the WAN
    assert told["overlay"]["tables"]["used"] == 2  # between parties, and in the one that has several workers
    assert min(between["bonn"]["boston"], between["boston"]["paris"], between["paris"]["bonn"]) > 40_000
    assert between["paris/0"]["paris/1"] > 40_000
