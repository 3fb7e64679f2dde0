"""A shard's part in row servers: it lets them in, and passes on what they are asked, and answer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

from geomx.errors import NodeLost, ProtocolError
from geomx.node.contract import Measured
from geomx.node.peers.handshake import RESTARTED
from geomx.node.peers.peer import Peer
from geomx.node.requests import LARGEST_BYTES, Asked
from geomx.node.slices.priority import REQUESTS
from geomx.rounds.membership import Members
from geomx.tree import ROW_SERVERS, Tree
from geomx.wire.messages import payload_size
from geomx.wire.request_messages import Present, Request, Response, Told
from geomx.wire.roster_messages import Message

LOST = "it held rows of tables, of which nobody else has a copy"


class RowHost(Protocol):
    """The server that is a shard."""

    members: Members

    def peer(self, name: str) -> Peer | None: ...
    def send(self, peer: Peer, message: Message, payload: Any = None, priority: int = 0) -> None: ...
    def tell(self, message: Response, payload: Any = None) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: Any) -> None: ...


class RowServers:
    """See the module's text. A `Companion`. `asked`: of the shard itself; `others`: the shards, where it is the first.

    `send(shard, message)`.
    """

    def __init__(
        self,
        server: RowHost,
        tree: Tree,
        asked: Asked,
        others: Sequence[str],
        is_first: bool,
        send: Callable[[str, Message], None],
    ) -> None:
        self._server, self._tree, self._asked = server, tree, asked
        self._others, self._is_first, self._send = others, is_first, send
        # By row server: what it was asked, and has not answered.
        self._open: dict[str, dict[tuple[str, int, int], Request]] = {name: {} for name in ROW_SERVERS}
        asked.announcing = self.announce

    def ask(self, request: Request, payload: Any) -> None:
        """Somebody asks this shard, or a row server to which it leads. Raises GeomxError."""
        if request.shard == self._asked.place:
            self._asked.on_request(request, payload)
            return
        name = self._tree.holders[request.shard] if 0 <= request.shard < len(self._tree.holders) else ""
        if name not in ROW_SERVERS:
            raise ProtocolError(f"a request to place {request.shard} came to place {self._asked.place}")
        if request.worker not in ROW_SERVERS and self._answers_itself(request):
            return
        peer = self._server.peer(name)
        if peer is None:
            raise ProtocolError(f"{request.worker} asks {name}, which is not there")
        self._open[name][request.worker, request.incarnation, request.number] = request
        self._server.send(peer, request, payload, REQUESTS)

    def _answers_itself(self, request: Request) -> bool:
        place, service = request.shard, self._asked.service
        what = service.elsewhere(request.worker, request.incarnation, request.number, place, request.what)
        if what is not None:
            self._server.tell(Response(request.worker, request.incarnation, request.number, place, what))
        return what is not None

    def announce(self, what: bytes) -> None:
        """Tell all other shards, and row servers."""
        for shard in self._others:
            self._send(shard, Told(what))
        for peer in self._peers():
            self._server.send(peer, Told(what))

    def standing(self) -> Told:
        """What a shard may have missed that the first has not known."""
        return Told(self._asked.service.standing())

    def told(self, told: Told) -> None:
        """The first shard does so."""
        self._asked.service.told(told.what)

    def changed(self) -> None:
        """Others take part than before."""
        self._asked.changed()
        for peer in self._peers():
            self._tell_who_is_there(peer)

    # -- the row servers ----------------------------------------------------------------------------------------

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """From one of them."""
        if isinstance(message, Request) and message.worker == peer.name:
            self.ask(message, payload)
        elif isinstance(message, Response):
            key = message.worker, message.incarnation, message.number
            if self._open[peer.name].pop(key, None) is not None:
                self._server.tell(message, payload)
        else:
            raise ProtocolError(f"{type(message).__name__} was sent by a row server")

    def check_payload(self, peer: Peer, message: Message) -> None:
        size = payload_size(message)
        if size and not (isinstance(message, Request | Response) and size <= LARGEST_BYTES):
            raise ProtocolError(f"{type(message).__name__} of {peer.name} announces {size} bytes")

    def opened(self, peer: Peer, first: bool) -> None:
        """See `Companion`."""
        if not first:
            return
        if self.needs(peer):
            raise NodeLost(peer.name, f"{RESTARTED}: {LOST}")
        self._asked.service.lost(peer.name)  # a former process of that name
        self._server.note("joined", "info", peer=peer.name)
        self._tell_who_is_there(peer)

    def lost(self, peer: Peer) -> None:
        """See `Companion`. Raises `NodeLost` where rows are lost with it."""
        waiting, self._open[peer.name] = self._open[peer.name], {}
        if self.needs(peer) or (waiting and not peer.has_gone):
            raise NodeLost(peer.name, f"it has ended or hangs, or the link to it is cut; {LOST}")
        self._asked.service.lost(peer.name)
        self._server.note("left", "info", peer=peer.name)
        for request in waiting.values():
            self._answers_itself(request)

    def needs(self, peer: Peer) -> bool:
        """See `Companion`."""
        return self._asked.service.holds(self._tree.holders.index(peer.name))

    def measured(self, _: Measured) -> None:
        """Nobody plans by it."""

    def _tell_who_is_there(self, peer: Peer) -> None:
        if self._is_first:
            there = self._server.members.present(self._server.members.order)
            self._server.send(peer, Present(self._tree.bitmap_of(there)))

    def _peers(self) -> list[Peer]:
        return [peer for peer in map(self._server.peer, ROW_SERVERS) if peer is not None]
