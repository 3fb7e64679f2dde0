"""BBR's startup, over a kernel that plays what is told of it, and a real socket."""

from __future__ import annotations

import socket
import struct

import pytest
from wires import on_each_loop, pair, state, tensor

from geomx.channels.congestion import available
from geomx.channels.startup import LOOK_EVERY_S, Startup
from geomx.channels.tcp import Tcp

STARTS, SETTLED = 739, 256
UNLIMITED = 2**64 - 1
ROUND_TRIP_S = 0.03
MBIT = 125_000


class Kernel:
    """A socket of which BBR believes `rate`, with so many times what comes through in a round trip under way."""

    def __init__(self, pace: int = UNLIMITED) -> None:
        self.pace = pace
        self.gain, self.rate, self.full = STARTS, 97 * MBIT, 2.9
        self.now = 0.0

    def getsockopt(self, level: int, option: int, size: int) -> bytes:
        if level == socket.SOL_SOCKET:
            return struct.pack("@L", self.pace)
        if option == socket.TCP_INFO:
            return struct.pack("=16xI4xI", 1, int(self.full * self.rate * ROUND_TRIP_S))
        return struct.pack("=QIII", self.rate, int(1e6 * ROUND_TRIP_S), self.gain, 0)

    def setsockopt(self, level: int, option: int, value: bytes) -> None:
        assert level == socket.SOL_SOCKET
        (self.pace,) = struct.unpack("@L", value)

    def clock(self) -> float:
        return self.now

    def look(self, startup: Startup, seconds: float) -> list[int]:
        """What the pace is behind each look."""
        paces = []
        for _ in range(round(seconds / LOOK_EVERY_S)):
            self.now += LOOK_EVERY_S
            startup.look()
            paces.append(self.pace)
        return paces


@pytest.mark.parametrize("own", [UNLIMITED, 200 * MBIT, 50 * MBIT])
def test_where_full_round_trips_bring_no_more_it_is_held_until_it_ends(own: int) -> None:
    kernel = Kernel(own)
    startup = Startup(kernel, kernel.clock)
    paces = kernel.look(startup, 0.5)
    assert paces[:4] == [own] * 4  # three round trips behind the one that told the rate
    assert paces[-1] == min(own, int(1.05 * kernel.rate))
    kernel.rate = 150 * MBIT  # the link carries more
    assert kernel.look(startup, 0.1)[-1] == min(own, int(1.05 * kernel.rate))
    assert not startup.has_ended
    kernel.gain = SETTLED
    assert kernel.look(startup, 0.02) == [own]
    assert startup.has_ended


def test_it_is_left_alone_while_more_comes_through_or_its_way_is_not_full() -> None:
    kernel = Kernel()
    startup = Startup(kernel, kernel.clock)
    for _ in range(20):  # slices of a sparse round are less than a round trip carries
        kernel.full = 1.2
        assert set(kernel.look(startup, 0.2)) == {UNLIMITED}
    kernel.full, kernel.rate = 2.9, MBIT
    for _ in range(20):
        kernel.rate = int(1.3 * kernel.rate)
        assert set(kernel.look(startup, 0.08)) == {UNLIMITED}
    kernel.gain = SETTLED
    assert kernel.look(startup, 0.02) == [UNLIMITED]
    assert startup.has_ended


def test_what_it_is_before_the_first_bytes_is_no_end() -> None:
    kernel = Kernel()
    startup = Startup(kernel, kernel.clock)
    kernel.gain, kernel.rate = SETTLED, 0
    kernel.look(startup, 0.02)
    assert not startup.has_ended


@pytest.mark.skipif("bbr" not in available(), reason="this process may not choose BBR")
@on_each_loop
async def test_a_connection_looks_until_the_kernel_tells_nothing() -> None:
    async with pair(Tcp(congestion="bbr")) as (ours, _, theirs, heard):
        ours.write(1, state(100_000), tensor(100_000), 1)
        await heard.until(lambda: len(heard.messages) == 1)
        assert ours.startup is not None
        information = ours.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 28)
        segment_bytes, under_way = struct.unpack("=16xI4xI", information)
        assert 500 < segment_bytes < 1 << 16
        assert under_way * segment_bytes <= 100_000 + segment_bytes

        def untold() -> None:
            raise OSError

        ours.startup.look = untold
        ours.write(2, state(100_000), tensor(100_000), 1)
        await heard.until(lambda: len(heard.messages) == 2)
        assert ours.startup is None
    async with pair(Tcp(congestion="cubic")) as (ours, _, theirs, _):
        assert ours.startup is theirs.startup is None
