"""The numbers of the datagrams that have come, as runs: what an acknowledgement tells, and what comes twice.

A number that is known, or lies below the oldest of `MOST_RUNS` runs, counts as come: so nothing counts twice, and a
datagram that somebody sends again changes nothing.
"""

from __future__ import annotations

from math import inf

from geomx.wire.flow.packets import MOST_RUNS


class Numbers:
    """Of one direction. `overtaken_s`: how long a datagram came behind one that was sent later."""

    def __init__(self) -> None:
        self._runs: list[list[int]] = []  # [first, last], the newest first
        self.newest_at = -inf  # when the newest came
        self.overtaken_s = 0.0

    @property
    def runs(self) -> tuple[tuple[int, int], ...]:
        """First and last number of each run, the newest first."""
        return tuple((first, last) for first, last in self._runs)

    def __contains__(self, number: int) -> bool:
        for first, last in self._runs:
            if number > last:
                return False
            if number >= first:
                return True
        return len(self._runs) == MOST_RUNS

    def add(self, number: int, now: float) -> None:
        """A datagram has come that is to be acknowledged, and is not known."""
        if not self._runs or number > self._runs[0][1]:
            self.newest_at = now
        else:
            self.overtaken_s = max(now - self.newest_at, self.overtaken_s * 15 / 16)
        self.note(number)

    def note(self, number: int) -> None:
        """The same of one that is not, whose time says nothing."""
        runs = self._runs
        if runs and number == runs[0][1] + 1:  # nothing was lost or overtaken, as nearly always
            runs[0][1] = number
            return
        place = next((place for place, run in enumerate(runs) if number > run[1]), len(runs))
        above = runs[place - 1] if place and runs[place - 1][0] == number + 1 else None
        below = runs[place] if place < len(runs) and runs[place][1] == number - 1 else None
        if above is not None and below is not None:
            above[0] = below[0]
            del runs[place]
        elif above is not None:
            above[0] = number
        elif below is not None:
            below[1] = number
        else:
            runs.insert(place, [number, number])
            del runs[MOST_RUNS:]
