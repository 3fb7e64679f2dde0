"""Nodes that come and go beside the tree: of one's own tier, met where a table of ways needs them, or servers of rows.

Nobody waits for them, or ends with them, but where a `Companion` needs one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from geomx.node.contract import Measured
from geomx.node.peers.dialling import Dialling
from geomx.node.peers.handshake import Handshake
from geomx.node.peers.peer import Handler, Peer
from geomx.wire.session import Patience, Session


@dataclass(frozen=True, slots=True)
class Siblings:
    """The nodes beside with which one may be connected: with what patience, and those that it dials.

    `relays`: they are of its own tier, and pass on for each other.
    """

    patience: Mapping[str, Patience] = field(default_factory=dict)
    dialled: frozenset[str] = frozenset()
    relays: bool = True


class Companion(Handler, Protocol):
    """What takes the messages of nodes beside this one, and hears of them."""

    def opened(self, peer: Peer, first: bool) -> None:
        """A session is open; `first`: for the first time with this incarnation of the peer."""

    def lost(self, peer: Peer) -> None:
        """It cannot be reached any more, and is forgotten."""

    def measured(self, measured: Measured) -> None:
        """See `Measured`."""

    def needs(self, peer: Peer) -> bool:
        """Whether the run cannot go on without it."""


class BesideHost(Protocol):
    """The node around it."""

    dialling: Dialling

    @property
    def now(self) -> float: ...
    def drop(self, conn: int, reason: str) -> None: ...


class Beside:
    """See the module's text."""

    def __init__(
        self, host: BesideHost, peers: dict[str, Peer], handshake: Handshake, siblings: Siblings
    ) -> None:
        self._host, self._peers, self._handshake, self._siblings = host, peers, handshake, siblings

    def __contains__(self, name: str) -> bool:
        return name in self._siblings.patience

    def may_dial(self, name: str) -> bool:
        """Whether it is this node that dials a sibling."""
        return name in self._siblings.dialled

    def meet(self, name: str) -> None:
        """Dial one, unless it is known already."""
        if name not in self._peers:
            session = Session(name, 0, self._siblings.patience[name], self._host.now)
            peer = self._peers[name] = Peer(name, session, dialled=True, is_beside=True)
            self._host.dialling.dial(peer)

    def part(self, peer: Peer, reason: str) -> None:
        """Forget one."""
        if peer.session.conn:
            self._host.drop(peer.session.conn, reason)
        self._handshake.let_go(reason, peer)
        self._peers.pop(peer.name, None)
