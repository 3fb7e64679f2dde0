"""What came of `algorithms.py`: one sync policy where sites are unequal, over seeds."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

TARGETS = (0.80, 0.88)


@dataclass(frozen=True, slots=True)
class Reached:
    """When, and after how many WAN bytes of all parties, an algorithm came to an accuracy: medians over seeds."""

    seconds: float
    wan_bytes: float


@dataclass(frozen=True, slots=True)
class Unequal:
    """One algorithm in one scenario. `reached`: by target; None where most seeds never came there."""

    algorithm: str
    scenario: str
    seeds: int
    reached: dict[float, Reached | None]


def read_unequal(path: Path) -> list[Unequal]:
    """The rows of a file, if there is one, put together by scenario and algorithm; in their order."""
    if not path.exists():
        return []
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        row = json.loads(line)
        groups.setdefault((row["scenario"], row["algorithm"]), []).append(row)
    return [
        Unequal(
            algorithm, scenario, len(rows), {target: _median(rows, f"{target:.0%}") for target in TARGETS}
        )
        for (scenario, algorithm), rows in groups.items()
    ]


def _median(rows: list[dict[str, Any]], target: str) -> Reached | None:
    found = [row for row in rows if row[f"to_{target}_s"] is not None]
    if 2 * len(found) <= len(rows):
        return None
    return Reached(
        statistics.median(row[f"to_{target}_s"] for row in found),
        statistics.median(row[f"to_{target}_wan_bytes"] for row in found),
    )
