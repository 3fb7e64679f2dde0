from __future__ import annotations

import contextlib
import random

import pytest
from exploring import examples
from hypothesis import given
from hypothesis import strategies as st

from geomx.errors import ProtocolError
from geomx.wire.frames import DIRECT_BYTES, PAYLOAD_LIMIT_BYTES, PREFIX, SCRATCH_BYTES, Arrival, Parser
from geomx.wire.lanes import Lanes
from geomx.wire.messages import Ack, State, encode_head, payload_size
from geomx.wire.roster_messages import Message

U16, U32, U62 = (1 << 16) - 1, (1 << 32) - 1, 1 << 62


def state(size: int) -> State:
    return State(7, 3, ("exp_avg",), (), size)


def content(number: int, size: int) -> bytes:
    return random.Random(number).randbytes(size)


def frame(number: int, message: Message | None, body: bytes = b"", priority: int = 0) -> bytes:
    head = b"" if message is None else encode_head(message)
    return PREFIX.pack(number, len(head) + len(body), len(head), priority) + head + body


class Reader:
    """A parser, fed by hand; counts what was admitted and allocated."""

    def __init__(self, limit: int = 1 << 20) -> None:
        self.limit = limit
        self.admitted = 0
        self.allocated = 0
        self.arrivals: list[Arrival] = []
        self.parser = Parser(self.admit, self.allocate)

    def admit(self, message: Message) -> None:
        if payload_size(message) > self.limit:
            raise ProtocolError("too large for this edge")
        self.admitted += payload_size(message)

    def allocate(self, size: int) -> tuple[bytearray, memoryview]:
        self.allocated += size
        payload = bytearray(size)
        return payload, memoryview(payload)

    def feed(self, data: bytes, most: int = 1 << 30) -> list[Arrival]:
        """Put `data` in, in reads of at most `most` bytes each."""
        at = 0
        while at < len(data):
            buffer = self.parser.buffer()
            count = min(len(buffer), len(data) - at, most)
            assert count > 0
            buffer[:count] = data[at : at + count]
            at += count
            self.arrivals.extend(self.parser.advance(count))
        return self.arrivals


sizes = st.one_of(
    st.integers(0, 300),
    st.sampled_from([DIRECT_BYTES - 1, DIRECT_BYTES, SCRATCH_BYTES, 3 * SCRATCH_BYTES + 5]),
)
chunks = st.one_of(st.integers(1, 400), st.sampled_from([DIRECT_BYTES + 7, 1 << 20]))
reads = st.one_of(st.integers(1, 50), st.integers(1000, 1 << 20))


@examples(50)
@given(
    messages=st.lists(st.tuples(sizes, st.integers(0, 5), st.integers(0, 20)), min_size=1, max_size=12),
    chunk_bytes=chunks,
    most=reads,
)
def test_any_messages_in_any_chunks_and_reads_arrive_intact(messages, chunk_bytes, most):
    lanes, stream = Lanes(chunk_bytes), bytearray()
    if chunk_bytes < 400 and most < 50:
        messages = [(min(size, 2000), priority, pulled) for size, priority, pulled in messages]
    for number, (size, priority, pulled) in enumerate(messages, 1):
        lanes.put(number, state(size), memoryview(content(number, size)), priority)
        for _ in range(pulled):  # some chunks leave before the next message is there
            stream += b"".join(lanes.next_chunk() or ())
    while (chunk := lanes.next_chunk()) is not None:
        stream += b"".join(chunk)
    reader = Reader()
    arrivals = {arrival.number: arrival for arrival in reader.feed(bytes(stream), most)}
    assert len(reader.arrivals) == len(messages)
    assert reader.parser.unfinished == ""
    for number, (size, _, _) in enumerate(messages, 1):
        assert arrivals[number].message == state(size)
        assert bytes(arrivals[number].payload or b"") == content(number, size)


