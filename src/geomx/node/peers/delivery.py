"""What becomes of a message that has come: the numbered go to their handler once, others are of one connection."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from geomx.errors import ProtocolError, RunFailed
from geomx.node.contract import Received
from geomx.node.peers.handshake import Handshake, refused
from geomx.node.peers.peer import Handler, Peer, broken_by, check_beat, printable
from geomx.node.peers.stillness import Stillness
from geomx.wire.messages import Ack, Beat, Challenge, Failure, Gone, Hello, Refuse, Welcome
from geomx.wire.roster_messages import Message


class DeliveryHost(Protocol):
    """The node around it."""

    name: str

    @property
    def now(self) -> float: ...
    def handler_of(self, peer: Peer) -> Handler: ...
    def may_go(self, peer: Peer) -> bool: ...
    def heeds(self, peer: Peer) -> bool: ...
    def acknowledge(self, peer: Peer) -> None: ...
    def on_acknowledged(self, peer: Peer) -> None: ...


class Delivery:
    """See the module's text. `by_conn`: the node's own table of sessions that are open."""

    def __init__(
        self, host: DeliveryHost, by_conn: Mapping[int, Peer], handshake: Handshake, stillness: Stillness
    ) -> None:
        self._host = host
        self._by_conn = by_conn
        self._handshake = handshake
        self._stillness = stillness

    def received(self, event: Received) -> None:
        """A whole message has come. Raises `ProtocolError` that names who has sent it."""
        peer = self._by_conn.get(event.conn)
        if peer is None:
            self._handshake.received(event.conn, event.message)
            return
        peer.session.heard = self._host.now
        try:
            if event.number:
                self._numbered(peer, event)
            else:
                self._of_connection(peer, event.conn, event.message)
        except ProtocolError as error:
            raise broken_by(peer, error) from error

    def _numbered(self, peer: Peer, event: Received) -> None:
        session, message = peer.session, event.message
        peer.sent, peer.still_s = max(peer.sent, event.number), 0.0
        if session.accept(event.number, message):
            self._stillness.moved(self._host.now)
            self._host.handler_of(peer).on_message(peer, message, event.payload)
        if session.owes_ack(
            at_once=self._host.may_go(peer)
        ):  # who has left is sent no beats, and waits to be told
            self._host.acknowledge(peer)

    def _of_connection(self, peer: Peer, conn: int, message: Message) -> None:
        if isinstance(message, Ack | Beat):
            peer.session.acknowledged(message.received)
            if isinstance(message, Beat):
                check_beat(message)
                peer.sent, peer.still_s, peer.step = message.sent, message.still_s, message.step
            if not peer.is_beside:
                self._host.on_acknowledged(peer)
        elif isinstance(message, Gone):
            peer.has_gone = True
        elif isinstance(message, Failure) and self._host.heeds(peer):
            raise RunFailed(message.node, printable(message.reason), message.error)
        elif isinstance(message, Refuse):
            raise refused(self._host.name, peer.name, message)
        elif isinstance(message, Hello):  # a lossy channel lost our Welcome
            self._handshake.welcome(conn, peer)
        elif not isinstance(
            message, Challenge | Welcome | Failure
        ):  # which may come twice for the same reason
            raise ProtocolError(f"{type(message).__name__} was sent without a number")
