from math import inf
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st
from segments import on_the_wire, tcp, udp

from lab.link import Conditions, Link
from lab.packets import Packet

SEGMENT = 1500
MSS = SEGMENT - 52
PLAIN = Conditions(rate_mbps=12.0, delay_ms=10.0, queue_ms=1000.0)  # 1 ms for each full segment


def link(conditions=PLAIN):
    return Link(conditions, Random(0))


def offered(changes, count, segments=1, every_s=0.0):
    """A link to which so many packets have come."""
    way = link(PLAIN.changed(changes))
    for number in range(count):
        way.arrive(packet(segments, number * segments * MSS), every_s * number)
    return way


def packet(segments=1, sequence=0):
    return Packet(tcp(bytes(segments * MSS), MSS, sequence))


def arrivals(link, until=inf):
    """(when, sequence number) of every segment that arrives, looking only when the link says so."""
    seen = []
    while (now := link.next_at()) <= until and now < inf:
        for data in link.due(now):
            seen += [(now, sequence) for _, sequence, _, _ in on_the_wire(data)]
    return seen


def test_a_segment_takes_its_time_on_the_wire_and_the_delay():
    way = link()
    way.arrive(packet(), 5.0)
    assert way.next_at() == pytest.approx(5.011)
    assert way.due(5.0109) == []
    assert len(way.due(5.0111)) == 1
    assert way.next_at() == inf


def test_an_idle_link_saves_up_nothing():
    way = link()
    way.arrive(packet(), 0.0)
    arrivals(way)
    way.arrive(packet(), 9.0)
    way.arrive(packet(), 9.0)
    assert [when for when, _ in arrivals(way)] == [pytest.approx(9.011), pytest.approx(9.012)]


def test_a_large_packet_comes_in_slices_of_wire_time_and_its_last_segment_on_time():
    way = link()
    way.arrive(packet(segments=5), 0.0)
    assert way.counters.under_way == 5
    times = [when for when, _ in arrivals(way)]
    assert times == [pytest.approx(at) for at in (0.012, 0.012, 0.014, 0.014, 0.015)]
    fast = link(PLAIN.changed({"rate_mbps": 1200.0}))
    fast.arrive(packet(segments=40), 0.0)
    assert len(fast.due(1.0)) == 1


@given(
    st.lists(st.tuples(st.floats(0.0, 0.02), st.integers(1, 30)), min_size=1, max_size=30),
    st.sampled_from(["in order", "plain", "cut", "orderly"]),
    st.integers(0, 99),
)
def test_every_segment_is_accounted_for_and_in_order_none_overtakes(packets, then, seed):
    disorder = (
        {"jitter_ms": 4.0} if then == "in order" else {"reorder": 0.2, "reorder_ms": 30.0, "duplicate": 0.2}
    )
    conditions = Conditions(rate_mbps=20.0, delay_ms=9.0, loss=0.05, queue_ms=20.0, **disorder)
    way = Link(conditions, Random(seed))
    now, seen, sequence = 0.0, [], 0
    for at, (gap, segments) in enumerate(packets):
        now += gap
        seen += arrivals(way, now)
        if at == len(packets) // 2 and then in ("cut", "orderly"):
            way.change(conditions.changed({"cut": True} if then == "cut" else {"reorder": 0.0}), now)
        way.arrive(packet(segments, sequence), now)
        sequence += segments * MSS
    seen += arrivals(way)
    numbers = [number for _, number in seen]
    assert then != "in order" or numbers == sorted(set(numbers))
    assert way.counters.delivered_segments == len(numbers)
    assert way.counters.offered_segments == sequence // MSS
    assert way.counters.under_way == 0
    assert way.counters.delivered_bytes == way.counters.delivered_segments * SEGMENT


