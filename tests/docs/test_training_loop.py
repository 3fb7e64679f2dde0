"""Every snippet of docs/training-loop.md trains, among what a training script has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.utils.data import DataLoader, TensorDataset

import geomx

PAGE = Path(__file__).parents[2] / "docs" / "training-loop.md"
SNIPPETS = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)


def train(snippet: str) -> int:
    """The steps that a snippet takes."""
    run, model = geomx.join(), torch.nn.Linear(4, 3)
    optimizer: Any = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    loader = DataLoader(TensorDataset(torch.randn(8, 4), torch.randint(3, (8,))), batch_size=2)
    if "attach" not in snippet:
        model, optimizer = run.attach(model, optimizer)
    scope = {"geomx": geomx, "torch": torch, "F": F, "Path": Path} | locals()
    scope |= {"epochs": 2, "steps": 2, "checkpoint": Path("checkpoint.safetensors")}
    if "critic" in snippet:
        scope |= {name: torch.nn.Linear(4, 4) for name in ("generator", "critic")}
        for name, model in (("optimizer_g", scope["generator"]), ("optimizer_c", scope["critic"])):
            scope[name] = torch.optim.SGD(model.parameters(), lr=0.1)
    scope["get_batch"] = lambda: next(iter(loader))
    exec(snippet, scope)
    for each in {run, scope["run"]}:
        each.close()
    return int(scope["run"].step)


def test_every_snippet_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    steps = [train(snippet) for snippet in SNIPPETS]
    assert len(steps) > 4
    assert [count > 0 for count in steps] == [
        "optimizer.step()" in snippet or "critic" in snippet for snippet in SNIPPETS
    ]
    assert Path("checkpoint.safetensors").is_file()
