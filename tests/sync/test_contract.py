"""What the contract tells of policies from their plans."""

from __future__ import annotations

import pytest

from geomx.sync import policies
from geomx.sync.contract import MOST_STEPS_AHEAD, LocalStep, furthest_step, mean_period


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


@pytest.mark.parametrize(
    ("spec", "step", "turns", "furthest"),
    [
        ("fsa", 4, 3, 7),
        ("mixed", -1, 1, 0),
        ("fsa", -1, 1 << 60, (1 << 60) - 1),
        ("hfa k1=5 k2=4", -1, 1, 19),
        ("hfa k1=5 k2=4", 19, 2, 59),
        ("hfa k1=2 k2=2 k3=2", 7, 0, 7),
        ("diloco every=100 fragments=5", 99, 2, 139),
        ("esync most=30", 10, 2, 130),  # somebody who has come back may have begun where the slowest was
        ("hfa k1=5 k2=4", -1, 1 << 60, None),
        ("downpour", 3, 1, None),
    ],
)
def test_how_far_workers_can_have_come(spec: str, step: int, turns: int, furthest: int | None) -> None:
    assert furthest_step(policies.make(spec), step, turns) == furthest


def test_a_policy_that_never_averages_is_not_asked_about_each_step_of_a_long_run() -> None:
    """Servers ask while the run goes on, and send no heartbeats meanwhile."""
    policy = policies.make("hfa k1=1048576 k2=1")
    asked: list[int] = []

    def step(number: int) -> LocalStep:
        asked.append(number)
        return type(policy).step(policy, number)

    policy.step = step  # type: ignore[method-assign]
    assert furthest_step(policy, 100, 8) is None
    assert 0 < len(asked) <= MOST_STEPS_AHEAD
