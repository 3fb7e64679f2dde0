"""What one end of a flow has counted, for whoever watches a run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class FlowCounts:
    """Datagrams that carry blocks, by the blocks' class.

    Attributes:
        sent: Sent for the first time.
        again: Sent once more.
        came: That have come for a payload that was open, once each; or before it was announced.
        late: That have come for a payload that had closed.
        early: That came before their payload was announced, found no room, and were dropped; of all classes.
        parity: Parity pieces that were sent; nothing above counts them.
        rebuilt: What was rebuilt from parity; `came` does not count it.
    """

    sent: Mapping[int, int] = field(default_factory=dict)
    again: Mapping[int, int] = field(default_factory=dict)
    came: Mapping[int, int] = field(default_factory=dict)
    late: Mapping[int, int] = field(default_factory=dict)
    early: int = 0
    parity: int = 0
    rebuilt: int = 0

    def __add__(self, other: FlowCounts) -> FlowCounts:
        return FlowCounts(
            _sum(self.sent, other.sent),
            _sum(self.again, other.again),
            _sum(self.came, other.came),
            _sum(self.late, other.late),
            self.early + other.early,
            self.parity + other.parity,
            self.rebuilt + other.rebuilt,
        )

    @property
    def fields(self) -> dict[str, Any]:
        """What is not zero, as a record has it: its keys are text."""
        by_class = {"sent": self.sent, "again": self.again, "came": self.came, "late": self.late}
        told: dict[str, Any] = {name: textual(counts) for name, counts in by_class.items() if counts}
        of_all = {"early": self.early, "parity": self.parity, "rebuilt": self.rebuilt}
        return told | {name: count for name, count in of_all.items() if count}


def textual(counts: Mapping[int, int]) -> dict[str, int]:
    """Counts by class, the reliable one first, with text for keys."""
    return {str(level): count for level, count in sorted(counts.items())}


def _sum(one: Mapping[int, int], other: Mapping[int, int]) -> Mapping[int, int]:
    return Counter(one) + Counter(other)
