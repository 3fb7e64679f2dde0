"""What holds on one directed link, and which values are allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from geomx.channels.emulation.link import LinkSpec
from lab.errors import Fault


@dataclass(frozen=True, slots=True)
class Conditions(LinkSpec):
    """One directed link at one moment. Rates count IP packets as they are on the wire, headers and all."""

    queue_ms: float = 100.0  # how long the last segment that still finds room will wait, at the present rate

    def bytes_in(self, seconds: float) -> float:
        """How much leaves in so long."""
        return self.rate_mbps * 125_000.0 * seconds


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


def jitter_fault(conditions: Conditions, where: str) -> list[Fault]:
    """The one rule between two fields: a delay cannot wander below zero."""
    if conditions.jitter_ms <= conditions.delay_ms:
        return []
    return [
        Fault(
            f"{where}jitter_ms", repr(conditions.jitter_ms), f"at most delay_ms, here {conditions.delay_ms:g}"
        )
    ]
