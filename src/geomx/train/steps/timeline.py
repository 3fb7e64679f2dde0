"""What a training loop does when: spans for the trace, and how long a step computes. From the training thread."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from geomx.node.port import Port

TRACK, BACKWARD = "training", "backward"


class Timeline:
    """Notes spans (`geomx.observe.trace` draws them). `clock`: in seconds, the clock of the driver's own spans.

    `after_step`: see `Settings.after_step`.
    """

    def __init__(
        self,
        port: Port,
        clock: Callable[[], float],
        after_step: Callable[[float | None], None] | None = None,
    ) -> None:
        self._after_step = after_step
        self._port = port
        self._clock = clock
        self._began: dict[str, float] = {}
        self._computing_since: float | None = None
        self._waited_s = 0.0
        self._own_since: float | None = None  # since when this step itself has been computed
        self._has_batch = False  # of this step
        self.compute_s: float | None = None  # between the last step() and the one before, without waiting
        self.backward_s: float | None = None  # of it, from the first gradient that was complete

    def begin(self, label: str) -> None:
        """`label` begins now, unless it has begun already."""
        self._began.setdefault(label, self._clock())

    def end(self, label: str, **details: Any) -> None:
        """`label` ends now, if it has begun."""
        start = self._began.pop(label, None)
        if start is not None:
            stop = self._clock()
            self._port.note("span", track=TRACK, label=label, start=start, stop=stop, **details)
            if label == BACKWARD:
                self.backward_s = stop - start

    @contextmanager
    def span(self, label: str, **details: Any) -> Iterator[None]:
        """`label` lasts as long as the block."""
        self.begin(label)
        try:
            yield
        finally:
            self.end(label, **details)

    @contextmanager
    def wait(self, label: str, **details: Any) -> Iterator[None]:
        """The same, where the block waits in the middle of a step's computation."""
        start = self._clock()
        with self.span(label, **details):
            yield
        self._waited_s += self._clock() - start

    def batch(self) -> None:
        """A batch goes to the training loop: with the first one since a step, the next begins."""
        if not self._has_batch:
            self._has_batch, self._own_since = True, self._clock()

    @contextmanager
    def step(self, turn: int) -> Iterator[None]:
        """A `step()`: between two of them, the worker computes."""
        self.compute_s, own_s = (
            self._computed_since(self._computing_since),
            self._computed_since(self._own_since),
        )
        with self.span("step", turn=turn):
            yield
        self._computing_since, self._waited_s, self.backward_s = self._clock(), 0.0, None
        if self._after_step is not None:
            self._after_step(own_s)
        self._own_since, self._has_batch = self._clock(), False

    def rest(self) -> None:
        """What comes before the next step is not its computation alone."""
        self._computing_since = self.compute_s = self._own_since = None

    def _computed_since(self, since: float | None) -> float | None:
        return None if since is None else self._clock() - since - self._waited_s

    def now(self) -> float:
        """The clock, in seconds."""
        return self._clock()
