from __future__ import annotations

import math
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from streams import CHUNK, MBIT_100, Stream, drive, streams

from geomx.channels.emulation.link import LinkSpec
from geomx.channels.emulation.shaping import SEGMENT_BYTES, EmulatedLink, StreamLine


def stream_line(spec: LinkSpec, seed: int = 0) -> StreamLine:
    return StreamLine(spec, Random(seed))


def test_the_delay_is_added_once_and_an_idle_link_saves_nothing_up():
    line = stream_line(LinkSpec(rate_mbps=100, delay_ms=20))
    times = [line.transmit(CHUNK, ready_at=at) for at in (1.0, 1.0, 1.0, 5.0)]
    assert times == pytest.approx(
        [at + 0.02 + n * CHUNK * MBIT_100 for at, n in ((1, 1), (1, 2), (1, 3), (5, 1))]
    )
    line = stream_line(LinkSpec(delay_ms=20))  # without a rate only the delay counts
    assert [line.transmit(1 << 30, ready_at=1.0) for _ in range(2)] == [1.02, 1.02]


@given(
    jitter_ms=st.floats(0, 50),
    loss=st.floats(0, 0.9),
    chunks=st.lists(st.tuples(st.integers(1, 1 << 18), st.floats(0, 0.1)), max_size=40),
    seed=st.integers(0, 9),
)
def test_a_stream_is_never_reordered_nor_early(jitter_ms, loss, chunks, seed):
    line = stream_line(LinkSpec(100, 20, jitter_ms, loss), seed)
    ready_at, after = 0.0, -math.inf
    for size, pause in chunks:
        ready_at += pause
        start = max(ready_at, line.free_at)
        at = line.transmit(size, ready_at, after)
        assert line.free_at >= start + size * MBIT_100 - 1e-9
        assert at >= after
        assert at >= line.free_at + max(0.0, 0.020 - jitter_ms / 1e3) - 1e-9
        after = at


@pytest.mark.parametrize("loss", [0.01, 0.2])
def test_lost_segments_occupy_the_link_again(loss):
    line, segments = stream_line(LinkSpec(rate_mbps=100, loss=loss), seed=1), 45
    for _ in range(2000):
        line.transmit(segments * SEGMENT_BYTES, ready_at=0.0)
    sent = line.free_at / (SEGMENT_BYTES * MBIT_100)
    assert sent / (2000 * segments) == pytest.approx(1 / (1 - loss), rel=0.02)


def test_a_loss_holds_its_stream_up_by_a_round_trip_and_no_other():
    line = stream_line(LinkSpec(delay_ms=20, loss=0.5), seed=2)
    times = [line.transmit(SEGMENT_BYTES, ready_at=0.0) for _ in range(200)]
    assert {round(at / 0.020) % 2 for at in times} == {1}  # the delay, and whole round trips
    assert min(times) == pytest.approx(0.020)
    assert max(times) > 0.060
    held_up = max(times)
    assert min(line.transmit(SEGMENT_BYTES, 0.0, after=held_up) for _ in range(50)) == held_up
    assert min(line.transmit(SEGMENT_BYTES, 0.0) for _ in range(50)) == pytest.approx(0.020)


def wanted(spec, *waiting):
    """A link on which these wait, and what it takes of them."""
    uplink = EmulatedLink(spec, seed=2)
    taken = streams(*waiting)
    for stream in waiting:
        uplink.want(stream, 0.0)
    return uplink, taken


def test_streams_take_turns():
    a, b = Stream("a", [1000] * 3), Stream("b", [1000] * 3)
    uplink, taken = wanted(LinkSpec(rate_mbps=100), a, b)
    drive(uplink, 0.0)
    assert [name for name, _ in taken] == ["a", "b", "a", "b", "a", "b"]
    assert (len(a.delivered), len(b.delivered)) == (3, 3)


def test_the_most_urgent_goes_first_even_in_the_middle():
    uplink = EmulatedLink(LinkSpec(rate_mbps=100))
    a, b = Stream("a", [1000] * 3, priority=5), Stream("b", [1000] * 2, priority=1)
    taken = streams(a, b)
    uplink.want(a, 0.0)
    due = uplink.run(0.0)
    uplink.want(b, 0.0)
    drive(uplink, due)
    assert [name for name, _ in taken] == ["a", "b", "b", "a", "a"]


def test_nothing_leaves_before_the_link_is_free():
    stream = Stream("a", [CHUNK] * 2)
    uplink, taken = wanted(LinkSpec(rate_mbps=100), stream)
    due = uplink.run(0.0)
    assert due == pytest.approx(CHUNK * MBIT_100)
    assert uplink.run(due - 1e-6) == due
    assert len(taken) == 1


def test_late_wakes_cost_no_rate():
    stream = Stream("a", [CHUNK] * 610)  # 40 MB
    uplink, _ = wanted(LinkSpec(rate_mbps=100, delay_ms=20), stream)
    end = drive(uplink, 0.0, late_s=0.0015)
    assert len(stream.delivered) == 610
    assert end == pytest.approx(610 * CHUNK * MBIT_100 + 0.020, abs=0.005)


