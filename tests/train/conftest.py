from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch


@pytest.fixture
def _fresh_dynamo() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()
