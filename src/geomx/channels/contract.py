"""How bytes cross an edge: the contract of a channel.

A *channel* makes *connections*. A connection carries whole messages, numbered by the session above it, in the order of
their priorities. It may lose everything at any moment (`closed`); the session resumes on the next one. A connection
never retries, never acknowledges, and never looks into a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, Protocol, runtime_checkable

from geomx.channels.emulation.link import LinkSpec
from geomx.errors import GeomxError, ProtocolError
from geomx.layout import Slice
from geomx.wire.flow.counts import FlowCounts
from geomx.wire.flow.outbox import FlowTerms
from geomx.wire.roster_messages import Message

if TYPE_CHECKING:
    import torch

    from geomx.channels.emulation.pacing import LinkPacer
    from geomx.channels.tls import Contexts


class ConnectionHandler(Protocol):
    """What a channel calls when something happens on a connection; geomx implements it."""

    def admit(self, connection: Connection, message: Message) -> None:
        """A header has arrived; call this before you allocate memory for its payload.

        Raises:
            ProtocolError: The message is refused: close the connection.
        """

    def received(self, connection: Connection, number: int, message: Message, payload: Any) -> None:
        """A whole message has arrived.

        Args:
            connection: The connection.
            number: The session's number of this message.
            message: The header.
            payload: A flat uint8 tensor, which now belongs to the receiver, or None.

        Raises:
            ProtocolError: The message is refused: close the connection.
        """

    def flow(self, connection: Connection, passes: bool, why: str) -> None:
        """Whether datagrams pass beside the connection has become known, or is otherwise now. `why`: what was seen."""

    def broken(self, connection: Connection, error: ProtocolError) -> None:
        """The peer has sent what it cannot mean, and is a member of the run for sure, which ends by that."""

    def closed(self, connection: Connection, reason: str) -> None:
        """The connection has ended. Call it once, unless `close` or `abort` was called."""

    def failed(self, error: GeomxError) -> None:
        """This process itself cannot go on, whatever the peer does, such as for want of memory."""

    def no_datagrams(self, why: str) -> None:
        """Whoever listens cannot receive datagrams: everything that comes comes over TCP. `why`: a whole sentence."""

    def refused(self, reason: str) -> None:
        """The channel has turned somebody away before there was a connection, such as in a TLS handshake."""


class Connection(Protocol):
    """One connection between two nodes.

    Attributes:
        ident: A number that no other connection of this process has.
        peer_address: The peer's address, for messages.
        certified: The URIs among the names in the peer's certificate; None: it has shown none.
        bytes_sent: Bytes that have left through the socket, with frames.
        bytes_received: Bytes that have come through the socket, with frames.
    """

    ident: int
    peer_address: str
    certified: tuple[str, ...] | None
    bytes_sent: int
    bytes_received: int

    def write(self, number: int, message: Message, payload: Any, priority: int) -> None:
        """Queue a message; returns at once.

        Args:
            number: The session's number of this message.
            message: The header.
            payload: A flat uint8 tensor that nobody changes any more, or None.
            priority: Messages with smaller numbers go first, also past one that is half sent.
        """

    def close(self, reason: str) -> None:
        """Write what is queued at priority 0, then close. The handler's `closed` is not called."""

    def abort(self) -> None:
        """Close at once, whatever is queued; also after `close`. The handler's `closed` is not called."""

    async def gone(self) -> None:
        """Return when nothing more will leave: after `close`, within 2 s and one delay of the link."""


@runtime_checkable
class MeasuringConnection(Connection, Protocol):
    """One that knows how fast it carries, for overlays."""

    def carried(self, every_s: float) -> tuple[int, float] | None:
        """What has left since the last call.

        Args:
            every_s: So long ago that was.

        Returns:
            Bytes, and in how many seconds, as far as something was waiting to leave; None: that is not known.
        """


@runtime_checkable
class FlowConnection(Connection, Protocol):
    """A connection beside which payloads can travel in datagrams, see `geomx.wire.flow`.

    Attributes:
        flow_counts: What has become of its datagrams at this end; also once it has ended.
    """

    @property
    def flow_counts(self) -> FlowCounts: ...

    def open_flow(self, secret: bytes, terms: FlowTerms) -> None:
        """The other end has proved who it is: datagrams may be sent.

        Args:
            secret: What both ends know of this connection, and nobody else; empty where the run has no secret.
            terms: Of what this end sends.
        """

    def write_blocks(
        self, number: int, message: Message, payload: Any, priority: int, blocks: Sequence[tuple[Any, int]]
    ) -> None:
        """Queue a message whose payload may go in blocks; else as `write`.

        Args:
            number: The session's number of this message.
            message: The header.
            payload: As in `write`.
            priority: As in `write`.
            blocks: Blocks with their elements (`start`, `stop`) and bytes (`payload`), and the class of each.
        """


class Listener(Protocol):
    """Accepts connections at `address`, which has the real port."""

    address: str

    async def close(self) -> None:
        """Accept no more connections; those that exist are not touched."""


