"""Who stands at the ends of an edge, and what the others are told when one of them fails."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from geomx.errors import GeomxError, NodeLost, ProtocolError, RunFailed
from geomx.wire.messages import Beat, Carried, Failure, Update, Value
from geomx.wire.roster_messages import Message
from geomx.wire.session import Session

FIRST_REDIAL_S, LAST_REDIAL_S = 0.05, 1.0
LATE_S = 5.0  # so long after its start a peer that cannot be reached is worth a line
MOST_REASON_CHARACTERS = 4000  # a message's header is limited, what a script raises is not


@dataclass(frozen=True, slots=True)
class Identity:
    """Who a node is, and which run it belongs to. `manifest`: what all nodes of a run must agree on.

    `secret`: the run's, see `geomx.wire.proof`; empty: membership is not proved. `term`: see `Welcome`.
    """

    name: str
    run: str
    incarnation: int = 1
    manifest: dict[str, Value] = field(default_factory=dict)
    secret: bytes = field(default=b"", repr=False)
    term: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """The bounds of a node's waits, in seconds; see `[limits]` in the run's description."""

    start_s: float = 300.0
    stall_s: float = 30.0
    stop_s: float = 10.0
    turn_s: float = 0.0  # 0: for ever


@dataclass(slots=True)
class Peer:
    """The other end of one edge."""

    name: str
    session: Session
    dialled: bool  # whether we dial it
    redial_s: float = FIRST_REDIAL_S
    joined: bool = False
    trouble: str = ""  # why it could not be reached the last time
    trouble_told: str = ""
    still_s: float = 0.0  # as it has said last; see `Beat`
    sent: int = 0  # likewise
    step: int = -1  # likewise
    term: int = 0  # the newest of it that has welcomed this node
    away_at: float = 0.0  # when its last connection ended
    has_gone: bool = False  # it has said `Gone`
    is_beside: bool = False  # whether both are of one tier, see `geomx.node.peers.beside`
    is_told: bool = False  # that this node ends: by itself, or by a greeting that failed

    @property
    def whereabouts(self) -> str:
        """Its name, and whether its training loop waits for the run, where it is a worker."""
        if self.still_s or not self.session.is_open or self.sent != self.session.received:
            return self.name
        return f"{self.name} (which does not wait for the run)"


class Handler(Protocol):
    """What takes the messages of an edge's other end: those from above, or those from below."""

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """A message of the run, delivered once."""

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Raise `ProtocolError` where a message with a `size`, be it 0, cannot have one of that size."""


def broken_by(peer: Peer, error: GeomxError) -> ProtocolError:
    """The same error, with the name of who broke the protocol, and what to do."""
    return ProtocolError(
        f"{peer.name} broke the protocol: {error}; see that {peer.name} is healthy and runs the same geomx"
    )


def raise_failed(error: GeomxError, conn: int, peers: Mapping[int, Peer]) -> None:
    """Raise what a driver tells: its own failure, or, with a connection that carries a session, what its peer did."""
    if not conn:
        raise error
    if conn in peers:
        raise broken_by(peers[conn], error) from error


def check_beat(beat: Beat) -> None:
    """Raise `ProtocolError` for a heartbeat that no node sends."""
    if beat.sent < 0 or not 0.0 <= beat.still_s < math.inf or beat.step < -1:
        raise ProtocolError(f"a heartbeat that says {beat.sent}, {beat.still_s} s and step {beat.step}")


def check_beside(peer: Peer, message: Message, has_flow: bool) -> None:
    """Raise `ProtocolError` for a payload in datagrams where none travel, or of a message that goes the other way."""
    if not isinstance(message, Carried) or message.beside is None:
        return
    if not has_flow or isinstance(message, Update) != peer.dialled:
        raise ProtocolError(f"{type(message).__name__} announces a payload in datagrams, which cannot be")


def printable(text: str) -> str:
    """Lines that somebody else has written, without what moves a terminal's cursor."""
    return "".join(c if c.isprintable() or c in "\n\t" else "?" for c in text)


def as_failure(me: str, error: GeomxError) -> Failure:
    """What the others are told: the node that failed first, and why."""
    if isinstance(error, RunFailed):
        node, name, reason = error.node, error.error, error.reason
    elif isinstance(error, NodeLost):
        node, name, reason = error.node, "NodeLost", error.reason
    else:
        node, name, reason = me, type(error).__name__, str(error)
    if len(reason) > MOST_REASON_CHARACTERS:
        reason = f"{reason[:MOST_REASON_CHARACTERS]}..."
    return Failure(node, name, reason)
