"""TCP: own frames over one connection for each edge, optionally shaped, optionally in TLS 1.3.

What a channel writes on the connections that it dials shares one shaped link, a node's uplink; what it writes on
a connection that it accepted has a link of its own, that peer's downlink.

`chunk_bytes` is the grain at which messages overtake each other, and how much the kernel holds that can no longer
be overtaken (`TCP_NOTSENT_LOWAT`). On a LAN 512 KiB are a fraction of a millisecond, and smaller ones cost processor
time; on a WAN 64 KiB are 5 ms of 100 Mbit/s. `benchmarks/wire.py` measures it against raw sockets. With TLS the event
loop holds as much again between the ciphers and the kernel.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import socket
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import count
from typing import Any

from geomx.channels import congestion as congestion_control
from geomx.channels.connection import TcpConnection, format_address
from geomx.channels.contract import Carried, Connection, ConnectionHandler, EdgeSettings
from geomx.channels.emulation.link import LinkSpec
from geomx.channels.emulation.pacing import LinkPacer
from geomx.channels.emulation.shaping import EmulatedLink
from geomx.channels.startup import startup_of
from geomx.channels.tls import HANDSHAKE_LIMIT_S, Contexts, TlsDoor, report_to
from geomx.errors import ConfigError, Fault

LAN_CHUNK_BYTES = 512 << 10
WAN_CHUNK_BYTES = 64 << 10
DIAL_LIMIT_S = 10.0
BACKLOG = 1024  # all workers of a run may dial at the same moment


class TcpListener:
    """An open door; see `geomx.channels.contract.Listener`.

    `names`: where it listens, as sockets call their names; more than one where a host has several addresses.
    """

    def __init__(self, server: asyncio.Server) -> None:
        self._server = server
        self.names = [sock.getsockname() for sock in server.sockets]
        self.address = format_address(self.names[0])

    async def close(self) -> None:
        """Take no more connections."""
        self._server.close()


class Tcp:
    """The channel between processes and machines.

    `link`: shape what is written, None: do not. `chunk_bytes`: None for the default of the kind of edge.
    `congestion`: `system`, or a name that the kernel knows (both ends choose for what they send). `pace_mbps`: see
    `pace`, for connections that are dialled. `tls`: see `geomx.channels.tls.contexts`. `seed`: of jitter and loss.
    `uplink`: the link that the dialled connections share. Raises `ConfigError`.
    """

    carries: AbstractSet[Carried] = frozenset({"tls", "congestion"})

    def __init__(
        self,
        link: LinkSpec | None = None,
        *,
        chunk_bytes: int | None = None,
        congestion: str = congestion_control.SYSTEM,
        pace_mbps: float = 0.0,
        tls: Contexts | None = None,
        seed: int = 0,
    ) -> None:
        congestion_control.check(congestion)
        self._link = link
        self._chunk_bytes = chunk_bytes or (LAN_CHUNK_BYTES if link is None else WAN_CHUNK_BYTES)
        self._congestion = congestion
        self._pace_mbps = pace_mbps
        self._tls = tls
        self._seeds = count(seed)
        self.uplink = self._new_pacer()

    async def dial(self, address: str, receiver: ConnectionHandler) -> TcpConnection:
        """Connect to `host:port`; raises OSError or TimeoutError, within 10 s; at once while the link is cut.

        Of a name with several addresses one is tried after the other, each for its share of the time: one that never
        answers leaves some to the next. The receiver hears of the connection only after this has returned.
        """
        host, port = split_address(address)
        if self.uplink is not None and self.uplink.spec.cut:
            raise OSError(errno.EHOSTUNREACH, "the emulated link is cut")
        tls: dict[str, Any] = {}
        if self._tls is not None:
            tls = {
                "ssl": self._tls.client,
                "server_hostname": host,
                "ssl_handshake_timeout": HANDSHAKE_LIMIT_S,
            }
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(DIAL_LIMIT_S):
            sock = await _connected(host, port)
            _, connection = await loop.create_connection(
                lambda: self._connection(receiver, self.uplink, TcpConnection.hold, dials=True),
                sock=sock,
                **tls,
            )
        self.pace(connection, self._pace_mbps)
        loop.call_soon(connection.release)
        return connection

    async def listen(
        self, address: str, receiver: ConnectionHandler, accepted: Callable[[Connection], None]
    ) -> TcpListener:
        """Accept connections at `host:port` (port 0: any free one); with TLS, after the handshake."""
        host, port = split_address(address)
        loop = asyncio.get_running_loop()

        def connection() -> TcpConnection:
            return self._connection(receiver, self._new_pacer(), accepted, dials=False)

        if self._tls is None:
            server = await loop.create_server(connection, host, port, backlog=BACKLOG)
            return TcpListener(server)
        report_to(self._tls.server, receiver.refused)
        door = TlsDoor(self._tls.server, connection)
        return TcpListener(await loop.create_server(door.arriving, host, port, backlog=BACKLOG))

    def downlink(self, link: LinkSpec) -> LinkPacer:
        """A shaped link for `shape`: that of one peer, however often it dials."""
        return LinkPacer(EmulatedLink(link, next(self._seeds)))

    def shape(self, connection: Connection, downlink: LinkPacer) -> None:
        """Shape what is written on an accepted connection from now on: it is known only now who has come."""
        if isinstance(connection, TcpConnection):
            connection.pace(downlink)

    def pace(self, connection: Connection, mbps: float) -> None:
        """Let the kernel send no faster than this from now on; 0: as fast as TCP finds."""
        if isinstance(connection, TcpConnection) and mbps:
            congestion_control.pace(connection.socket, mbps)

    def _new_pacer(self) -> LinkPacer | None:
        return None if self._link is None else self.downlink(self._link)

    def _connection(
        self,
        receiver: ConnectionHandler,
        pacer: LinkPacer | None,
        stands: Callable[[TcpConnection], None],
        *,
        dials: bool,
    ) -> TcpConnection:
        def connected(connection: TcpConnection, sock: Any) -> None:
            self._set_options(sock)
            connection.startup = startup_of(sock)
            if self._tls is not None and self._tls.revocation is not None:
                self._tls.revocation.admit(connection, connection.serial, connection.fail)
            stands(connection)

        return self.new_connection(receiver, self._chunk_bytes, pacer, connected, dials=dials)

    def new_connection(
        self,
        receiver: ConnectionHandler,
        chunk_bytes: int,
        pacer: LinkPacer | None,
        connected: Callable[[TcpConnection, Any], None],
        *,
        dials: bool,
    ) -> TcpConnection:
        """Of the class that this channel's connections have. `dials`: this end makes the connection."""
        del dials
        return TcpConnection(receiver, chunk_bytes, pacer, connected)

    def _set_options(self, sock: Any) -> None:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if hasattr(socket, "TCP_NOTSENT_LOWAT"):
            with contextlib.suppress(OSError):
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, self._chunk_bytes)
        congestion_control.choose(sock, self._congestion)


