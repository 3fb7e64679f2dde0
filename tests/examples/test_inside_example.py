"""The example whose parties reduce among themselves, on the virtual clock."""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from live_runs import train

from geomx.errors import DataMissing
from geomx.rounds.losses import Losses
from geomx.simulate.simulator import Simulator
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
    monkeypatch.setattr(sys, "argv", ["inside.py", "--epochs", "8", "--batch", "240"])

    def script(live: LiveRun) -> int:
        runs[threading.get_ident()] = live
        inside.main()
        return live.epoch

    def faults(simulator: Simulator, restart: Callable[[str], None]) -> None:
        simulator.at(0.1, lambda: simulator.crash("A/0"))
        simulator.at(0.3, lambda: restart("A/0"))

    how: dict[str, Any] = {"losses": Losses("continue", 60.0), "patience": Patience(0.1, 0.4)}
    results, _ = train((2, 1), script, Settings(on_loss="continue"), faults=faults, **how)
    printed = [
        int(line.split()[1]) for line in capsys.readouterr().out.splitlines() if line.startswith("epoch")
    ]
    assert printed == sorted(set(printed))
    assert len(printed) < 8
    assert set(results.values()) == {8}
