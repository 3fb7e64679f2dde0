"""Workers that are made slower than they are."""

from __future__ import annotations

import pytest

from geomx.train.steps import delay as module
from geomx.train.steps.delay import Delay


class Clock:
    """Time that passes when somebody sleeps or works."""

    def __init__(self) -> None:
        self.now, self.slept = 0.0, list[float]()

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(module, "time", made)
    return made


def test_the_next_forward_is_late_by_what_a_slower_worker_would_need(clock: Clock) -> None:
    slow = Delay(4.0)
    for work_s in (1.0, 0.5):
        slow.before_forward()
        clock.now += work_s / 2
        slow.before_forward()  # a second forward of the same step
        clock.now += work_s / 2
        slow.before_step()
    slow.before_forward()
    assert clock.slept == [0.0, 3.0, 1.5]


def test_jitter_strays_to_both_sides_and_repeats_from_its_seed(clock: Clock) -> None:
    def owed(seed: str) -> list[float]:
        clock.slept, slow = [], Delay(3.0, 0.5, seed)
        for _ in range(200):
            slow.before_forward()
            clock.now += 1.0
            slow.before_step()
        return [round(seconds, 6) for seconds in clock.slept[1:]]

    first = owed("0 A/0")
    assert 0.5 <= min(first) < 0.7
    assert 3.3 < max(first) <= 3.5
    assert first == owed("0 A/0") != owed("0 A/1")
