"""Two regions of three parties in real processes: what they train, and what crosses the links."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.processes, pytest.mark.grids]

SCRIPT = """
import sys, torch, geomx

torch.set_num_threads(1)
run = geomx.join()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Tanh(), torch.nn.Linear(50, 100)).double()
model, optimizer = run.attach(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9))
place = run.workers.index(run.name)
for step in range(10):
    generator = torch.Generator().manual_seed(100 * step + place)
    x = torch.randn(4 + place, 100, generator=generator, dtype=torch.float64)
    optimizer.zero_grad()
    run.weight(len(x))
    (model(x) - x.roll(1, 1)).pow(2).mean().backward()
    optimizer.step()
run.save(sys.argv[1])
"""
REGIONS = {"paris": "europe", "bonn": "europe", "boston": "america"}


def alone() -> dict[str, torch.Tensor]:
    """What plain PyTorch comes to, with the batches of all."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.Tanh(), torch.nn.Linear(50, 100)).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for step in range(10):
        generators = [torch.Generator().manual_seed(100 * step + place) for place in range(len(REGIONS))]
        batches = [
            torch.randn(4 + n, 100, generator=g, dtype=torch.float64) for n, g in enumerate(generators)
        ]
        x = torch.cat(batches)
        optimizer.zero_grad()
        (model(x) - x.roll(1, 1)).pow(2).mean().backward()
        optimizer.step()
    return model.state_dict()


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
    command = [sys.executable, "-m", "geomx", "run", str(toml), "--plain", "--report", str(report)]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    found = load_file(model)
    for name, values in alone().items():
        torch.testing.assert_close(found[f"model.{name}"], values, rtol=0.0, atol=1e-12)
    told = json.loads(report.read_text())
    assert isinstance(told["parameters_sha256"], str)  # of all workers, bit for bit
    for way in ("up", "down"):
        assert told[f"wan_bytes_{way}"] == pytest.approx(told[f"region_bytes_{way}"] * 2 / 3, rel=0.05)
