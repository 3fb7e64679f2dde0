"""A small run, and the faults of a wrong one."""

from __future__ import annotations

from pathlib import Path

import pytest

from geomx.config import EVERY_FILE, Run, load_whole
from geomx.errors import ConfigError, Fault

TWO_PARTIES = """
[[party]]
name = "A"
workers = 2
[[party]]
name = "B"
workers = 1
"""

# A party of each kind, and updates that are deltas.
TWO_KINDS = """
[run]
name = "two"
[wan]
codec_down = "int4"
[[party]]
name = "A"
workers = 2
[[party]]
name = "B"
workers = 2
inside = "collective"
"""


def faults_of(text: str, *overrides: str, source: str = "run.toml") -> tuple[Fault, ...]:
    with pytest.raises(ConfigError) as caught:
        Run.parse(text, source, overrides)
    return caught.value.faults


def places_of(text: str, *overrides: str) -> list[str]:
    return [fault.where for fault in faults_of(text, *overrides)]


def two_parties(*overrides: str) -> Run:
    return Run.parse(TWO_PARTIES, "two.toml", overrides)


def fault_of_file(folder: Path, text: str) -> Fault:
    path = folder / "run.toml"
    path.write_text(text)
    return fault_of(path)


def fault_of(path: Path) -> Fault:
    """The one fault of a description in a file, and of what it names."""
    with pytest.raises(ConfigError) as caught:
        load_whole(path, needed=EVERY_FILE)
    (fault,) = caught.value.faults
    return fault
