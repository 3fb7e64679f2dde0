"""Scripts that no other test runs can at least be started."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

SCRIPTS = sorted(path.stem for path in (Path(__file__).parents[2] / "benchmarks").glob("*.py"))


@pytest.mark.parametrize("script", SCRIPTS)
def test_every_script_finds_what_it_imports(script: str) -> None:
    if script == "pictures":
        pytest.importorskip("matplotlib")
    importlib.import_module(f"benchmarks.{script}")
