"""How bytes cross an edge: the contract that every channel keeps.

A *channel* makes *connections*. A connection carries whole messages, numbered by the session above it, in the
order of their priorities; it may lose everything at any moment (`closed`), and the session resumes on the next
one. A connection never retries, never acknowledges and never looks into a message.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from geomx.wire.messages import Message


class ConnectionHandler(Protocol):
    """Who is told what happens on a connection."""

    def admit(self, connection: Connection, message: Message) -> None:
        """A header has come: raise `ProtocolError` to refuse it before memory is taken for its payload."""

    def received(self, connection: Connection, number: int, message: Message, payload: Any) -> None:
        """A whole message has come; `payload` is a flat uint8 tensor that now belongs to the receiver."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Nothing more will come or go. Called once, unless `close` was called."""

    def refused(self, reason: str) -> None:
        """The channel itself has turned somebody away, before there was a connection."""


class Connection(Protocol):
    """One connection. `bytes_sent` and `bytes_received` count what crossed the socket, frames included."""

    ident: int
    peer_address: str
    bytes_sent: int
    bytes_received: int

    def write(self, number: int, message: Message, payload: Any, priority: int) -> None:
        """Queue a message; returns at once. `payload`: a flat uint8 tensor that will not change, or None."""

    def close(self, reason: str) -> None:
        """Write what is queued at priority 0, then close. `closed` is not called."""

    async def gone(self) -> None:
        """Return when nothing more will leave; after `close` that takes 2 s and one delay of the link at most."""


class Listener(Protocol):
    """An open door."""

    address: str

    async def close(self) -> None:
        """Take no more connections; those that stand are not touched."""


class Channel(Protocol):
    """One way to cross an edge."""

    async def dial(self, address: str, receiver: ConnectionHandler) -> Connection:
        """Connect to `host:port`; raises OSError or TimeoutError."""

    async def listen(
        self, address: str, receiver: ConnectionHandler, accepted: Callable[[Connection], None]
    ) -> Listener:
        """Accept connections at `host:port` (port 0: any free one)."""
