"""The example whose parties reduce among themselves, on the virtual clock."""

from __future__ import annotations

import importlib
import re
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from live_runs import dies, train
from torch.utils.data import TensorDataset

from geomx.errors import DataMissing
from geomx.rounds.losses import Losses
from geomx.train import LiveRun, Settings
from geomx.wire.session import Patience

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_a_worker_that_comes_back_begins_no_epoch_anew(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    inside = importlib.import_module("inside")
    runs: dict[int, LiveRun] = {}  # by thread
    joins = SimpleNamespace(join=lambda: runs[threading.get_ident()], DataMissing=DataMissing)
    monkeypatch.setattr(inside, "geomx", joins)
    samples = TensorDataset(torch.rand(60, 1, 28, 28), torch.arange(60) % 10)
    monkeypatch.setattr(inside.data, "load", lambda *_: (samples, samples))
    monkeypatch.setattr(sys, "argv", ["inside.py", "--epochs", "8", "--batch", "10"])

    def script(live: LiveRun) -> int:
        runs[threading.get_ident()] = live
        inside.main()
        return live.epoch

    how: dict[str, Any] = {"losses": Losses("continue", 60.0), "patience": Patience(0.1, 0.4)}
    faults = dies("A/0", at_s=0.1, back_s=0.3)
    results, _ = train((2, 1), script, Settings(on_loss="continue"), faults=faults, **how)
    printed = [int(epoch) for epoch in re.findall(r"^epoch +(\d+) ", capsys.readouterr().out, re.MULTILINE)]
    assert printed == sorted(set(printed))
    assert len(printed) < 8
    assert set(results.values()) == {8}
