"""Two regions of three parties in real processes: what they train, and what crosses the links."""

from __future__ import annotations

import json
import os
from pathlib import Path

import forks
import pytest
import torch
from safetensors.torch import load_file
from same_as_alone import SCRIPT, alone

pytestmark = [pytest.mark.processes, pytest.mark.grids]

REGIONS = {"paris": "europe", "bonn": "europe", "boston": "america"}


def test_three_tiers_train_what_one_process_does_and_a_region_is_one_on_the_long_links(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    model, toml, report = (tmp_path / name for name in ("model.safetensors", "run.toml", "report.json"))
    lines = ["[run]", 'script = "train.py"', f'arguments = ["{model}"]']
    lines += [f'[[region]]\nname = "{name}"' for name in ("europe", "america")]
    lines += [
        f'[[party]]\nname = "{party}"\nworkers = 1\nparent = "{name}"' for party, name in REGIONS.items()
    ]
    toml.write_text("\n".join(lines))
    done = forks.geomx(["run", str(toml), "--plain", "--report", str(report)], os.environ, tmp_path)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = load_file(model)
    for name, values in alone(len(REGIONS)).items():
        torch.testing.assert_close(found[f"model.{name}"], values, rtol=0.0, atol=1e-12)
    told = json.loads(report.read_text())
    assert isinstance(told["parameters_sha256"], str)  # of all workers, bit for bit
    for way in ("up", "down"):
        assert told[f"wan_bytes_{way}"] == pytest.approx(told[f"region_bytes_{way}"] * 2 / 3, rel=0.05)
