"""A trainer of another library over two parties is that trainer alone with batches of both."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.processes, pytest.mark.grids]
HERE = Path(__file__).parent
PARTIES = "".join(f'[[party]]\nname = "{name}"\nworkers = 1\n' for name in "AB")
# of each: its script, the batch of both workers, how many steps it takes, what it leaves
TRAINERS = {
    "transformers": ("trainer_script.py", 4, 10, ["checkpoint-10", "checkpoint-5"]),
    "accelerate": ("accelerate_script.py", 4, 10, ["1", "2"]),
    "lightning": ("lightning_script.py", 10, 24, [f"epoch={epoch}.ckpt" for epoch in range(4)]),
}


def over_two_parties(script: str, folder: Path, batch: int, *arguments: str) -> str:
    """What a run of two workers says."""
    folder.mkdir(exist_ok=True)
    told = ", ".join(f'"{each}"' for each in (str(folder), str(batch), *arguments))
    toml = folder / "two.toml"
    toml.write_text(f'[run]\nscript = "{HERE / script}"\narguments = [{told}]\nledger = true\n{PARTIES}')
    command = [sys.executable, "-m", "geomx", "run", str(toml), "--plain"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert "proved by the ledger" in done.stderr + done.stdout
    return done.stderr + done.stdout


def assert_near(ours: Path, theirs: Path) -> None:
    """Up to float32, in which Transformers computes losses."""
    mine, others = (dict(load_file(folder / "final.safetensors")) for folder in (ours, theirs))
    assert mine.keys() == others.keys()
    for name, values in others.items():
        assert torch.allclose(mine[name], values, rtol=1e-6, atol=1e-6), name


@pytest.mark.parametrize("library", TRAINERS)
def test_two_parties_are_one_and_checkpoints_go_on(library: str, tmp_path: Path) -> None:
    """Clipping, a schedule, evaluation, callbacks; Transformers counts tokens over accumulated batches."""
    pytest.importorskip(library, reason=f"needs geomx[{library}]")
    script, batch, steps, left = TRAINERS[library]
    alone, two, half = (tmp_path / name for name in ("alone", "two", "half"))
    alone.mkdir()
    command = [sys.executable, str(HERE / script), str(alone), str(batch)]
    subprocess.run(command, capture_output=True, timeout=300, check=True)

    assert f"steps {steps}" in over_two_parties(script, two, batch // 2)
    assert_near(two, alone)
    assert sorted(path.name for path in (two / "out").iterdir()) == left

    over_two_parties(script, half, batch // 2, "--half")
    assert f"steps {steps}" in over_two_parties(script, half, batch // 2, "--resume")
    assert_near(half, alone)