@dataclass(frozen=True, slots=True)
class EdgeSettings:
    """What a description says of the edges that a channel is made for.

    Attributes:
        link: The emulated link that all dialled connections share; None: the network as it is.
        chunk_bytes: After so many bytes a more urgent message can overtake; None: the channel's default.
        congestion: TCP's congestion control, by the kernel's name; "system": as the machine is set.
        pace_mbps: The most that dialled connections send, in 10^6 bits of payload a second; 0: no limit.
        tls: The TLS contexts of both directions; None: no TLS.
        seed: The seed of all random numbers.
    """

    link: LinkSpec | None = None
    chunk_bytes: int | None = None
    congestion: str = "system"
    pace_mbps: float = 0.0
    tls: Contexts | None = None
    seed: int = 0


class BlockClasses(Protocol):
    """How payloads are sent by a channel that puts them in datagrams. One object serves one node.

    Attributes:
        loses: Whether blocks of what goes up may be lost; if not, all payloads travel as they stand.
        tries: How often a block of class 1, 2, ... is sent at most. Blocks of class 0 are sent until they have come.
        grace: How long the receiver waits, behind a payload's end, for what is not reliable: in round trips.
        needs_loss: The script has to tell its loss (`run.loss`).
        parity_share: Parity pieces for each piece, up to 1, from which lost ones are rebuilt; 0: as many as the
            measured loss asks for, of what is reliable.
    """

    loses: bool
    tries: tuple[int, ...]
    grace: float
    needs_loss: bool
    parity_share: float

    def levels(
        self,
        slice_: Slice,
        turn: int,
        blocks: Sequence[Ranged],
        values: Callable[[], torch.Tensor],
        relative_loss: float | None,
    ) -> list[int]:
        """Give each block of a payload its class.

        Args:
            slice_: The slice.
            turn: The number of the round.
            blocks: The blocks, in order; `start` and `stop` are the elements of the slice that one covers.
            values: What the payload carries, of shape (elements,).
            relative_loss: The loss of this step, divided by the first of the run, as the mean of the workers inside;
                None: the scripts have told none.

        Returns:
            A class for each: 0 is reliable, `NOT_SENT` stays here.
        """


NOT_SENT = -1


@runtime_checkable
class DatagramChannel(Protocol):
    """A channel that puts payloads in datagrams beside its connections, which are `FlowConnection`s.

    Each node asks a channel of its own, whose `EdgeSettings.seed` depends on `run.seed` and on the node's name.

    Attributes:
        classes: How it sends the blocks of a payload.
    """

    classes: BlockClasses


def classes_of(channel: object) -> BlockClasses | None:
    """How a channel sends blocks; None: it has no datagrams, and everything goes over connections."""
    return channel.classes if isinstance(channel, DatagramChannel) else None


class Ranged(Protocol):
    """A block: elements [start, stop) of its slice."""

    @property
    def start(self) -> int: ...

    @property
    def stop(self) -> int: ...


Carried = Literal["tls", "congestion"]


class Channel(Protocol):
    """Makes connections. The class is called with an `EdgeSettings`; its keyword-only arguments are its parameters.

    Attributes:
        carries: Which of "tls" and "congestion" in `EdgeSettings` it honours; a description that asks for another is
            refused. A class without this attribute honours neither. For `link` and `pace_mbps` see `ShapingChannel`.
    """

    carries: AbstractSet[Carried]

    async def dial(self, address: str, receiver: ConnectionHandler) -> Connection:
        """Connect to a node. The receiver hears of the connection only after this has returned.

        Args:
            address: Its `host:port`.
            receiver: What to call when something happens on the connection.

        Raises:
            OSError: There is no connection, or `TimeoutError`: not in time.
        """

    async def listen(
        self, address: str, receiver: ConnectionHandler, accepted: Callable[[Connection], None]
    ) -> Listener:
        """Accept connections.

        Args:
            address: The `host:port` at which to listen; port 0: any free one.
            receiver: What to call when something happens on a connection.
            accepted: Called with each new connection, before anything arrives on it.

        Raises:
            OSError: The address is not of this machine, or taken.
        """


# What a registry's name or `module:Class` stands for; parameters of a spec are its keyword-only arguments.
ChannelFactory = Callable[[EdgeSettings], Channel]


@runtime_checkable
class ShapingChannel(Channel, Protocol):
    """A channel that can emulate links and pace what it sends; descriptions with `link` or `pace_mbps` need one.

    Attributes:
        uplink: The emulated link that all dialled connections share; None: there is none.
    """

    uplink: LinkPacer | None

    def downlink(self, link: LinkSpec) -> LinkPacer:
        """Make an emulated link to one peer, to be used for all of its connections."""

    def shape(self, connection: Connection, downlink: LinkPacer) -> None:
        """From now on, send what is written on an accepted connection through `downlink`."""

    def pace(self, connection: Connection, mbps: float) -> None:
        """From now on, let the kernel send no faster than `mbps` (10^6 bits a second); 0: no limit."""
