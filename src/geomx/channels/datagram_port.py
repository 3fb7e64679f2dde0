"""The UDP socket of whoever listens, in the channels `datagram` and `dgt`."""

from __future__ import annotations

import asyncio
import secrets
import socket
from typing import Any, Protocol

from geomx.channels.sealing import flow_of
from geomx.channels.udp import UdpSocket

READS = 64  # datagrams in a row before others have their turn


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
        self._socket = UdpSocket(family)
        try:
            self._socket.bind((host, port))
        except OSError:
            self._socket.close()
            raise
        self._flows: dict[int, FlowEnd] = {}
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
        self._socket.send(datagram, address)

    def close(self) -> None:
        """No more datagrams."""
        asyncio.get_running_loop().remove_reader(self._socket)
        self._socket.close()

    def _readable(self) -> None:
        touched: dict[int, FlowEnd] = {}
        for datagram, address in self._socket.receive(READS):
            flow = flow_of(datagram)
            connection = self._flows.get(flow)
            if connection is not None and connection.arrived(datagram, address):
                touched[flow] = connection
        for connection in touched.values():
            connection.run_flow()
