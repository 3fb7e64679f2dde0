"""What holds on one directed link, and which values are allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

from lab.errors import Fault


@dataclass(frozen=True, slots=True)
class Conditions:
    """One directed link at one moment. Rates count IP packets as they are on the wire, headers and all.

    A segment is lost with probability `loss` while the link is good and `burst_loss` while it is bad; before
    each segment a good link turns bad with probability `burst_enter` and a bad one good with `burst_leave`
    (Gilbert-Elliott).
    """

    rate_mbps: float
    delay_ms: float  # one way
    jitter_ms: float = 0.0  # the delay wanders within ± this, and never reorders
    loss: float = 0.0
    burst_enter: float = 0.0
    burst_leave: float = 1.0
    burst_loss: float = 1.0
    queue_ms: float = 100.0  # how long the last segment that still finds room will wait, at the present rate
    cut: bool = False

    @property
    def bytes_per_s(self) -> float:
        """The rate, in bytes a second."""
        return self.rate_mbps * 125_000.0

    @property
    def mean_loss(self) -> float:
        """The share of segments that a long run loses."""
        if self.burst_enter == 0.0:
            return self.loss
        bad = self.burst_enter / (self.burst_enter + self.burst_leave)
        return bad * self.burst_loss + (1.0 - bad) * self.loss


@dataclass(frozen=True, slots=True)
class _Range:
    low: float
    high: float
    words: str

    def holds(self, value: object) -> bool:
        number = isinstance(value, int | float) and not isinstance(value, bool)
        return number and math.isfinite(value) and self.low <= value <= self.high  # type: ignore[arg-type,operator]


RANGES = {
    "rate_mbps": _Range(0.01, 100_000.0, "a number from 0.01 to 100000"),
    "delay_ms": _Range(0.0, 60_000.0, "a number from 0 to 60000, one way"),
    "jitter_ms": _Range(0.0, 60_000.0, "a number from 0 to delay_ms"),
    "loss": _Range(0.0, 0.9, "a share from 0 to 0.9 (1 % is 0.01)"),
    "burst_enter": _Range(0.0, 0.5, "a probability from 0 to 0.5"),
    "burst_leave": _Range(0.0001, 1.0, "a probability from 0.0001 to 1"),
    "burst_loss": _Range(0.0, 1.0, "a share from 0 to 1"),
    "queue_ms": _Range(0.0, 60_000.0, "a number from 0 to 60000"),
}
KEYS = tuple(field.name for field in fields(Conditions))


def faults_of(changes: Mapping[str, Any], where: str) -> list[Fault]:
    """Every value of `changes` (keys of Conditions) that is not allowed by itself; `where` prefixes the keys."""
    faults = []
    for key, value in changes.items():
        if key == "cut":
            if not isinstance(value, bool):
                faults.append(Fault(f"{where}cut", repr(value), "true, false"))
        elif key not in RANGES:
            faults.append(Fault(f"{where}{key}", "an unknown key", ", ".join(KEYS)))
        elif not RANGES[key].holds(value):
            faults.append(Fault(f"{where}{key}", repr(value), RANGES[key].words))
    return faults


def changed(conditions: Conditions, changes: Mapping[str, Any]) -> Conditions:
    """`conditions` with some of its fields replaced; `changes` have passed `faults_of`."""
    return replace(conditions, **changes)


def jitter_fault(conditions: Conditions, where: str) -> list[Fault]:
    """The one rule between two fields: a delay cannot wander below zero."""
    if conditions.jitter_ms <= conditions.delay_ms:
        return []
    return [
        Fault(
            f"{where}jitter_ms", repr(conditions.jitter_ms), f"at most delay_ms, here {conditions.delay_ms:g}"
        )
    ]
