"""The formulas of `geomx plan`: pure functions of seconds and bytes.

n slices of a model pass stages (a codec, a link, an adding) one after the other. All that is known of them at a point
is when the first and the last one pass it. Through a stage that takes T for all of them:

    first' = first + T/n        last' = max(last + T/n, first + T)

Through several, for slices that all start at 0, that is Σ T_s/n + (1 − 1/n) · max T_s: the longest stage, and one
slice's time in each of the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from geomx.channels.emulation.shaping import SEGMENT_BYTES, s_per_byte
from geomx.config.tables import LinkTable

MESSAGE_BYTES = 96  # what a message's frame and head take, about


@dataclass(frozen=True, slots=True)
class PassTimes:
    """When the first and the last slice pass a point, in seconds."""

    first: float
    last: float


def through(stream: PassTimes, seconds: float, slices: int) -> PassTimes:
    """Behind a stage that takes `seconds` for all slices, one after the other."""
    each = seconds / slices
    return PassTimes(stream.first + each, max(stream.last + each, stream.first + seconds))


def after(stream: PassTimes, seconds: float) -> PassTimes:
    """Behind a delay, which holds up none for the sake of another."""
    return PassTimes(stream.first + seconds, stream.last + seconds)


def together(streams: Iterable[PassTimes]) -> PassTimes:
    """Where each slice waits for its like in all streams."""
    waited = list(streams)
    return PassTimes(max(stream.first for stream in waited), max(stream.last for stream in waited))


def link_bytes(payload_bytes: float, messages: float) -> float:
    """What a node sends for so many messages, as its socket counts."""
    return payload_bytes + MESSAGE_BYTES * messages


def link_s(size_bytes: float, link: LinkTable) -> float:
    """How long a link is busy with so many bytes: 8 · bytes/rate · 1500/1448 for headers, and what is lost again."""
    return size_bytes * s_per_byte(link.rate_mbps) / (1.0 - link.loss)


def travel_s(size_bytes: float, link: LinkTable) -> float:
    """How long the last byte is under way on average: delay, and what losses hold it up. Jitter wanders to both sides.

    Nothing overtakes within a stream, so of many chunks the unluckiest counts. A segment that is lost comes one round
    trip R later. With λ losses a second, at random, the last byte of a long stream is held up by R − (1 − e^(−λR))/λ on
    average; a short one loses nothing before it begins. λ is the link's, whatever it carries: parts of segments count
    as parts, since whole ones would make a stream of fewer bytes lose more in a second.
    """
    round_trip_s = 2e-3 * link.delay_ms
    held_up_s = 0.0
    if link.loss and size_bytes:
        segments = size_bytes / SEGMENT_BYTES
        seconds = max(link_s(size_bytes, link), 1e-9)
        losses_per_s = segments * link.loss / (1.0 - link.loss) / seconds
        window_s = min(round_trip_s, seconds)
        losses = losses_per_s * window_s
        lost = -math.expm1(-losses)
        if losses < 1e-6:  # where the difference below would be of rounding alone
            held_up_s = losses * (round_trip_s - window_s / 2)
        else:
            held_up_s = round_trip_s * lost - (lost / losses_per_s - window_s * (1.0 - lost))
    return 1e-3 * link.delay_ms + held_up_s
