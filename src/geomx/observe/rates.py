"""How fast totals grow, over the last seconds."""

from __future__ import annotations

from collections import deque

WINDOW_S = 5.0


class Rate:
    """How fast a total grows: over the last `WINDOW_S` seconds, or between its last two points if these are rarer."""

    def __init__(self) -> None:
        self._points: deque[tuple[float, float]] = deque()

    def reach(self, t: float, total: float) -> None:
        """The total was this at time `t`. One that falls is that of a process that was started again."""
        if self._points and total < self._points[-1][1]:
            self._points.clear()
        self._points.append((t, total))
        while len(self._points) > 2 and self._points[1][0] <= t - WINDOW_S:
            self._points.popleft()

    def at(self, now: float) -> float:
        """Units a second; 0 when nothing has come for far longer than usual."""
        if len(self._points) < 2:
            return 0.0
        (first_s, first), (last_s, last) = self._points[0], self._points[-1]
        taken_s = last_s - first_s
        stale = now - last_s > max(WINDOW_S, 2 * taken_s)
        return 0.0 if stale or taken_s <= 0 else (last - first) / taken_s
