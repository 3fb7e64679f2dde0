"""What fuzzing counts: what came of each attempt, and how much memory it took."""

from __future__ import annotations

import gc
import resource
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from geomx.errors import ProtocolError

SLACK_MB = 48


class Siege:
    """Counts what came of each attempt. Whatever is neither nothing nor `ProtocolError` comes through."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._before: float | None = None
        self._after = 0.0

    def attempt(self, act: Callable[[], Any]) -> bool:
        """Whether it was not refused."""
        try:
            act()
        except ProtocolError:
            self.counts["refused"] += 1
            return False
        self.counts["taken"] += 1
        return True

    def look(self, done: int, number: int) -> None:
        """Memory behind the first fifth and at the end: by then everything is as full as it gets."""
        if self._before is None and done >= number // 5:
            self._before = resident_mb()
        if done >= number:
            self._after = resident_mb()
            assert self._before is not None
            assert self._after - self._before < SLACK_MB, f"{self._before} MB grew to {self._after} MB"
            self.counts["MB more"] = round(self._after - self._before)


def resident_mb() -> float:
    gc.collect()
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * resource.getpagesize() / 1e6