def test_the_queue_is_bounded_in_time_at_the_present_rate():
    way = offered({"queue_ms": 10.0}, 40)
    assert way.counters.overflowed_segments == 40 - 11  # ten wait, one is on the wire
    assert [number // MSS for _, number in arrivals(way)] == list(range(11))


def test_the_part_of_a_large_packet_that_fits_is_taken():
    way = offered({"queue_ms": 10.0}, 1, segments=40)
    assert way.counters.overflowed_segments == 30
    assert len(arrivals(way)) == 10


def test_a_queue_of_nothing_still_carries_one_segment_at_a_time():
    way = link(PLAIN.changed({"queue_ms": 0.0}))
    way.arrive(packet(), 0.0)
    way.arrive(packet(), 0.0001)
    way.arrive(packet(), 0.0002)
    assert way.counters.overflowed_segments == 1  # one on the wire, one waits
    assert len(arrivals(way)) == 2


def test_a_new_rate_holds_for_what_has_not_started():
    way = offered({}, 10)
    way.change(PLAIN.changed({"rate_mbps": 1.2}), 0.0045)  # the fifth is on the wire
    times = [when for when, _ in arrivals(way)]
    assert times[4] == pytest.approx(0.015)
    assert times[5:] == [pytest.approx(0.025 + 0.01 * number) for number in range(5)]


def test_a_shorter_delay_does_not_let_anything_overtake():
    way = link()
    way.arrive(packet(sequence=0), 0.0)
    way.change(PLAIN.changed({"delay_ms": 1.0}), 0.001)
    way.arrive(packet(sequence=MSS), 0.002)
    assert arrivals(way) == [(pytest.approx(0.011), 0), (pytest.approx(0.011), MSS)]


def test_a_cut_loses_what_is_on_its_way_or_held_up_and_what_comes_and_answers_nobody():
    way = offered({}, 20)
    assert len(arrivals(way, until=0.0125)) == 2
    way.change(PLAIN.changed({"cut": True}), 0.0125)
    way.arrive(packet(segments=3), 0.013)
    assert way.next_at() == inf
    assert way.counters.cut_segments == 18 + 3
    assert way.counters.under_way == 0
    held = offered({"reorder": 1.0, "reorder_ms": 20.0, "mtu": 1500, "mtu_icmp": True}, 1, segments=5)
    assert held.due(0.0101) == []
    held.change(PLAIN.changed({"cut": True, "mtu": 1300, "mtu_icmp": True}), 0.0101)
    assert (held.next_at(), held.counters.cut_segments) == (inf, 5)
    assert held.arrive(packet(), 0.02) is False  # nobody is answered
    assert held.counters.cut_segments == 6
    way.change(PLAIN, 1.0)
    way.arrive(packet(sequence=77), 1.0)
    assert arrivals(way) == [(pytest.approx(1.011), 77)]


def test_lost_segments_take_their_time_on_the_wire():
    way = offered({"loss": 0.5}, 100)
    seen = arrivals(way)
    assert way.counters.lost_segments == 100 - len(seen) > 20
    assert all(when == pytest.approx(0.011 + 0.001 * (number // MSS)) for when, number in seen)


def test_where_udp_is_blocked_everything_else_passes():
    way = link(PLAIN.changed({"udp_blocked": True}))
    assert way.arrive(Packet(udp(bytes(3000), 1000)), 0.0) is False
    assert way.next_at() == inf
    way.arrive(packet(segments=2), 0.0)
    assert len(arrivals(way)) == 2
    assert (way.counters.blocked_segments, way.counters.under_way) == (3, 0)


@pytest.mark.parametrize("answers", [False, True])
@pytest.mark.parametrize(
    ("size_bytes", "mss", "passing"),
    [(1272, 1272, 1), (1273, 1273, 0), (3 * 1273, 1273, 0), (2 * 1400 + 1272, 1400, 1), (9 * 1272, 1272, 9)],
    ids=["fits", "does not", "no segment", "the last one", "every segment"],
)
def test_segments_larger_than_the_mtu_are_dropped(size_bytes, mss, passing, answers):
    way = link(PLAIN.changed({"mtu": 1300, "mtu_icmp": answers}))
    whole = Packet(udp(bytes(size_bytes), mss))
    too_large = whole.segments - passing
    assert way.arrive(whole, 0.0) is (answers and too_large > 0)
    assert len(arrivals(way)) == passing
    assert (way.counters.oversized_segments, way.counters.under_way) == (too_large, 0)


def test_a_share_of_the_segments_is_held_up_and_others_overtake_them():
    way = offered({"reorder": 0.1, "reorder_ms": 20.0}, 100, segments=10, every_s=0.01)
    seen = arrivals(way)
    numbers = [number // MSS for _, number in seen]
    assert sorted(numbers) == list(range(1000))
    assert [when for when, _ in seen] == sorted(when for when, _ in seen)
    delays = [when - (0.011 + 0.001 * (number // MSS)) for when, number in seen]
    assert min(delays) > -1e-9
    assert 0.015 < max(delays) < 0.022  # a slice lasts 2 ms
    assert numbers != sorted(numbers)
    assert 60 < way.counters.held_segments < 140
    assert way.counters.under_way == 0


def test_a_share_of_the_segments_comes_twice():
    way = offered({"duplicate": 0.2}, 50, segments=10, every_s=0.01)
    numbers = [number // MSS for _, number in arrivals(way)]
    again = way.counters.duplicated_segments
    assert len(numbers) == 500 + again == way.counters.delivered_segments
    assert set(numbers) == set(range(500))
    assert max(numbers.count(number) for number in range(500)) == 2
    assert 60 < again < 140
    assert way.counters.under_way == 0


def test_where_all_come_twice_and_late_each_copy_is_late_by_itself():
    way = offered({"duplicate": 1.0, "reorder": 1.0, "reorder_ms": 5.0}, 1, segments=4)
    times = [when for when, _ in arrivals(way)]
    assert len(set(times)) == 8
    assert way.counters.held_segments == 8


def between(source, target=2, sequence=0, segments=1):
    ends = {"source": bytes([10, 77, source, 1]), "target": bytes([10, 77, target, 1])}
    return Packet(tcp(bytes(segments * MSS), MSS, sequence, **ends))


def test_a_fair_queue_serves_pairs_of_sites_in_turn_and_each_in_its_order():
    way = link(PLAIN.changed({"fair": True}))
    for number in range(4):
        way.arrive(between(1, sequence=number * MSS), 0.0)
    way.arrive(between(3, sequence=10 * MSS), 0.0005)
    way.arrive(between(3, sequence=11 * MSS), 0.0005)
    assert [sequence // MSS for _, sequence in arrivals(way)] == [0, 1, 10, 2, 11, 3]
    way.arrive(between(1), 1.0)  # what it had sent before is forgotten
    assert arrivals(way) == [(pytest.approx(1.011), 0)]


def test_a_large_packet_holds_up_other_pairs_for_its_turn_alone():
    way = link(PLAIN.changed({"fair": True}))
    way.arrive(between(1, segments=20), 0.0)
    way.arrive(between(3, sequence=99 * MSS), 0.0)
    assert [sequence // MSS for _, sequence in arrivals(way)][:6] == [0, 1, 2, 3, 99, 4]


def test_who_fills_a_fair_queue_takes_no_room_from_others():
    way = link(PLAIN.changed({"fair": True, "queue_ms": 10.0}))
    for number in range(30):
        way.arrive(between(1, sequence=number * MSS), 0.0)
    assert way.counters.overflowed_segments == 19  # one is on the wire, and 10 wait
    for number in range(6):
        way.arrive(between(3, sequence=number * MSS), 0.0)
    assert way.counters.overflowed_segments == 20  # half of the room is for 5


def test_a_queue_that_becomes_fair_loses_nothing():
    way = link()
    for number in range(3):
        way.arrive(between(1, sequence=number * MSS), 0.0)
    way.change(PLAIN.changed({"fair": True}), 0.0)
    way.arrive(between(3, sequence=9 * MSS), 0.0)
    assert sorted(sequence // MSS for _, sequence in arrivals(way)) == [0, 1, 2, 9]
    way.change(PLAIN, 1.0)
    way.arrive(between(1), 1.0)
    assert len(arrivals(way)) == 1
    assert way.counters.under_way == 0
