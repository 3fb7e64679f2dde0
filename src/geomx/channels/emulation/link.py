"""The one model of a link: when what is put on it has left, when it arrives, and what of it is lost.

For one direction, with sizes in bytes of the wire and times in seconds on any one clock:

    left    = max(when the line is free, since when this was ready to be sent) + 8 · size / rate
    arrival = max(left + max(delay + wander(left), 0), arrival of what left before)

Nothing overtakes. Times are virtual: `left` adds up and owes nothing to when a timer fired, so who always has something
to send gets the exact rate. What has left keeps its time when the link changes; the rest goes as the link is by then.

Loss follows E. N. Gilbert (1960) and E. O. Elliott (1963): a Markov chain of two states, good and bad, steps once
before each segment, and each state loses segments with a probability of its own. Nothing is drawn for each segment:
how long a state lasts, and how many segments pass until one is lost, are geometric and are drawn as a whole. A draw
that a change of state cuts short may be drawn anew, because a geometric distribution has no memory.

Three drivers put lines on clocks of their own. What each adds is what it does differently:

- `channels.emulation.shaping`, on real sockets: chunks of streams. What is lost is sent again; a cut holds up all of
  it, also what was under way. And datagrams, out of a queue that overflows: what is lost does not come.
- `simulate.network`, on a virtual clock: messages. What is lost does not come, and others come twice or late; a cut
  holds up what has not left.
- `lab.link`, between TUN devices: segments of packets, out of a queue that overflows. What is lost does not come, and
  others come twice or late; a cut loses all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from math import inf, log1p
from random import Random
from typing import Any, Generic, Self, TypeVar

Run = tuple[int, int]  # from the first segment up to, not including, the end


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One direction of a link at one moment; drivers add to it what else they imitate.

    A segment is lost with probability `loss` while the link is good and `burst_loss` while it is bad; before each
    segment a good link turns bad with probability `burst_enter` and a bad one good with `burst_leave`.
    """

    rate_mbps: float = 0.0  # 10^6 bits a second; 0: as fast as it goes
    delay_ms: float = 0.0  # one way
    jitter_ms: float = 0.0  # how far the delay wanders, to either side
    loss: float = 0.0
    burst_enter: float = 0.0
    burst_leave: float = 1.0
    burst_loss: float = 1.0
    cut: bool = False  # nothing passes

    @property
    def s_per_byte(self) -> float:
        """The seconds that a byte takes on the wire."""
        return 8e-6 / self.rate_mbps if self.rate_mbps else 0.0

    @property
    def mean_loss(self) -> float:
        """The share of segments that a long run loses."""
        if self.burst_enter == 0.0:
            return self.loss
        bad = self.burst_enter / (self.burst_enter + self.burst_leave)
        return bad * self.burst_loss + (1.0 - bad) * self.loss

    @property
    def words(self) -> str:
        """`100 Mbit/s, 20 ± 2 ms one way, loss 1 %`, or `cut`."""
        if self.cut:
            return "cut"
        rate = f"{self.rate_mbps:g} Mbit/s" if self.rate_mbps else "any rate"
        jitter = f" ± {self.jitter_ms:g}" if self.jitter_ms else ""
        loss = f", loss {100 * self.mean_loss:g} %" if self.mean_loss else ""
        return f"{rate}, {self.delay_ms:g}{jitter} ms one way{loss}"

    def changed(self, changes: Mapping[str, Any]) -> Self:
        """With some of its fields replaced."""
        return replace(self, **changes)

    def shared(self, shares: int) -> Self:
        """What each of so many has of it."""
        return replace(self, rate_mbps=self.rate_mbps / shares)


Spec = TypeVar("Spec", bound=LinkSpec)


class Line(Generic[Spec]):
    """One direction of a link. It reads no clock; calls come in the order of time."""

    def __init__(self, spec: Spec, chance: Random) -> None:
        self._chance = chance
        self.clear()
        self.change(spec)

    def change(self, spec: Spec) -> None:
        """From what leaves next on the link is so."""
        self.spec = spec
        self._s_per_byte = spec.s_per_byte
        self.delay_s = spec.delay_ms / 1e3
        self._jitter = Jitter(self._chance, spec.jitter_ms / 1e3) if spec.jitter_ms else None
        self.losing = LossProcess(self._chance, spec) if spec.mean_loss else None

    def clear(self) -> None:
        """Forget what is under way: it was lost with a cut."""
        self.free_at = self._last_arrival = -inf

    def send(self, size_bytes: float, ready_at: float) -> float:
        """Put something on the line; when it has left.

        `ready_at`: since when something was there to be sent, without a break.
        """
        self.free_at = max(self.free_at, ready_at) + size_bytes * self._s_per_byte
        return self.free_at

    def arrival(self, left_at: float) -> float:
        """When what has left then is at the far end."""
        wander_s = self._jitter.offset_s(left_at) if self._jitter else 0.0
        at = left_at + max(self.delay_s + wander_s, 0.0)
        self._last_arrival = max(self._last_arrival, at)
        return self._last_arrival


def geometric(chance: Random, probability: float) -> float:
    """How many trials fail before the first success: 0, 1, ...; inf where none ever succeeds."""
    if probability <= 0.0:
        return inf
    if probability >= 1.0:
        return 0
    trials = log1p(-chance.random()) / log1p(-probability)
    return int(trials) if trials < inf else inf


class LossProcess:
    """Which of the segments that pass one by one survive."""

    def __init__(self, chance: Random, spec: LinkSpec) -> None:
        self._chance = chance
        self._loss = (spec.loss, spec.burst_loss)  # of a segment in the good and the bad state
        self._turn = (spec.burst_enter, spec.burst_leave)
        self._state = 0  # 1 is bad
        self._stay = geometric(chance, spec.burst_enter)  # segments until the state turns
        self._clear = geometric(chance, spec.loss)  # segments until one is lost, if the state lasts so long

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
    """How far the delay lies off its mean, as a function of time that lets nothing overtake.

    Delays drawn for each packet by itself would reorder a fast flow, or, kept in order, hold all of it at the
    upper bound. Here the delay moves in straight lines between values that are uniform in ± `width_s` and lie
    4 · `width_s` apart, so that it never falls faster than half as fast as time passes.
    """

    def __init__(self, chance: Random, width_s: float) -> None:
        """`width_s`: more than 0."""
        self._chance = chance
        self._width_s = width_s
        self._step_s = 4.0 * width_s
        self._at, self._from, self._to = -inf, 0.0, 0.0

    def offset_s(self, now: float) -> float:
        """The offset at `now`, in seconds; calls come in the order of time."""
        if now >= self._at + 2.0 * self._step_s:  # after a pause the past no longer matters
            self._at, self._from, self._to = now, self._draw(), self._draw()
        elif now >= self._at + self._step_s:
            self._at, self._from, self._to = self._at + self._step_s, self._to, self._draw()
        return self._from + (self._to - self._from) * max(now - self._at, 0.0) / self._step_s

    def _draw(self) -> float:
        return self._chance.uniform(-self._width_s, self._width_s)
