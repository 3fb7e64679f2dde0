"""The UDP sockets of whoever listens, in the channels `datagram` and `dgt`: one beside each TCP socket."""

from __future__ import annotations

import asyncio
import errno
import secrets
import socket
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from geomx.channels.sealing import flow_of
from geomx.channels.tcp import TcpListener
from geomx.channels.udp import UdpSocket, leaving_from

READS = 64  # datagrams in a row before others have their turn
_ALL_ADDRESSES = ("0.0.0.0", "::")


class Addressee(Protocol):
    """A connection with a flow, which has dialled us."""

    def arrived(self, datagram: memoryview, address: Any) -> bool:
        """A datagram has come for this flow. Returns whether it is the peer's."""

    def run_flow(self) -> None:
        """Do what is due, now that datagrams have come."""


class DatagramPort:
    """A UDP socket of whoever listens: hands each datagram to the connection whose flow it belongs to.

    Connections may have flows while it is not closed; after that, those that have one keep it to their ends. `socket`:
    it sends the answers, too.
    """

    def __init__(self, name: Any) -> None:
        """Args:
            name: Where a TCP socket listens, as `getsockname` gives it.

        Raises:
            OSError: No datagrams can be received there.
        """
        self._name = name
        self.socket = UdpSocket(socket.AF_INET if len(name) == 2 else socket.AF_INET6)
        try:
            self.socket.bind(name)
        except OSError:
            self.socket.close()
            raise
        self._flows: dict[int, Addressee] = {}
        self._takes_flows = True
        asyncio.get_running_loop().add_reader(self.socket, self._readable)

    def serves(self, name: Any) -> bool:
        """Whether what is sent to this address of this machine comes here: a pair for IPv4, else four values."""
        return bool(
            self._takes_flows
            and len(name) == len(self._name)
            and name[1] == self._name[1]
            and self._name[0] in (name[0], *_ALL_ADDRESSES)
        )

    def register(self, connection: Addressee) -> int:
        """The number of a new flow."""
        flow = 0
        while not flow or flow in self._flows:
            flow = secrets.randbits(32)
        self._flows[flow] = connection
        return flow

    def forget(self, flow: int) -> None:
        """A flow has ended."""
        self._flows.pop(flow, None)
        self._close_if_unused()

    def close(self) -> None:
        """No more flows. The socket closes when the last one has ended."""
        self._takes_flows = False
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        if not self._takes_flows and not self._flows and self.socket.fileno() >= 0:
            asyncio.get_running_loop().remove_reader(self.socket)
            self.socket.close()

    def _readable(self) -> None:
        touched: dict[int, Addressee] = {}
        for datagram, address in self.socket.receive(READS):
            flow = flow_of(datagram)
            connection = self._flows.get(flow)
            if connection is not None and connection.arrived(datagram, address):
                touched[flow] = connection
        for connection in touched.values():
            connection.run_flow()


class Answers:
    """The way back to a peer that has dialled, from the address that it knows us by.

    Attributes:
        flow: The number of the peer's flow.
        address: Where to: wherever the peer's newest datagram came from; None: nowhere yet.
    """

    def __init__(self, port: DatagramPort, connection: Addressee, here: Any) -> None:
        """Args:
        port: Where the peer's datagrams come.
        connection: With the peer; it has a flow from now on.
        here: Our own address on that connection, as `getsockname` gives it.
        """
        self.flow = port.register(connection)
        self.address: Any = None
        self._port = port
        self._source = leaving_from(here)

    def send(self, datagram: bytes) -> None:
        """Send one datagram; what cannot be sent now is lost."""
        if self.address is not None:
            self._port.socket.send(datagram, self.address, self._source)

    def send_together(self, datagrams: Sequence[bytes]) -> None:
        """Send datagrams, see `UdpSocket.send_together`; what cannot be sent now is lost."""
        if self.address is not None:
            self._port.socket.send_together(datagrams, self.address, self._source)

    def close(self) -> None:
        """The flow has ended."""
        self._port.forget(self.flow)


def open_ports(names: Sequence[Any], trouble: Callable[[str], None]) -> list[DatagramPort]:
    """A port for each TCP socket that listens, where there can be one.

    Args:
        names: Where they listen, as `getsockname` gives it.
        trouble: Called with a sentence for people for each where there can be none.
    """
    ports = []
    for name in names:
        try:
            ports.append(DatagramPort(name))
        except OSError as error:
            trouble(_trouble(name, error, len(names) == 1))
    return ports


def _trouble(name: Any, error: OSError, is_only: bool) -> str:
    port = f"UDP port {name[1]}" + ("" if is_only else f" of {name[0]}")
    if error.errno == errno.EADDRINUSE:
        port += " is in use by another program"
    else:
        port += f" cannot be used ({error.strerror})"
    return f"{port}, so TCP carries everything" + ("" if is_only else " that comes there")


class DatagramListener(TcpListener):
    """An open door for TCP and UDP."""

    def __init__(self, listener: TcpListener, ports: Sequence[DatagramPort]) -> None:
        self.address, self.names = listener.address, listener.names
        self._listener = listener
        self._ports = ports

    async def close(self) -> None:
        """Take no more connections. Those that stand keep their flows; with the last flow, the UDP socket closes."""
        await self._listener.close()
        for port in self._ports:
            port.close()
