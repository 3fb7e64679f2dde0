"""Both ends in one process, on one event loop: for a run of one, and for tests.

Nothing is encoded and nothing crosses a socket, so bytes are counted as 0. A payload is copied once, on arrival, for
it belongs to the receiver from then on, while the sender's must not change. Of all messages that wait on a
connection the most urgent arrives next, one for each turn of the loop.
"""

from __future__ import annotations

import asyncio
import errno
import heapq
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from itertools import count
from typing import Any

from geomx.channels.connection import next_ident
from geomx.channels.contract import Carried, Connection, ConnectionHandler
from geomx.errors import ProtocolError
from geomx.wire.messages import payload_size
from geomx.wire.roster_messages import Message


class InProcConnection:
    """One end; keeps the contract of `geomx.channels.contract.Connection`."""

    def __init__(self, receiver: ConnectionHandler, peer_address: str) -> None:
        self.ident = next_ident()
        self.peer_address = peer_address
        self.certified: tuple[str, ...] | None = None
        self.bytes_sent = 0
        self.bytes_received = 0
        self._receiver = receiver
        self._peer: InProcConnection
        self._open = True  # we have not closed, and nothing was told
        self._sending: list[tuple[int, int, int, Message, Any]] = []
        self._order = count()

    def join(self, peer: InProcConnection) -> None:
        """Connect the two ends."""
        self._peer, peer._peer = peer, self

    def write(self, number: int, message: Message, payload: Any, priority: int) -> None:
        """See `Connection.write`. On a connection that has ended the message is dropped."""
        size = 0 if payload is None else payload.numel()
        if size != payload_size(message):
            name, expected = type(message).__name__, payload_size(message)
            raise ValueError(f"{name} says {expected} payload bytes, but has {size}")
        if self._open:
            heapq.heappush(self._sending, (priority, next(self._order), number, message, payload))
            asyncio.get_running_loop().call_soon(self._send_next)

    def close(self, reason: str) -> None:
        """See `Connection.close`."""
        del reason  # it stands in the message that was written before
        if not self._open:
            return
        self._open = False
        self._sending = [queued for queued in self._sending if queued[0] <= 0]
        asyncio.get_running_loop().call_soon(self._say_closed)

    def abort(self) -> None:
        """See `Connection.abort`."""
        self.close("aborted")
        self._sending.clear()

    async def gone(self) -> None:
        """See `Connection.gone`."""
        await asyncio.sleep(0)  # by then the turns of the loop that `close` has planned are over

    def _send_next(self) -> None:
        if self._sending:
            _, _, number, message, payload = heapq.heappop(self._sending)
            self._peer._arrive(number, message, payload)

    def _say_closed(self) -> None:
        """Comes behind the turns of the loop in which what was queued has left."""
        self._peer._end("closed by the peer")

    def _arrive(self, number: int, message: Message, payload: Any) -> None:
        if not self._open:
            return
        try:
            self._receiver.admit(self, message)
            owned = payload.clone() if payload_size(message) else None
            self._receiver.received(self, number, message, owned)
        except ProtocolError as error:
            self._end(str(error))
            self._peer._end("closed by the peer")

    def _end(self, reason: str) -> None:
        """The end that this side did not choose."""
        if self._open:
            self._open = False
            self._sending.clear()
            self._receiver.closed(self, reason)


class InProcListener:
    """An open door; see `geomx.channels.contract.Listener`."""

    def __init__(self, address: str, doors: dict[str, Any]) -> None:
        self.address = address
        self._doors = doors

    async def close(self) -> None:
        """Take no more connections."""
        self._doors.pop(self.address, None)


class InProc:
    """The channel inside one process. Addresses are `host:port` as elsewhere, known to this object alone."""

    carries: AbstractSet[Carried] = frozenset()

    def __init__(self) -> None:
        self._doors: dict[str, tuple[ConnectionHandler, Callable[[Connection], None]]] = {}

    async def dial(self, address: str, receiver: ConnectionHandler) -> InProcConnection:
        """Connect to a listener of the same channel; raises ConnectionRefusedError where there is none."""
        door = self._doors.get(address)
        if door is None:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"nobody listens at {address} in this process")
        theirs, accepted = door
        ours = InProcConnection(receiver, address)
        other = InProcConnection(theirs, f"inproc:{ours.ident}")
        ours.join(other)
        accepted(other)
        return ours

    async def listen(
        self, address: str, receiver: ConnectionHandler, accepted: Callable[[Connection], None]
    ) -> InProcListener:
        """Accept connections at `host:port` (port 0: any free one); raises OSError where it is taken."""
        host, _, port = address.rpartition(":")
        if port == "0":
            address = next(name for n in count(1) if (name := f"{host}:{n}") not in self._doors)
        if address in self._doors:
            raise OSError(errno.EADDRINUSE, f"somebody listens at {address} already")
        self._doors[address] = (receiver, accepted)
        return InProcListener(address, self._doors)