def test_chunks_put_one_by_one_behind_a_late_wake_keep_the_rate():
    """The link falls idle between chunks only in the eyes of a timer; in virtual time it never does."""
    uplink, stream, now = EmulatedLink(LinkSpec(rate_mbps=100)), Stream("a", []), 0.0
    for _ in range(100):
        stream.sizes.append(CHUNK)
        uplink.want(stream, now)
        due = uplink.run(now)
        now += CHUNK * MBIT_100  # exactly when the link is free again
    assert due == pytest.approx(100 * CHUNK * MBIT_100)  # when the last one arrives


def test_one_that_may_not_send_loses_its_turn_and_gets_it_back():
    a, b = Stream("a", [1000] * 2), Stream("b", [1000] * 2)
    uplink, taken = wanted(LinkSpec(rate_mbps=100), a, b)
    a.held = True
    now = drive(uplink, 0.0)
    assert [name for name, _ in taken] == ["b", "b"]
    a.held = False
    uplink.want(a, now)
    drive(uplink, now)
    assert [name for name, _ in taken] == ["b", "b", "a", "a"]


def test_a_forgotten_stream_is_delivered_no_more_and_others_are():
    a, b = Stream("a", [1000] * 3), Stream("b", [1000] * 3)
    uplink, _ = wanted(LinkSpec(rate_mbps=100, delay_ms=20), a, b)
    uplink.run(0.0)
    uplink.run(0.0001)
    uplink.forget(a)
    drive(uplink, 0.0001)
    assert (a.delivered, len(b.delivered)) == ([], 3)


def test_a_loss_on_one_stream_lets_the_others_pass():
    order, pair = [], [Stream(name, [SEGMENT_BYTES] * 20) for name in "ab"]
    uplink, _ = wanted(LinkSpec(delay_ms=20, loss=0.5), *pair)
    for stream in pair:
        stream.delivered = order
    drive(uplink, 0.0)
    names = [name for name, _ in order]
    assert sorted(names) == ["a"] * 20 + ["b"] * 20
    assert names != ["a", "b"] * 20


def test_what_has_not_left_at_a_change_goes_at_the_new_rate():
    stream = Stream("a", [CHUNK] * 30)
    uplink, _ = wanted(LinkSpec(rate_mbps=100), stream)
    now, chunk_s = 0.0, CHUNK * MBIT_100
    while len(stream.sizes) > 20:
        now = uplink.run(now)
    uplink.change(LinkSpec(rate_mbps=10), now - chunk_s / 2)  # the tenth is just leaving, and keeps its rate
    assert drive(uplink, now) == pytest.approx((10 + 20 * 10) * chunk_s)
    assert len(stream.delivered) == 30


def test_a_change_of_delay_holds_for_what_leaves_later_and_reorders_nothing():
    stream = Stream("a", [1])
    uplink, _ = wanted(LinkSpec(delay_ms=50), stream)
    assert uplink.run(0.0) == pytest.approx(0.050)
    uplink.change(LinkSpec(delay_ms=10), 0.01)
    stream.sizes.append(2)
    uplink.want(stream, 0.01)
    assert uplink.run(0.01) == pytest.approx(0.050)
    uplink.run(0.051)
    assert [size for _, size in stream.delivered] == [1, 2]
    stream.sizes.append(3)
    uplink.want(stream, 0.06)
    assert uplink.run(0.06) == pytest.approx(0.070)


def test_nothing_passes_a_cut_and_all_of_it_arrives_once_in_order_when_it_heals():
    link = LinkSpec(rate_mbps=100, delay_ms=20)
    uplink = EmulatedLink(link)
    a, b = Stream("a", [CHUNK, 10, CHUNK]), Stream("b", [20], priority=9)
    uplink.want(a, 0.0)
    due = uplink.run(0.0)
    assert uplink.run(due) is not None  # two of a's chunks are on their way
    uplink.change(link.changed({"cut": True}), due)
    assert uplink.spec.cut
    uplink.want(b, 1.0)
    assert uplink.run(2.0) is None
    assert a.delivered == b.delivered == []
    uplink.change(link, 5.0)
    end = drive(uplink, 5.0)
    assert [size for _, size in a.delivered] == [CHUNK, 10, CHUNK]
    assert [size for _, size in b.delivered] == [20]
    assert end == pytest.approx(5.02 + (2 * CHUNK + 30) * MBIT_100)  # what was lost has left anew


def test_a_stream_that_ends_within_a_cut_is_forgotten():
    link = LinkSpec(rate_mbps=100, delay_ms=20)
    uplink, stream = EmulatedLink(link), Stream("a", [CHUNK] * 2)
    uplink.want(stream, 0.0)
    uplink.run(0.0)
    uplink.change(link.changed({"cut": True}), 0.001)
    uplink.forget(stream)
    uplink.change(link, 1.0)
    assert uplink.run(1.0) is None
    assert stream.delivered == []


def test_nothing_to_do_means_no_wake():
    uplink = EmulatedLink(LinkSpec(rate_mbps=100))
    assert uplink.run(1.0) is None
    uplink.want(Stream("a", []), 1.0)
    assert uplink.run(1.0) is None
