"""Strangers' datagrams at a real socket: see `tests/fuzz/datagrams.py`, which tries more on its own."""

from __future__ import annotations

import pytest
from fuzz.datagrams import to_the_port
from wires import run_on


@pytest.mark.parametrize("number", [4_000, pytest.param(110_000, marks=pytest.mark.grids)])
def test_a_stranger_changes_nothing_and_gets_no_answer(loop_name: str, number: int) -> None:
    counts = run_on(loop_name, lambda: to_the_port(number, number))
    assert counts["sent"] >= number
