"""Tests of the codecs run twice: with the compiled kernels, and with torch operations alone."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from geomx.codecs.pack import native


@pytest.fixture(params=["kernels", "torch"], scope="module")
def inner_loops(request: pytest.FixtureRequest) -> Iterator[None]:
    if request.param == "torch":
        with native.switched_off():
            yield
    elif native.available():
        yield
    else:
        pytest.skip("built without a C compiler")
