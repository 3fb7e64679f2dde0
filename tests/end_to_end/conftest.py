"""What tests of real processes share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from real_runs import RealRun


@pytest.fixture
def runs() -> Iterator[list[RealRun]]:
    """Runs that are closed when the test ends."""
    started: list[RealRun] = []
    yield started
    for run in started:
        run.close()
