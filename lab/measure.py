"""What plain sockets see of a lab: round trips, rates and losses, all from one thread.

The sockets of both ends belong to this process, each made inside of its site's namespace: one clock times
both.
"""

from __future__ import annotations

import select
import socket
import struct
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from geomx.channels.emulation.shaping import HEADERS
from lab.describe import Pair
from lab.errors import LabError
from lab.lab import Lab

_CHUNK_BYTES = 256 << 10
_DATAGRAM_BYTES = 64
_DATAGRAMS_AT_ONCE = 64
_PAUSE_S = 0.003  # between such groups
_SILENCE_S = 0.3  # after which nothing more will come
_GIVE_UP_S = 5.0
_RETRANSMITTED_AT, _SENT_AT, _INFO_BYTES = 100, 136, 192  # struct tcp_info in linux/tcp.h, 32 bits each


@dataclass(frozen=True, slots=True)
class Flow:
    """What one TCP connection reached."""

    wire_mbps: float  # its payload, as full segments with their headers
    retransmitted: float  # share of all segments that it sent, from its beginning on


def round_trips_ms(lab: Lab, a: str, b: str, count: int) -> list[float]:
    """`count` round trips of a small datagram between two sites with nothing else on the way, in ms."""
    with ExitStack() as stack:
        here, there = (stack.enter_context(_datagrams(lab, site)) for site in (a, b))
        trips = []
        for number in range(count + 1):
            payload = struct.pack("=Q", number).ljust(_DATAGRAM_BYTES, b"\0")
            sent_at = time.perf_counter()
            here.sendto(payload, there.getsockname())
            echoed, source = there.recvfrom(_DATAGRAM_BYTES)
            there.sendto(echoed, source)
            here.recv(_DATAGRAM_BYTES)
            trips.append((time.perf_counter() - sent_at) * 1e3)
    return trips[1:]  # the first one warms up the code


def _datagrams(lab: Lab, site: str) -> socket.socket:
    with lab.inside(site):
        end = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    end.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4 << 20)
    end.settimeout(_GIVE_UP_S)
    end.bind((lab.address(site), 0))
    return end


def loss(lab: Lab, a: str, b: str, count: int) -> float:
    """The share of `count` small datagrams that did not come through."""
    with ExitStack() as stack:
        here, there = (stack.enter_context(_datagrams(lab, site)) for site in (a, b))
        target, payload = there.getsockname(), bytes(_DATAGRAM_BYTES)
        there.setblocking(False)
        came = sent = 0
        while sent < count:
            group = min(_DATAGRAMS_AT_ONCE, count - sent)
            for _ in range(group):
                here.sendto(payload, target)
            sent += group
            came += _drain(there, _PAUSE_S)
        while arrived := _drain(there, _SILENCE_S):
            came += arrived
    return 1.0 - came / count


def _drain(end: socket.socket, for_s: float) -> int:
    """How many datagrams arrive until it is silent for so long, or that time is over while they do."""
    came = 0
    until = time.monotonic() + for_s
    while (left_s := until - time.monotonic()) > 0 and select.select([end], [], [], left_s)[0]:
        try:
            while True:
                end.recv(_DATAGRAM_BYTES)
                came += 1
        except BlockingIOError:
            continue
    return came


class _Connection:
    """A TCP connection from one site to another that sends as fast as it can; both ends are here."""

    def __init__(self, lab: Lab, pair: Pair, congestion: str, stack: ExitStack) -> None:
        a, b = pair
        with lab.inside(b):
            listener = stack.enter_context(socket.create_server((lab.address(b), 0)))
        with lab.inside(a):
            self.near = stack.enter_context(socket.socket())
        self.near.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, congestion.encode())
        self.near.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("=ii", 1, 0))  # closing ends it
        self.near.settimeout(_GIVE_UP_S)
        listener.settimeout(_GIVE_UP_S)
        try:
            self.near.connect(listener.getsockname())
            self.far = stack.enter_context(listener.accept()[0])
        except TimeoutError:
            raise LabError(
                f"no connection from {a} to {b} within {_GIVE_UP_S:g} s: is the link cut?"
            ) from None
        self.near.setblocking(False)
        self.far.setblocking(False)
        self.received_bytes = 0

    def retransmitted(self) -> float:
        """The share of all segments sent that were sent again."""
        info = self.near.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _INFO_BYTES)
        (again,) = struct.unpack_from("=I", info, _RETRANSMITTED_AT)
        (sent,) = struct.unpack_from("=I", info, _SENT_AT)
        return float(again / max(1, sent))


def flows(lab: Lab, pairs: Sequence[Pair], congestion: str, warm_s: float, for_s: float) -> list[Flow]:
    """TCP connections on several links at once, over `for_s` seconds after `warm_s` seconds to get up to speed."""
    with ExitStack() as stack:
        connections = [_Connection(lab, pair, congestion, stack) for pair in pairs]
        began_at = _pump(connections, time.perf_counter() + warm_s)
        before = [connection.received_bytes for connection in connections]
        took_s = _pump(connections, began_at + for_s) - began_at
        return [
            Flow(
                (connection.received_bytes - start) * HEADERS / took_s / 125_000,
                connection.retransmitted(),
            )
            for connection, start in zip(connections, before, strict=True)
        ]


@dataclass(frozen=True, slots=True)
class Transfer:
    """So many bytes from one site to another, over some TCP connections."""

    pair: Pair
    size_bytes: int
    connections: int = 1


def transfers(lab: Lab, wanted: Sequence[Transfer], congestion: str) -> list[float]:
    """Send all of them, beginning at once; the seconds until the last byte of each has come."""
    with ExitStack() as stack:
        groups = [
            [_Connection(lab, each.pair, congestion, stack) for _ in range(each.connections)]
            for each in wanted
        ]
        owner = {end: number for number, group in enumerate(groups) for c in group for end in (c.near, c.far)}
        far, near = ({c.far for group in groups for c in group}, {c.near for group in groups for c in group})
        unsent, missing = ([each.size_bytes for each in wanted] for _ in range(2))
        took_s = [0.0] * len(wanted)
        chunk, space = memoryview(bytes(_CHUNK_BYTES)), memoryview(bytearray(4 * _CHUNK_BYTES))
        began_at = heard_at = time.perf_counter()
        while any(missing):
            readable, writable, _ = select.select(list(far), list(near), [], _GIVE_UP_S)
            now = time.perf_counter()
            for end in readable:
                number, heard_at = owner[end], now
                missing[number] -= end.recv_into(space)
                took_s[number] = now - began_at
            for end in writable:
                number = owner[end]
                unsent[number] -= end.send(chunk[: min(_CHUNK_BYTES, unsent[number])])
                if not unsent[number]:
                    near -= {connection.near for connection in groups[number]}
            if now - heard_at > _GIVE_UP_S:
                raise LabError(f"nothing has come for {_GIVE_UP_S:g} s: is a link cut?")
        return took_s


def _pump(connections: Sequence[_Connection], until: float) -> float:
    """Send and receive all that can be; when it ended."""
    chunk, space = memoryview(bytes(_CHUNK_BYTES)), memoryview(bytearray(4 * _CHUNK_BYTES))
    far = {connection.far: connection for connection in connections}
    near = [connection.near for connection in connections]
    while (now := time.perf_counter()) < until:
        readable, writable, _ = select.select(list(far), near, [], until - now)
        for end in readable:
            far[end].received_bytes += end.recv_into(space)
        for end in writable:
            end.send(chunk)
    return now
