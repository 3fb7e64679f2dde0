from __future__ import annotations

import socket
import struct
import threading
import time
from collections.abc import Callable

import pytest
from wires import LOOPS, pair, run_on, state, tensor

from geomx.channels import bbr, congestion, kernel
from geomx.channels.bbr import (
    ENOUGH_BYTES,
    ENOUGH_ROUND_TRIPS,
    EVERY_S,
    EXACT_ROUND_TRIPS,
    FAR_S,
    FEW_BYTES,
    HEADROOM,
    LATEST_S,
    LONGER,
    MAYBE_LONGER,
    NAME,
    OTHER,
    PAUSE_EVERY_S,
    PAUSE_S,
    QUEUED,
    QUEUED_SEGMENTS,
    READINGS,
    STEADY_ROUND_TRIPS,
    UNDISTURBED,
    UNKNOWN_S,
    WINDOW_ROUND_TRIPS,
    Stretch,
)
from geomx.channels.kernel import Seen
from geomx.channels.tcp import Tcp

BULK = bytes(4 << 20)
UNLIMITED = 2 ** (8 * struct.calcsize("@L")) - 1
MOST_BULKS = 1000
GIVE_UP_S = 300.0
RATE, ROUND_TRIP_S = 1_000_000, 0.1
QUEUE_S = 2 * QUEUED * ROUND_TRIP_S

read = kernel.read  # the kernel's, which a test may replace


def need_bbr() -> None:
    if NAME not in congestion.available():
        pytest.skip("this process may not choose BBR on this machine")


class Link:
    """What the kernel is made to tell: loopback has neither a rate nor a queue."""

    def __init__(self) -> None:
        self.seen = Seen(RATE, True, ROUND_TRIP_S, ROUND_TRIP_S, QUEUE_S, 0, 1000, 0)

    def __call__(self, sock: socket.socket) -> Seen:
        return self.seen

    def is_so(self, **fields: object) -> None:
        self.seen = self.seen._replace(**fields)


@pytest.fixture
def link(monkeypatch):
    seen = Link()
    monkeypatch.setattr(kernel, "read", seen)
    return seen


class Flow:
    """A connection over loopback that is read as fast as it can be, and a clock that the test sets."""

    def __init__(self, name: str = NAME) -> None:
        need_bbr()
        with socket.create_server(("127.0.0.1", 0)) as door:
            self.near = socket.create_connection(door.getsockname())
            self.far, _ = door.accept()
        congestion.choose(self.near, name)
        self.now = 100.0
        self.bbr = bbr.of(self.near, lambda: self.now)
        self._reads = threading.Event()
        self._reads.set()
        self._reader = threading.Thread(target=self._read)

    def __enter__(self) -> Flow:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._reads.set()
        self.near.shutdown(socket.SHUT_WR)
        self._reader.join()
        self.near.close()
        self.far.close()

    def _read(self) -> None:
        while self.far.recv(1 << 20):
            self._reads.wait(GIVE_UP_S)

    def settle(self) -> int:
        """Send until BBR has found a rate; which."""
        for _ in range(MOST_BULKS):
            self.send(BULK)
            seen = kernel.read(self.near)
            if seen.has_settled:
                return seen.rate
        raise AssertionError(f"BBR has found no rate in {MOST_BULKS} times {len(BULK)} bytes")

    def send(self, data: bytes) -> None:
        """And wait until it has arrived."""
        if self.bbr is not None:
            self.bbr.before(len(data))
        self.near.sendall(data)
        self.flush()

    def flush(self) -> None:
        give_up_at = time.monotonic() + GIVE_UP_S
        while kernel.under_way(self.near):
            assert time.monotonic() < give_up_at, "the other end does not read"

    def fill(self) -> None:
        """Send what no one reads, until the kernel takes no more."""
        self._reads.clear()
        self.near.setblocking(False)
        try:
            while True:
                self.near.send(BULK)
        except BlockingIOError:
            self.near.setblocking(True)

    def empty(self) -> None:
        self._reads.set()
        self.flush()

    def write(self, after_s: float = 0.0, size_bytes: int = 1 << 16) -> None:
        self.now += after_s
        self.bbr.before(size_bytes)

    @property
    def is_new(self) -> bool:
        return read(self.near).rate == 0

    @property
    def pace(self) -> int:
        return congestion.pace_of(self.near)

    def round(self, after_s: float = EVERY_S, size_bytes: int = 4 * ENOUGH_BYTES) -> None:
        """A round's bytes, and the first of the next round's."""
        self.write(size_bytes=size_bytes)
        self.heartbeat()
        self.write(after_s)

    def heartbeat(self) -> None:
        self.write(size_bytes=FEW_BYTES)


