"""The floor of lossy links, against figures worked out by hand, and what must hold of rounds that are played."""

import pytest

from benchmarks.lossy_floor import MSS, Datagrams, Route, Stream, cubic_s, lossy, plain_s, rounds_s, tcp
from geomx.channels.emulation.link import LinkSpec

SIZE, SLICES, ROUNDS = 300 * MSS, 10, 20


def route(loss: float = 0.0, **more: float) -> Route:
    return Route("", LinkSpec(rate_mbps=20, delay_ms=50, loss=loss, **more))


@pytest.mark.parametrize(
    ("loss", "reliable", "floor_s"), [(0.0, 1.0, 0.9855), (0.05, 0.0, 0.9855), (0.05, 1.0, 1.0321)]
)
def test_the_bytes_at_the_rate_and_a_round_trip_and_what_is_sent_again(loss, reliable, floor_s):
    assert plain_s(route(loss), 2 * 1_068_490, reliable) == pytest.approx(floor_s, rel=1e-3)


def test_losses_at_random_limit_cubic_whatever_the_rate():
    assert cubic_s(route(0.01), 1_413_248) == pytest.approx(0.1 + 1_413_248 / (1448 * 12.2 / 0.1), rel=1e-6)
    assert cubic_s(route(), SIZE) == plain_s(route(), SIZE)


def test_without_losses_a_round_takes_the_floor_and_one_slice():
    segment_s = 1500 / 2.5e6
    expected = pytest.approx(plain_s(route(), SIZE) + SIZE / SLICES / MSS * segment_s)
    assert rounds_s(route(), tcp, tcp, SIZE, SLICES, ROUNDS) == [expected] * ROUNDS


@pytest.mark.parametrize("loss", [{"loss": 0.02}, {"burst_enter": 0.005, "burst_leave": 0.2}])
@pytest.mark.parametrize("up", [tcp, lossy(0.8), lossy(0.8, headers=True)])
def test_what_must_arrive_never_comes_before_its_floor(loss, up):
    played = rounds_s(route(**loss), up, tcp, SIZE, SLICES, ROUNDS)
    assert min(played) >= plain_s(route(), SIZE)
    assert max(played) > min(played)


def test_a_channel_that_may_lose_is_as_fast_over_a_lossy_link_as_over_a_good_one():
    fast = rounds_s(route(), lossy(0.0), lossy(0.0), SIZE, SLICES, ROUNDS)
    assert rounds_s(route(0.05), lossy(0.0), lossy(0.0), SIZE, SLICES, ROUNDS) == pytest.approx(fast)


def test_where_nothing_may_be_lost_a_channel_of_datagrams_pays_for_what_is_sent_again():
    clear, lossy_link = (Datagrams(route(loss), 1, reliable=1.0).carry([0.0], 300) for loss in (0.0, 0.05))
    assert lossy_link[0] > clear[0] + 0.05  # nearly a round trip more, for the last that was lost


def test_a_stream_delivers_in_order_and_everything():
    arrived = Stream(route(0.05), 1).carry([0.0] * SLICES, 30)
    assert len(arrived) == SLICES
    assert arrived == sorted(arrived)
    assert arrived[-1] < float("inf")


def test_a_stream_that_pauses_stands_still_once_in_ten_seconds():
    plain, pausing = (Stream(route(), 1, pauses=pauses).carry([0.0], 16_000)[0] for pauses in (False, True))
    assert pausing - plain == pytest.approx(0.2, abs=0.001)
