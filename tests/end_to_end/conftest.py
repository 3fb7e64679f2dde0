"""What tests of real processes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from real_runs import RealRun


@pytest.fixture
def real(tmp_path: Path) -> Iterator[Callable[..., RealRun]]:
    """Makes runs, in folders of these names, which are closed when the test ends."""
    started: list[RealRun] = []

    def make(name: str = "", **options: Any) -> RealRun:
        folder = tmp_path / name
        folder.mkdir(exist_ok=True)
        started.append(RealRun(folder, **options))
        return started[-1]

    yield make
    for run in started:
        run.close()
