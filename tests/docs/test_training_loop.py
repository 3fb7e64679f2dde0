"""Every snippet of docs/training-loop.md trains, in a script of its own that has what a training script has."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "training-loop.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)

SCRIPT = """
from pathlib import Path

import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import geomx


def train(snippet: str) -> int:
    run = geomx.join()
    model = torch.nn.Linear(4, 3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(3, (8,))), batch_size=2)
    if "attach" not in snippet:
        model, optimizer = run.attach(model, optimizer)
    scope = globals() | locals() | {"epochs": 2, "steps": 2, "checkpoint": Path("checkpoint.safetensors")}
    scope["get_batch"] = lambda: next(iter(loader))
    exec(snippet, scope)
    steps = scope["run"].step
    for each in {run, scope["run"]}:
        each.close()
    return steps


for path in sorted(Path().glob("*.snippet")):
    print(path.stem, train(path.read_text(encoding="utf-8")))
"""


@pytest.mark.processes
def test_every_snippet_runs(tmp_path: Path) -> None:
    for number, snippet in enumerate(SNIPPETS):
        (tmp_path / f"{number}.snippet").write_text(snippet, encoding="utf-8")
    (tmp_path / "train.py").write_text(SCRIPT, encoding="utf-8")
    ended = subprocess.run(
        [sys.executable, "train.py"], cwd=tmp_path, check=True, capture_output=True, text=True
    )
    steps = dict(line.split() for line in ended.stdout.splitlines())
    assert len(steps) == len(SNIPPETS) > 4
    loops = {str(number) for number, snippet in enumerate(SNIPPETS) if "optimizer.step()" in snippet}
    assert {number for number, count in steps.items() if int(count)} == loops
    assert (tmp_path / "checkpoint.safetensors").is_file()