@examples(150)
@given(
    at=st.integers(0, 1 << 20),
    noise=st.binary(min_size=1, max_size=16),
    size=st.integers(0, 3000),
    most=st.integers(1, 4000),
)
def test_corruption_is_refused_or_stays_within_what_was_admitted(at, noise, size, most):
    stream = bytearray(frame(1, state(size), content(1, size // 2)))
    if size:
        stream += frame(1, None, content(2, size - size // 2))
    stream += frame(2, Ack(4))
    at %= len(stream)
    stream[at : at + len(noise)] = noise
    reader = Reader(limit=4096)
    with contextlib.suppress(ProtocolError):
        reader.feed(bytes(stream), most)
    assert reader.allocated <= reader.admitted <= 3 * reader.limit


@given(noise=st.binary(max_size=300), is_header=st.booleans(), most=st.integers(1, 300))
def test_random_bytes_raise_nothing_but_protocol_errors(noise, is_header, most):
    reader = Reader(limit=100)
    with contextlib.suppress(ProtocolError):
        reader.feed((PREFIX.pack(1, len(noise), len(noise), 0) if is_header else b"") + noise, most)
    assert reader.allocated <= reader.admitted


BROKEN = {
    "nothing in it": PREFIX.pack(1, 0, 0, 0),
    "of which none is under way": frame(9, None, b"abc"),
    "fewer than its header": PREFIX.pack(1, 4, 5, 0),
    "cannot be decoded": PREFIX.pack(1, 5, 5, 0) + b"\xc1\xc1\xc1\xc1\xc1",
    "nested without end": PREFIX.pack(1, 60_000, 60_000, 0) + b"\x91" * 60_000,
    "claims 4611686018427387904": frame(1, state(U62)),
    "claims -1": frame(1, state(-1)),
    "at most": frame(1, state(PAYLOAD_LIMIT_BYTES + 1)),
    "too large for this edge": frame(1, state((1 << 20) + 1)),
    "has 5 in its first frame": frame(1, state(4), b"12345"),
    "has 1 in its first frame": frame(1, Ack(1), b"1"),
    "3 bytes; 2 are left": frame(1, state(4), b"12") + frame(1, None, b"345"),
    "4294967295 bytes; 2 are left": frame(1, state(4), b"12") + PREFIX.pack(1, U32, 0, 0),
    "while another of that number": frame(1, state(4), b"12") + frame(1, state(4), b"12"),
    "0 bytes; 2 are left": frame(1, state(4), b"12") + PREFIX.pack(1, 0, 0, U16),
    "begins while another": frame(1, state(4), b"12") + frame(1, Ack(3)),
    "of priority 3 overtakes one of priority 3": frame(1, state(4), b"12", 3) + frame(2, state(0), b"", 3),
    "of priority 4 overtakes one of priority 2": (
        frame(1, state(2), b"1", 3) + frame(2, state(2), b"1", 2) + frame(3, state(2), b"1", 4)
    ),
}


@pytest.mark.parametrize("most", [1, 1 << 20])
@pytest.mark.parametrize("why", BROKEN)
def test_a_broken_rule_raises_before_memory_is_taken(why, most):
    reader = Reader()
    with pytest.raises(ProtocolError) as caught:
        reader.feed(BROKEN[why], most)
    if why not in {"nothing in it", "nested without end"}:
        assert why in str(caught.value)
    assert reader.arrivals == []
    assert reader.allocated <= 4


def test_messages_before_a_broken_one_are_delivered():
    reader = Reader()
    with pytest.raises(ProtocolError):
        reader.feed(frame(0, Ack(5)) + PREFIX.pack(1, 0, 0, 0))
    assert reader.arrivals == [Arrival(0, Ack(5), None)]


def test_a_header_is_admitted_before_its_payload_has_come_and_half_a_frame_takes_no_memory():
    reader = Reader()
    reader.feed(frame(1, state(1000))[:-1])
    assert (reader.admitted, reader.allocated) == (0, 0)
    assert reader.parser.unfinished == "in a frame"
    reader.feed(frame(1, state(1000))[-1:])
    assert (reader.admitted, reader.allocated) == (1000, 1000)
    assert reader.arrivals == []
    assert reader.parser.unfinished == "in message 1 (State), after 0 of 1000 payload bytes"


def test_a_flood_of_beginnings_is_refused():
    """Each of them takes memory, and none ever ends."""
    reader = Reader()
    for number in range(1, 2001):
        reader.feed(frame(number, state(2), b"1", 2000 - number))
    with pytest.raises(ProtocolError, match="overtakes"):
        reader.feed(frame(2001, state(2), b"1", 0))
    assert reader.allocated == 2 * 2000


def test_large_payloads_are_read_where_they_stay():
    reader = Reader()
    size = 4 * DIRECT_BYTES
    reader.feed(frame(1, state(size), content(1, size))[: 200 + DIRECT_BYTES], most=200)
    buffer = reader.parser.buffer()
    buffer[:3] = b"abc"
    list(reader.parser.advance(3))
    assert b"abc" in bytes(next(iter(reader.parser._partials.values())).payload)


def test_the_longest_header_fits_the_scratch():
    message = State(1, 1, ("x" * 65_500,), (), 0)
    head = encode_head(message)
    assert len(head) <= U16
    reader = Reader()
    assert reader.feed(frame(0, Ack(1)) * 3 + frame(5, message), most=999)[-1].message == message
