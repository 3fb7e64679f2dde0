"""The UDP sockets of the channels `datagram` and `dgt`."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
from typing import Any, Protocol

from geomx.channels.sealing import flow_of

READS = 64  # datagrams in a row before others have their turn
BUFFER_BYTES = 4 << 20
_IP_MTU_DISCOVER, _PMTUDISC_PROBE = 10, 3  # Linux: never in fragments, whatever a router says


class FlowEnd(Protocol):
    """A connection with a flow, which has dialled us."""

    def arrived(self, datagram: memoryview, address: Any) -> bool:
        """A datagram has come for this flow. Returns whether it is the peer's."""

    def run_flow(self) -> None:
        """Do what is due, now that datagrams have come."""


class DatagramPort:
    """The UDP socket of whoever listens: hands each datagram to the connection whose flow it belongs to."""

    def __init__(self, host: str, port: int) -> None:
        """Raises OSError."""
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self._socket = udp_socket(family)
        try:
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self._flows: dict[int, FlowEnd] = {}
        self._buffer = memoryview(bytearray(1 << 16))
        asyncio.get_running_loop().add_reader(self._socket, self._readable)

    def register(self, connection: FlowEnd) -> int:
        """The number of a new flow."""
        flow = 0
        while not flow or flow in self._flows:
            flow = secrets.randbits(32)
        self._flows[flow] = connection
        return flow

    def forget(self, flow: int) -> None:
        """A flow has ended."""
        self._flows.pop(flow, None)

    def send(self, datagram: bytes, address: Any) -> None:
        """What cannot be sent now is lost."""
        with contextlib.suppress(OSError):
            self._socket.sendto(datagram, address)

    def close(self) -> None:
        """No more datagrams."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _readable(self) -> None:
        touched: dict[int, FlowEnd] = {}
        for _ in range(READS):
            try:
                size, address = self._socket.recvfrom_into(self._buffer)
            except OSError:
                break
            flow = flow_of(self._buffer[:size])
            connection = self._flows.get(flow)
            if connection is not None and connection.arrived(self._buffer[:size], address):
                touched[flow] = connection
        for connection in touched.values():
            connection.run_flow()


def udp_socket(family: int) -> socket.socket:
    """A UDP socket that waits for nothing, sends no fragments, and holds bursts."""
    made = socket.socket(family, socket.SOCK_DGRAM)
    made.setblocking(False)
    with contextlib.suppress(OSError):
        made.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, BUFFER_BYTES)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, BUFFER_BYTES)
    if family == socket.AF_INET:
        with contextlib.suppress(OSError):
            made.setsockopt(socket.IPPROTO_IP, _IP_MTU_DISCOVER, _PMTUDISC_PROBE)
    return made
