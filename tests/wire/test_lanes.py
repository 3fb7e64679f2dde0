from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from geomx.wire.frames import PREFIX, PREFIX_BYTES
from geomx.wire.lanes import Lanes
from geomx.wire.messages import Ack, State, encode_head


def state(size: int) -> State:
    return State(7, 3, (), (), size)


def put(lanes: Lanes, number: int, size: int, priority: int) -> None:
    lanes.put(number, state(size), memoryview(bytes([number]) * size), priority)


def pull(lanes: Lanes) -> tuple[int, int, int] | None:
    """(number, priority, payload bytes) of the next chunk."""
    chunk = lanes.next_chunk()
    if chunk is None:
        return None
    number, size, head, priority = PREFIX.unpack_from(chunk[0])
    assert len(chunk[0]) == PREFIX_BYTES + head
    assert sum(map(len, chunk)) == PREFIX_BYTES + size
    return number, priority, size - head


def drain(lanes: Lanes) -> list[tuple[int, int, int]]:
    return list(iter(lambda: pull(lanes), None))


def test_within_one_priority_messages_leave_whole_in_order():
    lanes = Lanes(10)
    for number in (3, 1, 2):
        put(lanes, number, 11, priority=1)
    assert [number for number, _, _ in drain(lanes)] == [3, 3, 1, 1, 2, 2]


def test_what_waits_is_counted_by_priority():
    lanes = Lanes(10)
    for number in (1, 2):
        put(lanes, number, 15, priority=4)
    assert (lanes.waiting(4), lanes.waiting(0)) == (2, 0)
    pull(lanes)
    assert lanes.waiting(4) == 2  # the first has not left whole
    pull(lanes)
    assert lanes.waiting(4) == 1
    drain(lanes)
    assert lanes.waiting(4) == 0


@given(
    st.lists(st.tuples(st.integers(0, 60), st.integers(0, 3), st.integers(0, 4)), min_size=1, max_size=15),
    st.integers(1, 20),
)
def test_the_next_chunk_is_always_of_the_most_urgent_and_of_the_oldest_among_those(messages, chunk_bytes):
    lanes, left, begun = Lanes(chunk_bytes), {}, set()

    def take():
        number, priority, size = pull(lanes)
        assert (priority, number) == min((p, n) for n, (p, _) in left.items())
        left[number] = priority, left[number][1] - size
        begun.add(number)
        if left[number][1] == 0:
            del left[number]

    for number, (size, priority, pulls) in enumerate(messages):
        put(lanes, number, size, priority)
        left[number] = priority, size
        for _ in range(min(pulls, len(left))):
            if left:
                take()
        heads = sum(len(encode_head(state(messages[n][0]))) for n in left if n not in begun)
        assert lanes.queued_bytes == heads + sum(size for _, size in left.values())
    while left:
        take()
    assert pull(lanes) is None
    assert lanes.queued_bytes == 0


def test_the_payload_is_not_copied():
    payload = bytearray(100)
    lanes = Lanes(60)
    lanes.put(1, state(100), memoryview(payload), 0)
    views = [lanes.next_chunk()[1], lanes.next_chunk()[1]]
    payload[0], payload[60] = 1, 2
    assert (views[0][0], views[1][0]) == (1, 2)


def test_a_message_without_payload_is_one_frame():
    lanes = Lanes(1)
    lanes.put(0, Ack(9), None, 0)
    assert lanes.next_chunk() == (
        PREFIX.pack(0, len(encode_head(Ack(9))), len(encode_head(Ack(9))), 0) + encode_head(Ack(9)),
    )
    assert lanes.next_chunk() is None


def test_priorities_beyond_the_ends_join_the_last_lanes():
    lanes = Lanes(100)
    put(lanes, 1, 1, priority=1 << 40)
    put(lanes, 2, 1, priority=65_535)
    put(lanes, 3, 1, priority=-4)
    assert drain(lanes) == [(3, 0, 1), (1, 65_535, 1), (2, 65_535, 1)]


def test_clear_keeps_what_it_is_told_to():
    lanes = Lanes(10)
    put(lanes, 1, 25, priority=4)
    pull(lanes)
    put(lanes, 2, 5, priority=0)
    lanes.clear(keep=0)
    assert lanes.most_urgent == 0
    assert lanes.queued_bytes == len(encode_head(state(5))) + 5
    assert drain(lanes) == [(2, 0, 5)]
    put(lanes, 3, 5, priority=0)
    lanes.clear()
    assert (lanes.next_chunk(), lanes.queued_bytes, lanes.most_urgent) == (None, 0, None)


@pytest.mark.parametrize("payload", [None, memoryview(b"1234"), memoryview(b"123456")])
def test_a_payload_of_another_size_is_refused(payload):
    with pytest.raises(ValueError, match="says 5 payload bytes"):
        Lanes(10).put(1, state(5), payload, 0)


def test_a_header_that_no_frame_can_carry_is_refused():
    with pytest.raises(ValueError, match="at most 65535 fit"):
        Lanes(10).put(1, State(1, 1, ("x" * 70_000,), (), 0), None, 0)


def test_a_chunk_has_at_least_one_byte():
    with pytest.raises(ValueError, match="chunk_bytes is 0"):
        Lanes(0)