def of_edge(edge: EdgeSettings) -> Tcp:
    """The channel `tcp` of a description. Raises `ConfigError`."""
    return Tcp(
        edge.link,
        chunk_bytes=edge.chunk_bytes,
        congestion=edge.congestion,
        pace_mbps=edge.pace_mbps,
        tls=edge.tls,
        seed=edge.seed,
    )


async def _connected(host: str, port: int) -> socket.socket:
    """To the first of a name's addresses that answers; raises OSError, as the last one did."""
    loop = asyncio.get_running_loop()
    found = await loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
    failed = OSError(errno.EADDRNOTAVAIL, f"{host} has no address")
    for family, kind, protocol, _, address in found:
        sock = socket.socket(family, kind, protocol)
        try:
            sock.setblocking(False)
            async with asyncio.timeout(DIAL_LIMIT_S / len(found)):
                await loop.sock_connect(sock, address)
        except BaseException as error:
            sock.close()
            if not isinstance(error, OSError):
                raise
            failed = error
        else:
            return sock
    raise failed


def split_address(address: str) -> tuple[str, int]:
    """`host:port` or `[host]:port`; raises `ConfigError`."""
    host, _, port = address.rpartition(":")
    if not host or not port.isascii() or not port.isdigit() or int(port) > 65_535:
        raise ConfigError("channel", [Fault("address", repr(address), "host:port")])
    return host.removeprefix("[").removesuffix("]"), int(port)
