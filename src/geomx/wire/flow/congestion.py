"""How fast one flow of datagrams may send: paced at the rate that the path delivers, whatever is lost on the way.

    pace = gain · rate / (1 − p)        rate: largest delivery rate of CYCLE_ROUNDS + 2 rounds, p: share lost at gain 1
    cap  = IN_FLIGHT_GAIN · rate · least / (1 − p) + rate · wander + 4 datagrams        least: smallest round trip

A round ends when a packet arrives that was sent after the last round ended. START doubles the rate each round until it
no longer grows by half. Then the gain is 1, except that one round of CYCLE_ROUNDS probes, and the next drains what
this queued. When the path delivers a probe in full, START begins again: it found more in a few rounds.

The idea is BBR's (Cardwell et al., ACM Queue 2016), samples are as in draft-cheng-iccrg-delivery-rate-estimation.
We deviate: the pace makes up for losses, because a loss behind the bottleneck would leave it idle, but only while
the queue is short: what a full queue drops must make nobody faster. The cap is lower, to share with cubic. And
`least` is measured anew when it is old, or when a round took longer than the cap explains (a longer route, or others
in the queue): we pause until half of rate · least is under way, and take what the next round finds.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from enum import Enum
from math import inf

# Tuned with one TCP flow beside it, cubic or BBR, on 20 Mbit/s, 100 ms and 100 Mbit/s, 30 ms, and a queue of one
# bandwidth-delay product. IN_FLIGHT_GAIN of 1.55: cubic gets 28 % of the faster one; 1.45: we, 27 % beside BBR.
PROBE_GAIN = 1.25
IN_FLIGHT_GAIN = 1.5
CYCLE_ROUNDS = 8
LEAST_AGE_S = 10.0
_SLACK_S = 0.002  # timers may be late by this, or by an eighth of a round trip, and no rate is lost
_FIRST_DATAGRAMS = 16  # may be under way before anything is known; TCP begins with 10 (RFC 6928)


class _Phase(Enum):  # with the gain of each
    START, STEADY, PROBE, DRAIN = 2.0, 1.0, PROBE_GAIN, 1.0 / PROBE_GAIN


@dataclass(slots=True)
class Mark:
    """What is kept of a packet, from when it is sent until it is acknowledged, however late."""

    size: int
    sent_at: float
    earlier_at: float  # when the packet was sent that was acknowledged last
    delivered: int  # bytes so far
    delivered_at: float
    limited: bool
    steady: bool
    gone: bool = False  # no longer under way


class Congestion:
    """Says when the next packet of a flow may leave. It reads no clock: times are seconds on any one clock.

    `rate`: bytes a second, 0 before the first acknowledgement. `under_way`: bytes. `round_trip_s` and `wander_s`:
    smoothed, and its mean deviation (RFC 6298), 0 before the first one. `least_round_trip_s`: inf before it.
    """

    def __init__(self, datagram_bytes: int, most_mbps: float = 0.0) -> None:
        """`datagram_bytes`: the largest packet with all headers. `most_mbps`: never faster than this; 0: no limit."""
        self._datagram_bytes, self._most = datagram_bytes, most_mbps * 125_000.0 or inf
        self.rate = self.round_trip_s = self.wander_s = 0.0
        self.least_round_trip_s, self.under_way = inf, 0
        self._before = (0.0, 0.0)  # smoothed round trip and deviation, without the acknowledgement now read
        self._least_at = self._next_at = self._delivered_at = self._earlier_at = -inf
        self._look = self._look_from = inf  # the least round trip of what was sent since then
        self._pausing, self._since_look = False, 0
        self._delivered = self._gone = self._limited_until = self._round_end = 0
        self._rates: deque[float] = deque(maxlen=CYCLE_ROUNDS + 2)
        self._round_rate, self._round_least, self._is_ending, self._is_limited = 0.0, inf, False, False
        self._phase, self._age, self._stalls, self._base = _Phase.START, 0, 0, 0.0
        self._arrived, self._lost = 1.0, 0.0  # bytes sent at gain 1; old rounds count less
        self._is_stale, self._most_under_way, self._pace = True, 0.0, inf

    def next_at(self) -> float:
        """When the next packet may leave; inf while as much is under way as may be."""
        if self._is_stale:
            self._refresh()
        return self._next_at if self.under_way + self._datagram_bytes <= self._most_under_way else inf

    def _refresh(self) -> None:
        """The limits change with what is heard, not with what is sent: many packets leave between two changes."""
        self._is_stale, self._most_under_way = False, self._cap()
        self._pace = min(self._phase.value * self.rate * self._made_up() or inf, self._most)

    def _cap(self) -> float:
        product = self.rate * self.least_round_trip_s if self.rate else 0.0
        if self._pausing:
            return max(product / 2.0, 2.0 * self._datagram_bytes)
        gain, least = (2.0, _FIRST_DATAGRAMS) if self._phase is _Phase.START else (IN_FLIGHT_GAIN, 0)
        cap = gain * product * self._made_up() + self.rate * self.wander_s + 4 * self._datagram_bytes
        return max(cap, least * self._datagram_bytes)

    def _made_up(self) -> float:
        is_short = self.round_trip_s < (1.0 + PROBE_GAIN) / 2.0 * self.least_round_trip_s
        return min(PROBE_GAIN, 1.0 + self._lost / self._arrived) if is_short else 1.0

    def sent(self, size: int, now: float, idle: bool) -> Mark:
        """A packet of `size` bytes leaves. `idle`: nothing was under way or waiting. Keep the mark with the packet."""
        if idle:
            self._earlier_at = self._delivered_at = now
            self._limited_until = self._gone + 1  # a round trip has to pass before anything can be told
            if now > self._least_at + LEAST_AGE_S / 2.0:  # sooner than it would cost a pause
                self._begin_look(now)
        if self._is_stale:
            self._refresh()
        slack_s = max(_SLACK_S, self._before[0] / 8.0)
        self._next_at = max(self._next_at, now - slack_s) + size / self._pace
        self.under_way += size
        limited, steady = self._gone < self._limited_until, self._phase is _Phase.STEADY
        return Mark(size, now, self._earlier_at, self._delivered, self._delivered_at, limited, steady)

    def limited(self) -> None:
        """There is nothing more to send: until all this is delivered, samples can raise the rate, not lower it."""
        self._limited_until = self._gone + self.under_way

    def lost(self, mark: Mark) -> None:
        """A packet is taken for lost: it is no longer under way. It may still be acknowledged."""
        self._is_stale = True
        if self._leave(mark) and mark.steady:
            self._lost += mark.size

    def _leave(self, mark: Mark) -> bool:
        was_under_way, mark.gone = not mark.gone, True
        self.under_way -= mark.size * was_under_way
        self._gone += mark.size * was_under_way
        return was_under_way

    def acked(self, mark: Mark, now: float, delay_s: float = 0.0) -> None:
        """A packet has arrived. Call it once for each, in the order of sending within one acknowledgement.

        `delay_s`: how long the receiver held the acknowledgement after its newest packet.
        """
        self._is_stale = True
        if self._is_ending and now > self._delivered_at:
            self._end_round(now)
        if self._leave(mark) and mark.steady:
            self._arrived += mark.size
        self._measure(mark, now, max(now - mark.sent_at - delay_s, 1e-6))
        self._delivered += mark.size
        self._delivered_at, self._earlier_at = now, max(self._earlier_at, mark.sent_at)
        if mark.delivered >= self._round_end and not self._is_ending:  # it ends with this acknowledgement
            self._is_ending, self._is_limited = True, mark.limited
        if self._is_ending or self._phase is _Phase.START:
            elapsed_s = max(mark.sent_at - mark.earlier_at, now - mark.delivered_at, self.least_round_trip_s)
            rate = (self._delivered - mark.delivered) / elapsed_s
            if not mark.limited or rate > self.rate:
                self._round_rate, self.rate = max(self._round_rate, rate), max(self.rate, rate)
        if self._pausing and self.under_way <= self._cap():
            self._begin_look(now)
        if self._phase is _Phase.DRAIN and self.under_way <= self.rate * self.least_round_trip_s:
            self._phase = _Phase.STEADY

    def _measure(self, mark: Mark, now: float, trip_s: float) -> None:
        if now > self._delivered_at or not self.round_trip_s:
            self._before = (self.round_trip_s or trip_s, self.wander_s if self.round_trip_s else trip_s / 2.0)
        smooth_s, wander_s = self._before
        self.round_trip_s = smooth_s + (trip_s - smooth_s) / 8.0
        self.wander_s = wander_s + (abs(trip_s - smooth_s) - wander_s) / 4.0
        self._round_least = min(self._round_least, trip_s)
        if mark.sent_at >= self._look_from:
            self._look = min(self._look, trip_s)
        if trip_s <= self.least_round_trip_s:
            self.least_round_trip_s, self._least_at = trip_s, now

    def _begin_look(self, now: float) -> None:  # the queue is as empty as we can make it
        self._is_stale = True
        self._pausing, self._look, self._look_from, self._round_end = False, inf, now, self._delivered + 1

    def _end_round(self, now: float) -> None:
        rate, least_s, was_limited = self._round_rate, self._round_least, self._is_limited
        self._round_rate, self._round_least, self._is_ending, self._round_end = (
            0.0,
            inf,
            False,
            self._delivered,
        )
        if self._look < inf:
            self.least_round_trip_s, self._least_at = self._look, now
            self._look, self._look_from, self._since_look = inf, inf, 0
        elif self._look_from == inf and not self._pausing:
            self._arrived, self._lost = self._arrived * 7.0 / 8.0, self._lost * 7.0 / 8.0
            if not was_limited or rate >= self.rate:
                self._rates.append(rate)
                self.rate = max(self._rates)
            is_queue = self.round_trip_s > PROBE_GAIN * self.least_round_trip_s + 2.0 * self.wander_s
            if was_limited and self._phase is _Phase.START and not is_queue:
                return
            self._age, self._since_look = self._age + 1, self._since_look + 1
            self._step()
            if self._phase is not _Phase.START:
                is_longer = least_s > IN_FLIGHT_GAIN * self.least_round_trip_s
                is_old = now > self._least_at + LEAST_AGE_S
                self._pausing |= is_old or (is_longer and self._since_look > CYCLE_ROUNDS)

    def _step(self) -> None:
        if self._phase is _Phase.START:
            self._stalls += 1
            if self.rate >= 1.5 * self._base:
                self._base, self._stalls = self.rate, 0
            elif self._stalls == 2:
                self._phase, self._age, self._base, self._pausing = _Phase.DRAIN, 1, self.rate, True
        elif self._phase is _Phase.PROBE:
            self._phase = _Phase.DRAIN
        elif self._age == 2 and self.rate > (1.0 + 3.0 * PROBE_GAIN) / 4.0 * self._base:
            self._phase, self._stalls, self._base = _Phase.START, 0, self.rate
        elif self._age >= CYCLE_ROUNDS:
            self._phase, self._age, self._base = _Phase.PROBE, 0, self.rate
        elif self._age > 2:
            self._phase = _Phase.STEADY
