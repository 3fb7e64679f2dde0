"""Members' nonsense, to both ends of a flow: see `tests/fuzz/datagrams.py`, which tries more on its own."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest
from fuzz.datagrams import to_the_ends, to_the_seal


@pytest.mark.parametrize(("siege", "share"), [(to_the_ends, 0.75), (to_the_seal, 0.25)])
@pytest.mark.parametrize("number", [20_000, pytest.param(880_000, marks=pytest.mark.grids)])
def test_nonsense_is_refused_or_changes_nothing_beyond_its_bounds(
    siege: Callable[[int, int], Counter[str]], share: float, number: int
) -> None:
    counts = siege(round(share * number), number)
    assert counts["refused"] > share * number / 20
