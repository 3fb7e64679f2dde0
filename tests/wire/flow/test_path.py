"""Whether datagrams pass, and which sizes: what a path tries, and what it makes of the answers."""

from __future__ import annotations

from math import inf

import pytest

from geomx.wire.flow.path import EVERY_S, LIMIT_S, RETRY_S, SETTLE_S, SIZES, Path

SMALL, LARGE = SIZES[-1], SIZES[0]


def begun(now: float) -> Path:
    path = Path()
    path.begin(now)
    return path


def sizes(path: Path, now: float) -> list[int]:
    return [probe.size for probe in path.probes(now)]


def test_before_something_may_leave_nothing_does() -> None:
    path = Path()
    path.probed(LARGE, 1.0)
    assert sizes(path, 2.0) == []
    assert (path.state, path.next_at()) == ("waiting", inf)
    path.begin(3.0)
    path.probed(LARGE, 3.1)
    path.begin(4.0)
    assert path.state == "open"


def test_every_size_is_tried_again_and_again() -> None:
    path = begun(5.0)
    assert path.next_at() == 5.0
    assert sizes(path, 5.0) == list(SIZES)
    assert sizes(path, 5.0) == []
    assert path.next_at() == 5.0 + EVERY_S
    assert sizes(path, 5.0 + EVERY_S) == list(SIZES)
    assert (path.state, path.is_open, path.datagram_bytes) == ("trying", False, 0)


def test_it_opens_at_once_when_the_largest_has_come() -> None:
    path = begun(0.0)
    path.probes(0.0)
    path.probed(LARGE, 0.08)
    assert (path.state, path.is_open, path.datagram_bytes) == ("open", True, LARGE)
    assert path.round_trip_s == pytest.approx(0.08)
    assert path.next_at() == inf
    assert sizes(path, 1.0) == []


def test_it_opens_with_the_largest_that_has_come_within_a_while() -> None:
    path = begun(0.0)
    path.probes(0.0)
    path.probed(SIZES[2], 0.08)
    path.probed(SIZES[3], 0.09)
    assert sizes(path, 0.1) == [size for size in SIZES if size > SIZES[2]], "others need not be tried"
    path.probed(SIZES[1], 0.2)
    assert path.state == "trying"
    assert path.next_at() <= 0.08 + SETTLE_S
    path.probes(0.08 + SETTLE_S)
    assert (path.state, path.datagram_bytes) == ("open", SIZES[1])
    assert path.round_trip_s == pytest.approx(0.08)
    path.probed(LARGE, 0.5)
    assert path.datagram_bytes == SIZES[1]


def test_a_size_that_was_not_tried_opens_nothing() -> None:
    path = begun(0.0)
    path.probes(0.0)
    for size in (0, 3, SMALL - 1, SMALL + 1, LARGE + 1, 65_535):
        path.probed(size, 0.1)
    path.probes(0.1 + SETTLE_S)
    assert (path.state, path.datagram_bytes) == ("trying", 0)


def play(path: Path, now: float, until: float) -> list[float]:
    """Without an answer; returns when probes left."""
    times = []
    while path.next_at() <= until:
        now = path.next_at()
        if path.probes(now):
            times.append(now)
    return times


def test_it_is_blocked_when_nothing_has_come_for_a_while_and_tried_seldom() -> None:
    path = begun(0.0)
    times = play(path, 0.0, LIMIT_S + 3 * RETRY_S)
    assert path.state == "blocked"
    assert times[1] - times[0] == pytest.approx(EVERY_S)
    assert LIMIT_S / EVERY_S <= len(times) - 3 <= LIMIT_S / EVERY_S + 2
    assert times[-1] - times[-2] == pytest.approx(RETRY_S)


def test_an_answer_on_a_blocked_path_makes_it_try() -> None:
    path = begun(0.0)
    play(path, 0.0, LIMIT_S + 1.0)
    path.probed(SMALL, 20.0)
    assert (path.state, path.datagram_bytes) == ("trying", SMALL)
    assert sizes(path, 20.0) == list(SIZES[:-1])
    path.probed(LARGE, 20.1)
    assert path.is_open
    assert path.round_trip_s < 1.0, "it is not measured from a probe of long ago"


def test_it_is_not_blocked_while_only_large_ones_are_lost() -> None:
    path = begun(0.0)
    path.probes(0.0)
    path.probed(SMALL, 0.1)
    play(path, 0.1, LIMIT_S + 1.0)
    assert (path.state, path.datagram_bytes) == ("open", SMALL)


def test_a_path_on_which_nothing_is_heard_begins_anew() -> None:
    path = begun(0.0)
    path.probes(0.0)
    path.probed(LARGE, 0.1)
    path.lost(30.0)
    assert (path.state, path.datagram_bytes, path.next_at()) == ("trying", 0, 30.0)
    assert sizes(path, 30.0) == list(SIZES)
    path.lost(30.05)  # which is known
    assert sizes(path, 30.06) == []
    play(path, 30.1, 30.0 + LIMIT_S + 1.0)
    assert path.state == "blocked"
    path.lost(40.0)
    assert path.state == "blocked"
