"""What a node is to its driver: events go in, effects come out, and nothing else happens.

    effects = node.handle(event, now)

A node never reads a clock, opens a socket, starts a thread or sleeps. `now` is in seconds, on any clock that
only goes forward. A *job* is a pure function over tensors: the driver runs it wherever it likes and hands back
`JobDone`. Two drivers keep this contract: `geomx.drive.real` and `geomx.simulate.simulator`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from geomx.errors import GeomxError
from geomx.node.counts import BlockCounts
from geomx.wire.flow.outbox import FlowTerms
from geomx.wire.roster_messages import Message

# A payload is a flat uint8 tensor (or, in a simulation of shapes, one on the meta device). `rounds` and `sync`
# never look inside.
Payload = Any

MEASURED_EVERY_S = 0.25

# -- events --------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Started:
    """The first event of every node."""


@dataclass(slots=True, eq=False)
class Opened:
    """A connection stands. `peer`: whom we dialled; empty where the other side did.

    `nonce`: random bytes for this connection alone. `certified`: the URIs in the other side's certificate; None: there
    is none, and a name is believed without.
    """

    conn: int
    peer: str = ""
    nonce: bytes = b""
    certified: tuple[str, ...] | None = None


@dataclass(slots=True, eq=False)
class Received:
    """A whole message arrived on a connection."""

    conn: int
    number: int
    message: Message
    payload: Payload = None


@dataclass(slots=True, eq=False)
class Closed:
    """A connection is gone, or (`conn` 0) a dialled peer could not be reached."""

    conn: int
    peer: str
    reason: str


@dataclass(slots=True, eq=False)
class Fired:
    """A timer that the node had set has run out."""

    key: str


@dataclass(slots=True, eq=False)
class JobDone:
    """A job has ended: with a result, or with what it raised."""

    job: Job
    result: Any = None
    error: Exception | None = None


@dataclass(slots=True, eq=False)
class Called:
    """The local program (the training loop, or who runs a server) calls a method of its node: `method(*arguments)`."""

    method: str
    arguments: tuple[Any, ...] = ()


@dataclass(slots=True, eq=False)
class Failed:
    """The driver cannot go on: this node ends, and tells the others under its own name.

    `conn`: where a connection's peer, a member of the run, is to blame: what it has sent cannot be meant.
    """

    error: GeomxError
    conn: int = 0


def asked_to_end(signal_name: str) -> str:
    """The reason of a node that fails because its process was told to end."""
    return f"it was asked to end ({signal_name})"


@dataclass(slots=True, eq=False)
class Persisted:
    """What was to be in the log is there, up to this number; see `Persist`."""

    number: int


@dataclass(slots=True, eq=False)
class CutStored:
    """A cut is in the store, or (`error`) could not be written; see `Cut`."""

    error: GeomxError | None = None


@dataclass(slots=True, eq=False)
class Restored:
    """Before `Started`: the log that was found, as headers with their payloads (flat uint8 tensors)."""

    records: Iterable[tuple[bytes, Payload]]


@dataclass(slots=True, eq=False)
class Measured:
    """What has left since the last time, by peer: bytes, and for how many seconds some were waiting to leave.

    Only for nodes that ask for it, see `Node.measures`. `leaving`, `entering`: all bytes that have left, and come.
    """

    sent: Mapping[str, tuple[int, float]]
    leaving: int = 0
    entering: int = 0


Event = (
    Started
    | Opened
    | Received
    | Closed
    | Fired
    | JobDone
    | Called
    | Failed
    | Persisted
    | CutStored
    | Restored
    | Measured
)

# -- effects -------------------------------------------------------------------------------------------


@dataclass(slots=True, eq=False)
class Dial:
    """Connect to a peer by name; the driver knows the addresses. Answered by `Opened` or `Closed`."""

    peer: str


@dataclass(slots=True, eq=False)
class Write:
    """Send a message. Lower priorities overtake higher ones, between chunks.

    `blocks`: the payload once more, in blocks, each with its class: where a flow is open beside the connection they may
    be sent there, and some may be lost. See `geomx.wire.flow`.
    """

    conn: int
    number: int
    message: Message
    payload: Payload = None
    priority: int = 0
    blocks: Sequence[tuple[Any, int]] = ()


@dataclass(slots=True, eq=False)
class OpenFlow:
    """Open a flow beside this connection, whose other end is known now.

    `secret`: what both ends know of it and nobody else; empty where the run has no secret. `terms`: of what this node
    sends.
    """

    conn: int
    secret: bytes
    terms: FlowTerms


@dataclass(slots=True, eq=False)
class Hangup:
    """Close a connection once everything of priority 0 has been written. No `Closed` follows."""

    conn: int
    reason: str


@dataclass(slots=True, eq=False)
class Identified:
    """Whoever dialled us on this connection has proved to be `peer`: the driver may count and shape its bytes."""

    conn: int
    peer: str


@dataclass(slots=True, eq=False)
class Timer:
    """Wake the node with `Fired(key)` after `delay_s`; setting a key again moves it."""

    key: str
    delay_s: float


@dataclass(slots=True, eq=False)
class Job:
    """Arithmetic to be done outside the node. `function` is pure: it may run in any thread.

    `waits`: it waits for a device, and would hold up others meanwhile.
    """

    then: Callable[[Any], None]  # the node's continuation, called by the node itself on `JobDone`
    function: Callable[[], Any]
    cost_bytes: int  # memory it touches: the simulated driver turns it into time
    waits: bool = False


@dataclass(slots=True, eq=False)
class Persist:
    """Write a record into the node's log, behind those before; answered by `Persisted` with this number or a later.

    Of the records that one event brings about, all are in the log or none.
    `payload`: pieces that follow each other.
    """

    number: int
    header: bytes
    payload: Sequence[Payload] = ()


@dataclass(slots=True, eq=False)
class Mark:
    """All that was to be in the log until now is there: the next `Cut` stands for it."""


@dataclass(slots=True, eq=False)
class Cut:
    """Keep these records in place of all that stands in the log before the last `Mark`. Answered by `CutStored`."""

    records: Sequence[tuple[bytes, Sequence[Payload]]]


@dataclass(slots=True, eq=False)
class Notify:
    """Hand something to the local program (the training loop)."""

    item: Any


@dataclass(slots=True, eq=False)
class Note:
    """Something worth observing: a log line, a metric, a point of the trace."""

    name: str
    fields: dict[str, Any] = field(default_factory=dict)
    level: str = "debug"


@dataclass(slots=True, eq=False)
class Began:
    """Training begins: this server has given all below it their first values. Second 0 of what happens to links."""


@dataclass(slots=True, eq=False)
class FirstStep:
    """This node sends up its first contribution to a step: what has crossed its edges until now is no step's."""


@dataclass(slots=True, eq=False)
class Stop:
    """The node has ended: well, or with an error that the driver raises."""

    error: GeomxError | None = None


Effect = (
    Dial
    | Write
    | OpenFlow
    | Hangup
    | Identified
    | Timer
    | Job
    | Persist
    | Mark
    | Cut
    | Notify
    | Note
    | Began
    | FirstStep
    | Stop
)


class Node(Protocol):
    """What a driver drives.

    Attributes:
        name: The node's name.
        blocks: What became of the blocks that it sent: the driver records it.
        measures: Whether it is to be told what leaves, every `MEASURED_EVERY_S`.
    """

    name: str
    blocks: BlockCounts
    measures: bool

    def handle(self, event: Event, now: float) -> Iterable[Effect]:
        """React to one event. The effects are to be carried out in order."""

    def admit(self, conn: int, message: Message) -> None:
        """Raise `ProtocolError` if this connection may not send this message, with a payload of that size or beside it.

        Called as soon as the header is there, before memory is taken for the payload.
        """
