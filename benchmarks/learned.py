"""What came of `codec_accuracy.py`: one configuration on one model, over seeds."""

from __future__ import annotations

import json
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Learned:
    """Test accuracies, one for each seed, and the WAN bytes of one party in a round."""

    config: str
    model: str
    parameters: int
    optimizer: str
    rounds: int
    accuracies: tuple[float, ...]
    bytes_up: float
    bytes_down: float

    @property
    def accuracy(self) -> float:
        return statistics.fmean(self.accuracies)


def read_learned(path: Path) -> list[Learned]:
    """The rows of a file, if there is one, put together by configuration; in their order."""
    if not path.exists():
        return []
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    groups: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for row in rows:
        groups.setdefault((row["model"], row["config"]), []).append(row)
    return [
        Learned(
            config=config,
            model=model,
            parameters=same[0]["parameters"],
            optimizer=same[0]["optimizer"],
            rounds=same[0]["rounds"],
            accuracies=tuple(row["accuracy"] for row in same),
            bytes_up=statistics.fmean(row["wan_bytes_up"] for row in same),
            bytes_down=statistics.fmean(row["wan_bytes_down"] for row in same),
        )
        for (model, config), same in groups.items()
    ]
