"""What a connection does when its time is over must not depend on how busy the machine is."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from wires import PATIENCE_S


@pytest.fixture(scope="module", autouse=True)
def _patient() -> Iterator[None]:
    """A test that needs a short limit sets it itself, and then waits for nothing else."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("geomx.channels.connection.CLOSE_LIMIT_S", PATIENCE_S)
        patch.setattr("geomx.channels.tcp.DIAL_LIMIT_S", PATIENCE_S)
        yield
