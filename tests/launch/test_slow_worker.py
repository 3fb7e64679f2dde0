"""Workers that are made slower than they are."""

from __future__ import annotations

import pytest

from geomx.launch.local import slow_worker as module
from geomx.launch.local.slow_worker import SlowWorker


@pytest.fixture
def slept(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    slept: list[float] = []

    class Clock:
        sleep = slept.append

    monkeypatch.setattr(module, "time", Clock)
    return slept


def test_the_next_step_is_late_by_what_a_slower_worker_would_need(slept: list[float]) -> None:
    slow = SlowWorker(4.0)
    slow.after_step(None)  # nobody knows how long it took
    slow.after_step(1.0)
    slow.after_step(0.25)
    assert slept == [0.0, 3.0, 0.75]


def test_jitter_strays_to_both_sides_and_repeats_from_its_seed(slept: list[float]) -> None:
    def owed(seed: str) -> list[float]:
        slept.clear()
        slow = SlowWorker(3.0, 0.5, seed)
        for _ in range(200):
            slow.after_step(1.0)
        return [round(seconds, 6) for seconds in slept]

    first = owed("0 A/0")
    assert 0.5 <= min(first) < 0.7
    assert 3.3 < max(first) <= 3.5
    assert first == owed("0 A/0") != owed("0 A/1")
