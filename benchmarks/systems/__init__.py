"""The systems that are compared: a folder each, found by its name.

adapter.py        what runs where: `SYSTEM`, a `benchmarks.systems.base.System`
train.py          what a worker runs, in the system's own environment
requirements.txt  pinned; without it the environment of the runner serves
"""

from __future__ import annotations

import importlib
from pathlib import Path

from benchmarks.systems.base import System

FOLDER = Path(__file__).parent
NAMES = tuple(sorted(path.parent.name for path in FOLDER.glob("*/adapter.py")))


def find(name: str) -> System:
    """The adapter of a system."""
    system: System = importlib.import_module(f"benchmarks.systems.{name}.adapter").SYSTEM
    return system