def held(rate: int) -> int:
    return int(HEADROOM * rate)


# -- when it begins anew --------------------------------------------------------------------------------


def test_a_flow_with_nothing_under_way_begins_anew_with_the_same_congestion_control():
    with Flow() as flow:
        flow.settle()
        flow.write(UNKNOWN_S)
        assert flow.is_new
        assert flow.near.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr\0")


def test_not_before_its_time():
    with Flow() as flow:
        flow.settle()
        flow.write(UNKNOWN_S - 0.1)
        assert not flow.is_new


def test_it_begins_again_after_as_long():
    with Flow() as flow:
        flow.write(UNKNOWN_S)
        for _ in range(3):
            flow.settle()
            flow.write(UNKNOWN_S - 0.1)
            assert not flow.is_new
            flow.write(0.2)
            assert flow.is_new


def test_less_often_when_the_rate_of_the_link_is_known(link):
    with Flow() as flow:
        flow.round(UNKNOWN_S)
        link.is_so(rate=RATE // 2)
        flow.round(EVERY_S - 0.1)
        assert len(flow.bbr._found) == 1
        flow.round(0.2)
        assert len(flow.bbr._found) == 2


def test_a_heartbeat_is_no_beginning():
    with Flow() as flow:
        flow.settle()
        flow.write(LATEST_S, size_bytes=FEW_BYTES)
        assert not flow.is_new


def test_nor_is_what_follows_on_bytes_that_are_under_way_until_bbr_would_stand_still():
    with Flow() as flow:
        flow.settle()
        flow.fill()
        flow.write(LATEST_S - 0.1)
        assert not flow.is_new
        flow.write(0.2)
        assert flow.is_new


# -- what the link carries ------------------------------------------------------------------------------


def test_it_is_held_at_what_has_come_through(link):
    with Flow() as flow:
        flow.write(size_bytes=4 * ENOUGH_BYTES)
        assert flow.pace == UNLIMITED
        flow.write(UNKNOWN_S)
        assert flow.pace == held(RATE)
        for _ in range(10):
            flow.write(1.0)
            assert flow.pace == held(RATE)


def test_what_little_bytes_took_is_not_the_rate_of_the_link(link):
    with Flow() as flow:
        for _ in range(2 * ENOUGH_BYTES // (8 * FEW_BYTES)):  # enough together, but never without a stop
            flow.write(size_bytes=8 * FEW_BYTES)
        flow.write(UNKNOWN_S)
        assert flow.is_new
        assert flow.pace == UNLIMITED


def test_nor_is_nothing(link):
    with Flow() as flow:
        link.is_so(rate=0)
        flow.round()
        assert flow.pace == UNLIMITED
        link.is_so(rate=RATE)
        flow.round()
        link.is_so(rate=0)
        flow.round()
        assert flow.pace == held(RATE)


def test_nor_what_took_too_few_round_trips(link):
    with Flow() as flow:
        link.is_so(rate=100 * RATE)
        few, enough = 0.99 * ENOUGH_ROUND_TRIPS, 1.01 * ENOUGH_ROUND_TRIPS
        flow.round(size_bytes=int(few * 100 * RATE * ROUND_TRIP_S))
        assert flow.pace == UNLIMITED
        flow.round(size_bytes=int(enough * 100 * RATE * ROUND_TRIP_S))
        assert flow.pace == pytest.approx(held(100 * RATE) * enough / (enough - 1), rel=1e-5)


def test_the_first_round_trip_is_not_counted_where_all_may_have_left_in_it(link):
    """Three round trips' worth that have left at once take four; they look like three quarters of the link's rate."""
    small = int(3 * RATE * ROUND_TRIP_S)
    with Flow() as flow:
        link.is_so(rate=RATE * 3 // 4)
        flow.round(size_bytes=small)
        assert flow.pace == pytest.approx(held(RATE), rel=1e-5)
    with Flow() as flow:
        link.is_so(rate=RATE)
        flow.round(size_bytes=int(WINDOW_ROUND_TRIPS * RATE * ROUND_TRIP_S))
        assert flow.pace == held(RATE)


def test_but_what_is_held_so_that_it_leaves_more_slowly_is_believed(link):
    small = int(3 * RATE * ROUND_TRIP_S)
    with Flow() as flow:
        flow.round(size_bytes=small)
        assert flow.pace == held(RATE * 3 // 2)
        for _ in range(READINGS):
            flow.round(size_bytes=small)
        assert flow.pace == held(RATE)


def test_it_may_be_held_so_high_that_all_leaves_in_the_first_round_trip(link):
    with Flow() as flow:
        link.is_so(rate=10 * RATE)
        flow.round(size_bytes=40 * ENOUGH_BYTES)
        assert flow.pace == held(10 * RATE)
        link.is_so(rate=RATE * 3 // 4)
        for _ in range(READINGS):
            flow.round(size_bytes=int(3 * RATE * ROUND_TRIP_S))
        assert flow.pace == pytest.approx(held(RATE), rel=1e-5)


@pytest.mark.parametrize("near", [{"queued_s": 0.9 * QUEUED * ROUND_TRIP_S}, {"round_trip_s": 9e-4}])
def test_nor_what_processors_sent(link, near):
    link.is_so(**near)
    with Flow() as flow:
        flow.round()
        assert flow.is_new
        assert flow.pace == UNLIMITED


def test_nor_is_a_queue_that_heartbeats_have_found(link):
    with Flow() as flow:
        for queued_s, later_s, pace in ((0.0, QUEUE_S, UNLIMITED), (QUEUE_S, 0.0, held(RATE))):
            link.is_so(queued_s=queued_s)
            flow.write(size_bytes=4 * ENOUGH_BYTES)
            flow.heartbeat()
            link.is_so(queued_s=later_s)
            flow.heartbeat()
            flow.write(EVERY_S)
            assert flow.pace == pace


def test_a_rate_that_loss_made_smaller_does_not_hold_the_next_beginning(link):
    with Flow() as flow:
        for rate, best in ((RATE // 2, RATE // 2), (RATE, RATE), (RATE // 3, RATE)):
            link.is_so(rate=rate)
            flow.round()
            assert flow.pace == held(best)


def test_a_link_that_carries_less_than_before_is_noticed(link):
    with Flow() as flow:
        flow.round()
        link.is_so(rate=RATE // 2)
        for _ in range(READINGS - 1):
            flow.round()
            assert flow.pace == held(RATE)
        flow.round()
        assert flow.pace == held(RATE // 2)


def test_a_link_that_carries_more_is_left_to_bbr_once_it_has_begun(link):
    with Flow() as flow:
        flow.round()
        link.is_so(rate=2 * RATE, queued_s=0.0, has_settled=False)
        flow.round()
        assert flow.pace == held(2 * RATE)
        flow.write(0.1)
        assert flow.pace == held(2 * RATE)
        link.is_so(has_settled=True)
        flow.write(0.1)
        assert flow.pace == UNLIMITED
        link.is_so(rate=3 * RATE, queued_s=QUEUE_S)
        flow.round(size_bytes=8 * ENOUGH_BYTES)
        assert flow.pace == held(3 * RATE)


def test_as_much_as_was_found_and_no_queue_is_no_reason_to_let_go(link):
    with Flow() as flow:
        flow.round()
        link.is_so(queued_s=0.0)
        flow.round()
        flow.write(0.1)
        assert flow.pace == held(RATE)


def test_a_guess_lets_go_of_what_is_known_exactly_only_where_it_is_far_higher(link):
    with Flow() as flow:
        stream(flow, link, RATE, 4.0)
        flow.write(EVERY_S)
        link.is_so(rate=int(1.1 * RATE), queued_s=0.0)
        for _ in range(2):
            flow.round()
            flow.write(0.1)
            assert flow.pace == held(RATE)
        link.is_so(rate=2 * RATE, queued_s=QUEUE_S)
        flow.round()
        flow.write(0.1)
        assert flow.pace == UNLIMITED
        link.is_so(queued_s=0.0)
        flow.round()
        assert flow.pace == held(2 * RATE)


def test_at_a_low_rate_late_acknowledgements_are_no_queue(link):
    """Held far too low, a segment waits long for the next; together they are acknowledged late."""
    low = RATE // 100
    late_s = 0.9 * QUEUED_SEGMENTS * link.seen.segment_bytes / low
    assert late_s > QUEUE_S
    with Flow() as flow:
        link.is_so(rate=low, queued_s=2 * late_s)
        flow.round()
        assert flow.pace == held(low)
        link.is_so(rate=held(low), queued_s=late_s)
        flow.round()
        flow.write(0.1)
        assert flow.pace == UNLIMITED


def test_the_users_pace_stays(link):
    with Flow() as flow:
        congestion.pace(flow.near, 4)
        flow.round()
        assert flow.pace == 500_000
        link.is_so(rate=2 * RATE, queued_s=0.0)
        flow.round()
        flow.write(0.1)
        assert flow.bbr._pace is None
        assert flow.pace == 500_000


def test_a_long_stretch_tells_more_exactly_than_bbr(link):
    with Flow() as flow:
        flow.round()
        assert flow.pace == held(RATE)
        stream(flow, link, int(0.95 * RATE), 4.0)
        flow.write(EVERY_S)
        assert flow.pace == held(int(0.95 * RATE))
        flow.round()  # a short one tells nothing more
        assert flow.pace == held(int(0.95 * RATE))


def test_and_that_the_link_carries_a_little_more(link):
    with Flow() as flow:
        stream(flow, link, int(0.95 * RATE), 4.0)
        flow.write(EVERY_S)
        link.is_so(queued_s=0.0)
        stream(flow, link, int(0.97 * RATE), 4.0)
        flow.write(EVERY_S)
        assert flow.pace == held(int(0.97 * RATE))
        flow.write(0.1)
        assert flow.pace == UNLIMITED


def test_what_was_sent_before_it_was_let_go_tells_nothing_more(link):
    with Flow() as flow:
        stream(flow, link, int(0.95 * RATE), 4.0)
        flow.write(EVERY_S)
        link.is_so(rate=2 * RATE, has_settled=False)
        flow.round()
        flow.fill()
        flow.write(0.1, size_bytes=100 * ENOUGH_BYTES)
        link.is_so(has_settled=True)
        flow.write(0.1)
        assert flow.pace == UNLIMITED
        link.is_so(rate=3 * RATE)
        flow.empty()
        flow.write(EVERY_S)
        assert flow.pace == held(2 * RATE)


def test_unless_loss_has_disturbed_it(link):
    with Flow() as flow:
        stream(flow, link, int(0.9 * UNDISTURBED * RATE), 4.0)
        flow.write(EVERY_S)
        assert flow.pace == held(RATE)


def stream(flow: Flow, link: Link, rate: int, for_s: float) -> None:
    """So much comes through, and there is always more to send."""
    flow.fill()
    first, until = flow.now, flow.now + for_s
    while flow.now < until:
        delivered = int(rate * (flow.now - first)) // link.seen.segment_bytes
        link.is_so(waiting_bytes=1, delivered=delivered)
        flow.write(0.05)
    flow.empty()
    link.is_so(waiting_bytes=0)


BUSY = Seen(RATE, True, ROUND_TRIP_S, ROUND_TRIP_S, 0.0, 1, 1000, 0)
STEADY_S, EXACT_S = STEADY_ROUND_TRIPS * ROUND_TRIP_S, EXACT_ROUND_TRIPS * ROUND_TRIP_S


def test_a_stretch_tells_its_rate_without_its_first_round_trips():
    stretch = Stretch(10.0)
    stretch.look(10.0, BUSY._replace(delivered=7))
    stretch.look(10.01 + STEADY_S, BUSY._replace(delivered=2**32 - 100))
    stretch.look(10.0 + STEADY_S + EXACT_S, BUSY._replace(delivered=500))
    assert stretch.rate == 0
    stretch.look(12.01 + STEADY_S, BUSY._replace(delivered=1900))
    assert stretch.rate == pytest.approx(RATE, rel=1e-3)


@pytest.mark.parametrize("idle", [{"waiting_bytes": 0}, {"has_settled": False}])
def test_a_stretch_that_had_nothing_to_send_or_began_anew_is_looked_at_from_there_on(idle):
    stretch = Stretch(10.0)
    stretch.look(10.01 + STEADY_S, BUSY)
    stretch.look(11.0 + STEADY_S, BUSY._replace(**idle))
    stretch.look(11.01 + 2 * STEADY_S, BUSY)
    stretch.look(11.01 + 2 * STEADY_S + 0.9 * EXACT_S, BUSY._replace(delivered=900))
    assert stretch.rate == 0
    stretch.look(11.02 + 2 * STEADY_S + EXACT_S, BUSY._replace(delivered=1000))
    assert stretch.rate == pytest.approx(RATE, rel=0.02)


def test_what_the_kernel_tells():
    with Flow() as flow:
        rate = flow.settle()
        before = read(flow.near)
        assert before.segment_bytes == flow.near.getsockopt(socket.IPPROTO_TCP, socket.TCP_MAXSEG)
        assert before.remembered_s <= before.round_trip_s
        assert before.rate == rate
        assert before.waiting_bytes == 0
        assert 0 < before.round_trip_s < GIVE_UP_S
        assert 0 <= before.queued_s < GIVE_UP_S
        flow.send(BULK)
        segments = read(flow.near).delivered - before.delivered
        assert len(BULK) <= segments * before.segment_bytes < 4 * len(BULK)
        flow.fill()
        assert read(flow.near).waiting_bytes > 0


# -- when the way becomes longer ------------------------------------------------------------------------


def test_a_round_trip_of_twice_as_long_has_bbr_find_out_now_and_then(link):
    longer = {"queued_s": 1.01 * (MAYBE_LONGER - 1.0) * ROUND_TRIP_S, "rate": int(0.99 * UNDISTURBED * RATE)}
    with Flow() as flow:
        flow.round()
        flow.settle()
        link.is_so(**longer)
        flow.round()
        assert not flow.is_new
        flow.round(PAUSE_S - 0.1)
        assert not flow.is_new
        flow.round(0.2)
        assert flow.is_new
        link.is_so(queued_s=QUEUE_S, rate=RATE)
        flow.round(PAUSE_EVERY_S - PAUSE_S - 1.0)
        flow.settle()
        link.is_so(**longer)
        flow.round(0.0)
        assert not flow.is_new
        flow.round(EVERY_S)
        assert not flow.is_new


def test_where_as_much_comes_through_as_before_it_is_a_queue(link):
    with Flow() as flow:
        flow.round()
        flow.settle()
        link.is_so(queued_s=2 * MAYBE_LONGER * ROUND_TRIP_S, rate=int(1.01 * UNDISTURBED * RATE))
        flow.round()
        assert flow.is_new


def test_not_before_it_is_known_what_the_link_carries(link):
    with Flow() as flow:
        flow.settle()
        link.is_so(queued_s=2 * MAYBE_LONGER * ROUND_TRIP_S)
        flow.round()
        assert flow.is_new
        assert flow.pace == held(RATE)


def test_what_bbr_has_found_to_be_longer_is_left_to_it_until_tcp_forgets_the_short_one(link):
    with Flow() as flow:
        flow.round()
        flow.settle()
        link.is_so(round_trip_s=1.01 * LONGER * ROUND_TRIP_S, queued_s=0.0, rate=RATE // 2)
        for _ in range(2 * READINGS):
            flow.round(PAUSE_S)
            assert not flow.is_new
            assert flow.pace == held(RATE)
        link.is_so(remembered_s=1.01 * LONGER * ROUND_TRIP_S)
        flow.round(PAUSE_S)
        assert flow.is_new


def test_processors_that_take_longer_are_no_way(link):
    with Flow() as flow:
        flow.settle()
        link.is_so(round_trip_s=0.9 * FAR_S, remembered_s=0.1 * FAR_S)
        flow.round()
        assert flow.is_new


# -- what it leaves alone -------------------------------------------------------------------------------


def test_other_congestion_control_is_left_alone(monkeypatch):
    with Flow("reno") as flow:
        assert flow.bbr is None
    with Flow() as flow:
        assert flow.bbr is not None
        with monkeypatch.context() as patch:  # BBR is the system's, and this process may not choose it
            patch.setattr(bbr, "works", lambda name: False)
            assert bbr.of(flow.near) is None
        monkeypatch.setattr("sys.platform", "darwin")
        assert bbr.of(flow.near) is None


def refuse(error: Exception, for_name: str = "") -> Callable[..., None]:
    def fails(_: object, name: str = "") -> None:
        if name == for_name:
            raise error

    return fails


@pytest.mark.parametrize(
    ("module", "name", "fails"),
    [
        (kernel, "read", refuse(struct.error("unpack requires a buffer of 196 bytes"))),
        (bbr, "pace_of", refuse(struct.error("unpack requires a buffer of 8 bytes"))),
        (bbr, "choose", refuse(PermissionError("not permitted"), for_name=OTHER)),
    ],
)
def test_a_kernel_that_tells_little_or_forbids_is_left_alone(module, name, fails, monkeypatch):
    with Flow() as flow:
        monkeypatch.setattr(module, name, fails)
        assert bbr.of(flow.near) is None


@pytest.mark.parametrize("loop_name", LOOPS)
def test_nothing_is_lost_where_the_kernel_refuses_later(loop_name, monkeypatch, caplog):
    need_bbr()

    def fails(self: bbr.Bbr, size_bytes: int) -> None:
        raise PermissionError("not permitted")

    async def main():
        async with pair(Tcp(congestion=NAME)) as (connection, _, _, theirs):
            sent = tensor(100_000, 1)
            monkeypatch.setattr(bbr.Bbr, "before", fails)
            connection.write(1, state(100_000), sent, 1)
            await theirs.until(lambda: len(theirs.messages) == 1)
            assert theirs.messages[0][2].equal(sent)
            assert connection.bbr is None

    run_on(loop_name, main)
    assert "BBR is left alone from now on: not permitted" in caplog.text


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_connection_that_is_ending_is_left_alone(loop_name, monkeypatch):
    need_bbr()
    sizes = []
    monkeypatch.setattr(bbr.Bbr, "before", lambda self, size_bytes: sizes.append(size_bytes))

    async def main():
        async with pair(Tcp(congestion=NAME)) as (connection, ours, _, _):
            connection._write_out([bytes(24)], 24)
            connection._transport.abort()
            connection._write_out([bytes(48)], 48)
            await ours.until_closed()

    run_on(loop_name, main)
    assert sizes == [24]


@pytest.mark.parametrize("loop_name", LOOPS)
def test_all_that_is_sent_across_beginnings_arrives(loop_name, monkeypatch):
    need_bbr()
    monkeypatch.setattr(bbr, "EVERY_S", 0.0)
    monkeypatch.setattr(bbr, "UNKNOWN_S", 0.0)
    begun = []
    begin_anew = bbr.Bbr._begin_anew
    monkeypatch.setattr(bbr.Bbr, "_begin_anew", lambda self, now: (begun.append(self), begin_anew(self, now)))

    async def main():
        async with pair(Tcp(congestion=NAME)) as (connection, ours, accepted, theirs):
            sent = [tensor(100_000, seed) for seed in range(40)]
            for number, payload in enumerate(sent):
                connection.write(number, state(100_000), payload, 1)
                accepted.write(number, state(100_000), payload, 1)
                await theirs.until(lambda number=number: len(theirs.messages) == number + 1)
                await ours.until(lambda number=number: len(ours.messages) == number + 1)
            for witness in (ours, theirs):
                assert witness.numbers == list(range(40))
                assert all(got.equal(was) for (_, _, got), was in zip(witness.messages, sent, strict=True))
            assert {id(each) for each in begun} == {id(connection.bbr), id(accepted.bbr)}

    run_on(loop_name, main)
