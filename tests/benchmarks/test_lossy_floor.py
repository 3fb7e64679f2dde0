"""The floor of lossy links, against figures worked out by hand, and what must hold of rounds that are played."""

import pytest

from benchmarks.lossy_floor import MSS, Route, Stream, plain_s, rounds_s
from geomx.channels.emulation.link import LinkSpec

SIZE, SLICES, ROUNDS = 300 * MSS, 10, 20


def route(loss: float = 0.0, **more: float) -> Route:
    return Route("", LinkSpec(rate_mbps=20, delay_ms=50, loss=loss, **more))


def test_the_floor_is_the_bytes_at_the_rate_and_a_round_trip():
    assert plain_s(route(), 2 * 1_068_490) == pytest.approx(0.9855, rel=1e-3)


def test_without_losses_a_round_takes_the_floor_and_one_slice():
    segment_s = 1500 / 2.5e6
    expected = pytest.approx(plain_s(route(), SIZE) + SIZE / SLICES / MSS * segment_s)
    assert rounds_s(route(), SIZE, SLICES, ROUNDS) == [expected] * ROUNDS


@pytest.mark.parametrize("loss", [{"loss": 0.02}, {"burst_enter": 0.005, "burst_leave": 0.2}])
def test_what_must_arrive_never_comes_before_its_floor(loss):
    played = rounds_s(route(**loss), SIZE, SLICES, ROUNDS)
    assert min(played) >= plain_s(route(), SIZE)
    assert max(played) > min(played)


def test_a_stream_delivers_in_order_and_everything():
    arrived = Stream(route(0.05), 1).carry([0.0] * SLICES, 30)
    assert len(arrived) == SLICES
    assert arrived == sorted(arrived)
    assert arrived[-1] < float("inf")
