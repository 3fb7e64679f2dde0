from __future__ import annotations

import socket
import struct
import threading
import time

import pytest
from wires import LOOPS, pair, run_on, state, tensor

from geomx.channels import bbr, congestion
from geomx.channels.bbr import ENOUGH_BYTES, EVERY_S, FEW_BYTES, HEADROOM, HELD_S, NAME, READINGS
from geomx.channels.tcp import Tcp

pytestmark = pytest.mark.skipif(
    NAME not in congestion.available(), reason="this process may not choose BBR on this machine"
)

BULK = bytes(4 << 20)
PACING = struct.Struct("@L")
UNLIMITED = PACING.unpack(b"\xff" * PACING.size)[0]
MOST_BULKS = 1000
GIVE_UP_S = 20.0

round_trip_now_s = bbr._round_trip_now_s  # the kernel's, which the fixture replaces


@pytest.fixture(autouse=True)
def queue(monkeypatch):
    """Loopback has none; here every round trip has waited in one."""
    monkeypatch.setattr(bbr, "_round_trip_now_s", lambda sock: bbr._read(sock).round_trip_s + 1.0)


class Flow:
    """A connection over loopback that is read as fast as it can be, and a clock that the test sets."""

    def __init__(self, name: str = NAME) -> None:
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
            seen = bbr._read(self.near)
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
        while bbr._under_way(self.near):
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
        return bbr._read(self.near).rate == 0

    @property
    def pace(self) -> int:
        return PACING.unpack(self.near.getsockopt(socket.SOL_SOCKET, bbr.SO_MAX_PACING_RATE, PACING.size))[0]


def test_a_flow_with_nothing_under_way_begins_anew_and_is_held_at_what_it_had_found():
    with Flow() as flow:
        rate = flow.settle()
        flow.write(HELD_S)
        assert flow.is_new
        assert flow.pace == int(HEADROOM * rate)
        assert flow.near.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).startswith(b"bbr\0")
        flow.settle()
        flow.write(HELD_S / 2)
        assert flow.pace == int(HEADROOM * rate)
        flow.write(HELD_S)
        assert flow.pace == UNLIMITED


def test_it_is_held_for_as_long_as_it_begins():
    with Flow() as flow:
        rate = flow.settle()
        flow.write(HELD_S)
        for _ in range(3):
            flow.write(HELD_S / 2)
            assert flow.pace == int(HEADROOM * rate)
        flow.settle()
        flow.write()
        assert flow.pace == UNLIMITED


def test_it_begins_again_after_as_long_and_sooner_when_it_has_found_nothing():
    with Flow() as flow:
        flow.write(HELD_S)
        for found_after_s in (HELD_S, EVERY_S, EVERY_S):
            flow.settle()
            flow.write(found_after_s - 0.1)
            assert not flow.is_new
            flow.write(0.2)
            assert flow.is_new


def test_not_before_its_time():
    with Flow() as flow:
        flow.settle()
        flow.write(HELD_S - 0.1)
        assert not flow.is_new
        assert flow.pace == UNLIMITED


def test_a_heartbeat_is_no_beginning():
    with Flow() as flow:
        flow.settle()
        flow.write(EVERY_S, size_bytes=FEW_BYTES)
        assert not flow.is_new


def test_nor_is_what_follows_on_bytes_that_are_under_way():
    with Flow() as flow:
        flow.settle()
        flow.fill()
        flow.write(EVERY_S)
        assert not flow.is_new
        assert flow.pace == UNLIMITED
        flow.empty()
        flow.write()
        assert flow.is_new


def test_what_little_bytes_took_is_not_the_rate_of_the_link():
    with Flow() as flow:
        for _ in range(2 * ENOUGH_BYTES // (8 * FEW_BYTES)):  # enough together, but never without a stop
            flow.send(bytes(8 * FEW_BYTES))
        flow.write(HELD_S)
        assert flow.is_new
        assert flow.pace == UNLIMITED


def test_what_processors_sent_without_a_queue_is_not_either(monkeypatch):
    with Flow() as flow:
        monkeypatch.setattr(bbr, "_round_trip_now_s", lambda sock: 1.2 * bbr._read(sock).round_trip_s)
        flow.settle()
        flow.write(HELD_S)
        assert flow.is_new
        assert flow.pace == UNLIMITED


def test_the_round_trip_now_is_no_shorter_than_the_shortest():
    with Flow() as flow:
        flow.settle()
        assert 0 < bbr._read(flow.near).round_trip_s <= round_trip_now_s(flow.near) < GIVE_UP_S


def test_a_rate_that_loss_made_smaller_does_not_hold_the_next_beginning():
    with Flow() as flow:
        best = 0
        for _ in range(3):
            best = max(best, flow.settle())
            flow.write(EVERY_S)
            assert flow.pace == int(HEADROOM * best)


def test_a_rate_that_was_long_ago_is_forgotten():
    with Flow() as flow:
        rate = flow.settle()
        for _ in range(READINGS):
            flow.write(EVERY_S)
            assert flow.pace == int(HEADROOM * rate)
            flow.send(bytes(8 * FEW_BYTES))
        flow.write(EVERY_S)
        assert flow.is_new
        assert flow.pace == UNLIMITED


def test_the_users_pace_stays():
    with Flow() as flow:
        flow.settle()
        congestion.pace(flow.near, 800)
        for _ in range(2):
            flow.write(EVERY_S)
            assert flow.is_new
            assert flow.pace == 100_000_000
        flow.write(HELD_S)
        flow.settle()
        flow.write()
        assert flow.bbr._pace is None
        assert flow.pace == 100_000_000


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


@pytest.mark.parametrize("loop_name", LOOPS)
def test_a_connection_that_is_ending_is_left_alone(loop_name, monkeypatch):
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
    monkeypatch.setattr(bbr, "EVERY_S", 0.0)
    monkeypatch.setattr(bbr, "HELD_S", 0.0)
    begun = []
    begin_anew = bbr.Bbr._begin_anew
    monkeypatch.setattr(bbr.Bbr, "_begin_anew", lambda self: (begun.append(self), begin_anew(self)))

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
