"""What a training loop does when: spans for the trace, from the training thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from geomx.node.contract import Port

TRACK = "training"


class Timeline:
    """Notes spans (`geomx.observe.trace` draws them). `clock`: in seconds, the clock of the driver's own spans."""

    def __init__(self, port: Port, clock: Callable[[], float]) -> None:
        self._port = port
        self._clock = clock
        self._began: dict[str, float] = {}

    def begin(self, label: str) -> None:
        """`label` begins now, unless it has begun already."""
        self._began.setdefault(label, self._clock())

    def end(self, label: str, **details: Any) -> None:
        """`label` ends now, if it has begun."""
        start = self._began.pop(label, None)
        if start is not None:
            self._port.note("span", track=TRACK, label=label, start=start, stop=self._clock(), **details)

    @contextmanager
    def span(self, label: str, **details: Any) -> Iterator[None]:
        """`label` lasts as long as the block."""
        self.begin(label)
        try:
            yield
        finally:
            self.end(label, **details)

    def now(self) -> float:
        """The clock, in seconds."""
        return self._clock()
