"""What the contract tells of policies from their plans."""

from __future__ import annotations

import pytest

from geomx.sync import policies
from geomx.sync.contract import mean_period


@pytest.mark.parametrize(
    ("spec", "period"),
    [
        ("fsa", None),
        ("hfa k1=5 k2=4", 20),
        ("hfa k1=100000 k2=1", 100_000),
        ("diloco every=100", 100),
        ("diloco every=100 fragments=5", 100),
        ("diloco every=100 fragments=5 overlap=3", 100),
        ("esync", None),
    ],
)
def test_how_many_steps_pass_from_one_mean_of_a_weight_to_the_next(spec: str, period: int | None) -> None:
    assert mean_period(policies.make(spec)) == period
