"""Both ends in one process and on one event loop: a run of one, and trees in tests.

Messages are handed over as they are, in the order of writing, by the loop's next turn. A receiver owns what it gets, so payloads are
copied: the sender may need its own for a resend. Nothing is counted, for nothing crosses a socket.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from geomx.channels.base import Connection, Receiver
from geomx.channels.connection import next_ident
from geomx.errors import ProtocolError
from geomx.protocol.messages import Message


class InprocConnection:
    """One end; see `geomx.channels.base.Connection`."""

    bytes_sent = 0
    bytes_received = 0

    def __init__(self, receiver: Receiver, address: str) -> None:
        self.ident = next_ident()
        self.peer_address = address
        self.receiver = receiver
        self.other: InprocConnection | None = None
        self._loop = asyncio.get_running_loop()

    def write(self, number: int, message: Message, payload: Any, priority: int) -> None:
        if self.other is not None:
            self._loop.call_soon(self.other.take, number, message, payload)

    def close(self, reason: str) -> None:
        other, self.other = self.other, None
        if other is not None:
            self._loop.call_soon(other.lose, reason)

    def take(self, number: int, message: Message, payload: Any) -> None:
        """The other end has written."""
        if self.other is None:
            return
        try:
            self.receiver.admit(self, message)
        except ProtocolError as error:
            self.close(str(error))
            self.receiver.closed(self, str(error))
        else:
            self.receiver.received(self, number, message, None if payload is None else payload.clone())

    def lose(self, reason: str) -> None:
        """The other end has closed."""
        if self.other is not None:
            self.other = None
            self.receiver.closed(self, reason)


class InprocListener:
    """An open door; see `geomx.channels.base.Listener`."""

    def __init__(self, address: str, shut: Callable[[], None]) -> None:
        self.address = address
        self._shut = shut

    async def close(self) -> None:
        self._shut()


class Inproc:
    """The channel within a process. Addresses are any names."""

    def __init__(self) -> None:
        self._doors: dict[str, tuple[Receiver, Callable[[Connection], None]]] = {}

    async def dial(self, address: str, receiver: Receiver) -> InprocConnection:
        """Connect to whoever listens at `address`; raises OSError where nobody does."""
        if address not in self._doors:
            raise ConnectionRefusedError(f"nobody listens at {address} in this process")
        their_receiver, accepted = self._doors[address]
        mine, theirs = InprocConnection(receiver, address), InprocConnection(their_receiver, address)
        mine.other, theirs.other = theirs, mine
        accepted(theirs)
        return mine

    async def listen(
        self, address: str, receiver: Receiver, accepted: Callable[[Connection], None]
    ) -> InprocListener:
        """Accept connections at `address`."""
        self._doors[address] = receiver, accepted
        return InprocListener(address, lambda: self._doors.pop(address, None) and None)
