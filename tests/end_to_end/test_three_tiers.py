"""Two regions of two parties of two workers, in real processes: what they train, and what crosses the links."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.processes, pytest.mark.grids]

SCRIPT = """
import sys
import torch
from torch import nn
import geomx

torch.set_num_threads(1)
run = geomx.join()
torch.manual_seed(0)
model = nn.Sequential(nn.Linear(100, 500), nn.Tanh(), nn.Linear(500, 100)).double()
model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
for step in range(20):
    generator = torch.Generator().manual_seed(100 * step + run.workers.index(run.name))
    x = torch.randn(4 + run.workers.index(run.name), 100, generator=generator, dtype=torch.float64)
    optimizer.zero_grad()
    run.weight(len(x))
    (model(x) - x.roll(1, 1)).pow(2).mean().backward()
    optimizer.step()
run.save(sys.argv[1])
"""
PARTIES = (("paris", "europe"), ("bonn", "europe"), ("boston", "america"), ("austin", "america"))


def launched(folder: Path, regions: bool, codec: str) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
    """The weights that a run ends with, and its report."""
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    lines = ["[run]", 'script = "train.py"', f'arguments = ["{folder / "model.safetensors"}"]']
    lines += ["[wan]", f'codec_up = "{codec}"', f'codec_down = "{codec}"']
    lines += [f'[[region]]\nname = "{name}"' for name in ("europe", "america") if regions]
    for name, region in PARTIES:
        lines += [f'[[party]]\nname = "{name}"\nworkers = 2', f'parent = "{region}"' if regions else ""]
    (folder / "run.toml").write_text("\n".join(lines))
    report = folder / "report.json"
    command = [
        sys.executable,
        "-m",
        "geomx",
        "run",
        str(folder / "run.toml"),
        "--plain",
        "--report",
        str(report),
    ]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return load_file(folder / "model.safetensors"), json.loads(report.read_text())


def test_three_tiers_train_what_two_do_with_half_of_the_bytes_on_the_long_links(tmp_path: Path) -> None:
    two, flat = launched(tmp_path / "two", regions=False, codec="dense")
    three, deep = launched(tmp_path / "three", regions=True, codec="dense")
    assert max(float((two[name] - three[name]).abs().max()) for name in two) <= 1e-12
    assert isinstance(deep["parameters_sha256"], str)  # of all workers, bit for bit
    for way in ("wan_bytes_up", "wan_bytes_down"):
        assert deep[way] == pytest.approx(flat[way] / 2, rel=0.02)
    assert deep["region_bytes_up"] == pytest.approx(flat["wan_bytes_up"], rel=0.02)
