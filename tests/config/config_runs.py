"""A small run, and the faults of a wrong one."""

from __future__ import annotations

import pytest

from geomx.config import Run
from geomx.errors import ConfigError, Fault

TWO_PARTIES = """
[[party]]
name = "A"
workers = 2
[[party]]
name = "B"
workers = 1
"""


def faults_of(text: str, *overrides: str, source: str = "run.toml") -> tuple[Fault, ...]:
    with pytest.raises(ConfigError) as caught:
        Run.parse(text, source, overrides)
    return caught.value.faults


def places_of(text: str, *overrides: str) -> list[str]:
    return [fault.where for fault in faults_of(text, *overrides)]


def two_parties(*overrides: str) -> Run:
    return Run.parse(TWO_PARTIES, "two.toml", overrides)
