"""What is drawn by chance on a link: which segments are lost, and how the delay wanders.

Loss follows E. N. Gilbert (1960) and E. O. Elliott (1963): a Markov chain of two states, good and bad, steps
once before each segment and each state loses segments with a probability of its own. Nothing is drawn for
each segment: how long a state lasts, and how many segments pass until one is lost, are geometric and are
drawn as a whole. A draw that a change of state cuts short may be drawn anew, because a geometric distribution
has no memory.
"""

from __future__ import annotations

from math import inf, log1p
from random import Random

Run = tuple[int, int]  # from the first segment up to, not including, the end


def geometric(chance: Random, probability: float) -> float:
    """How many trials fail before the first success: 0, 1, ...; inf where none ever succeeds."""
    if probability <= 0.0:
        return inf
    if probability >= 1.0:
        return 0
    return int(log1p(-chance.random()) / log1p(-probability))


class Loss:
    """Which of the segments that pass one by one survive."""

    def __init__(self, chance: Random, loss: float, enter: float, leave: float, burst_loss: float) -> None:
        """`loss` and `burst_loss`: of a segment in the good and the bad state; `enter`, `leave`: the bad state."""
        self._chance = chance
        self._loss = (loss, burst_loss)
        self._turn = (enter, leave)
        self._state = 0  # 1 is bad
        self._stay = geometric(chance, enter)  # segments until the state turns
        self._clear = geometric(chance, loss)  # segments until one is lost, if the state lasts so long

    def survivors(self, count: int) -> list[Run]:
        """The runs that are left of the next `count` segments."""
        if count <= self._clear and count <= self._stay:
            self._clear -= count
            self._stay -= count
            return [(0, count)]
        return self._search(count)

    def _search(self, count: int) -> list[Run]:
        runs: list[Run] = []
        start = at = 0
        while at < count:
            passed = min(self._clear, self._stay, count - at)
            at += int(passed)
            self._clear -= passed
            self._stay -= passed
            if at == count:
                break
            if self._stay == 0:
                self._switch()
            if self._clear > 0:
                continue
            if at > start:
                runs.append((start, at))
            at += 1
            start = at
            self._stay -= 1
            self._clear = geometric(self._chance, self._loss[self._state])
        if count > start:
            runs.append((start, count))
        return runs

    def _switch(self) -> None:
        """The chain turned before this segment; it stays at least for this one."""
        self._state = 1 - self._state
        self._stay = 1 + geometric(self._chance, self._turn[self._state])
        self._clear = geometric(self._chance, self._loss[self._state])


class Jitter:
    """How far the delay lies off its mean, as a function of time that never lets a packet overtake another.

    Delays drawn for each packet by itself would reorder a fast flow, or, kept in order, hold all of it at the
    upper bound. Here the delay moves in straight lines between values that are uniform in ± `width_s` and lie
    4 · `width_s` apart, so that it never falls faster than half as fast as time passes.
    """

    def __init__(self, chance: Random, width_s: float) -> None:
        self._chance = chance
        self._width_s = width_s
        self._step_s = 4.0 * width_s
        self._at, self._from, self._to = -inf, 0.0, 0.0

    def offset_s(self, now: float) -> float:
        """The offset at `now`, in seconds; calls come in the order of time."""
        if self._width_s == 0.0:
            return 0.0
        if now >= self._at + 2.0 * self._step_s:  # after a pause the past no longer matters
            self._at, self._from, self._to = now, self._draw(), self._draw()
        elif now >= self._at + self._step_s:
            self._at, self._from, self._to = self._at + self._step_s, self._to, self._draw()
        return self._from + (self._to - self._from) * (now - self._at) / self._step_s

    def _draw(self) -> float:
        return self._chance.uniform(-self._width_s, self._width_s)
