"""How bytes cross an edge: the contract that every channel keeps.

A *channel* makes *connections*. A connection carries whole messages, numbered by the session above it, in the
order of their priorities; it may lose everything at any moment (`closed`), and the session resumes on the next
one. A connection never retries, never acknowledges and never looks into a message.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from geomx.channels.emulation.link import LinkSpec
from geomx.errors import GeomxError
from geomx.wire.messages import Message

if TYPE_CHECKING:
    from geomx.channels.emulation.pacing import LinkPacer
    from geomx.channels.tls import Contexts


class ConnectionHandler(Protocol):
    """Who is told what happens on a connection."""

    def admit(self, connection: Connection, message: Message) -> None:
        """A header has come: raise `ProtocolError` to refuse it before memory is taken for its payload."""

    def received(self, connection: Connection, number: int, message: Message, payload: Any) -> None:
        """A whole message has come; `payload` is a flat uint8 tensor that now belongs to the receiver."""

    def closed(self, connection: Connection, reason: str) -> None:
        """Nothing more will come or go. Called once, unless `close` was called."""

    def failed(self, error: GeomxError) -> None:
        """This process itself cannot go on, whatever the peer does."""

    def refused(self, reason: str) -> None:
        """The channel itself has turned somebody away, before there was a connection."""


class Connection(Protocol):
    """One connection. `bytes_sent` and `bytes_received` count what crossed the socket, frames included.

    `certified`: the URIs among the names in the peer's certificate; None: it has shown none.
    """

    ident: int
    peer_address: str
    certified: tuple[str, ...] | None
    bytes_sent: int
    bytes_received: int

    def write(self, number: int, message: Message, payload: Any, priority: int) -> None:
        """Queue a message; returns at once. `payload`: a flat uint8 tensor that will not change, or None."""

    def close(self, reason: str) -> None:
        """Write what is queued at priority 0, then close. `closed` is not called."""

    def abort(self) -> None:
        """Close at once, whatever is queued; also where `close` was called. `closed` is not called."""

    async def gone(self) -> None:
        """Return when nothing more will leave; after `close` that takes 2 s and one delay of the link at most."""


class Listener(Protocol):
    """An open door."""

    address: str

    async def close(self) -> None:
        """Take no more connections; those that stand are not touched."""


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """What a description says of the edges that a channel is made for.

    Attributes:
        link: the emulated link that what is written shares; None: the network as it is.
        chunk_bytes: the grain at which messages overtake each other; None: the channel's default.
        congestion: TCP's congestion control, by the kernel's name; `system`: as the machine is set.
        pace_mbps: 10^6 bits of payload a second at which dialled connections send at most; 0: as fast as it goes.
        tls: both sides' contexts; None: plain.
        seed: of whatever is drawn by chance.
    """

    link: LinkSpec | None = None
    chunk_bytes: int | None = None
    congestion: str = "system"
    pace_mbps: float = 0.0
    tls: Contexts | None = None
    seed: int = 0


Carried = Literal["tls", "congestion"]


class Channel(Protocol):
    """One way to cross an edge.

    `carries`: what of `EdgeSettings` it carries out, beside a link and a pace, which a `ShapingChannel` does; a class
    without carries out nothing, and a description that asks for it is refused.
    """

    carries: AbstractSet[Carried]

    async def dial(self, address: str, receiver: ConnectionHandler) -> Connection:
        """Connect to `host:port`; raises OSError or TimeoutError."""

    async def listen(
        self, address: str, receiver: ConnectionHandler, accepted: Callable[[Connection], None]
    ) -> Listener:
        """Accept connections at `host:port` (port 0: any free one)."""


# What a registry's name or `module:Class` stands for; parameters of a spec are its keyword-only arguments.
ChannelFactory = Callable[[EdgeSettings], Channel]


@runtime_checkable
class ShapingChannel(Channel, Protocol):
    """A channel that imitates links, and paces what it sends. Only such a one can have `link` or `pace_mbps`."""

    uplink: LinkPacer | None

    def downlink(self, link: LinkSpec) -> LinkPacer:
        """A shaped link for `shape`: that of one peer, however often it dials."""

    def shape(self, connection: Connection, downlink: LinkPacer) -> None:
        """Shape what is written on an accepted connection from now on."""

    def pace(self, connection: Connection, mbps: float) -> None:
        """Let the kernel send no faster than this from now on; 0: as fast as it goes."""
