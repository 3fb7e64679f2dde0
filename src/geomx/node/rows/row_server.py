"""A server that holds rows of tables alone: it comes and goes while the run lasts.

It dials all shards. Once it knows who takes part it says what has to be said to come (`RowService.moves`), answers what
the shards pass on to it, and when it is asked to leave says what has to be said to go, and ends when all know.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Any, Literal, Protocol

import torch

from geomx.errors import NodeLost, ProtocolError
from geomx.node.durable.journal import Journal
from geomx.node.peers.base import BaseNode
from geomx.node.peers.peer import Handler, Identity, Limits, Peer
from geomx.node.requests import LARGEST_BYTES, Asked, Service
from geomx.node.slices.priority import REQUESTS
from geomx.tree import Tree
from geomx.wire.messages import payload_size
from geomx.wire.request_messages import Present, Request, Response, Told
from geomx.wire.roster_messages import Message
from geomx.wire.session import Patience

Talk = Generator[list[tuple[int, bytes, torch.Tensor | None]], list[tuple[bytes, Any]], None]


class RowService(Service, Protocol):
    """A service that can come and go."""

    def moves(
        self, comes: bool, leads: int, taken: Callable[[], Mapping[str, tuple[int, int, int, int]]]
    ) -> Talk:
        """What has to be said to come, or else to go: yields what to ask, by place, and gets the answers.

        `leads`: the place of the shard that leads here; `taken`: see `Asked.taken`.
        """


class TakingPart:
    """The workers that take part, as the first shard has told."""

    def __init__(self, order: Iterable[str]) -> None:
        self.order = tuple(order)
        self.there: frozenset[str] = frozenset()

    def present(self, names: Iterable[str]) -> frozenset[str]:
        """Those of these who do."""
        return self.there.intersection(names)


class RowServer(BaseNode):
    """See the module's text. `patience`: with the shards; `make_service(asked)`."""

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        tree: Tree,
        patience: Patience,
        make_service: Callable[[Asked], RowService],
    ) -> None:
        super().__init__(identity, limits, dict.fromkeys(tree.shards, patience), {})
        self._tree = tree
        self.members, self.journal = TakingPart(tree.leaves(tree.shards[0])), Journal(None)
        self._place = tree.holders.index(identity.name)
        self._service: RowService

        def made(asked: Asked) -> RowService:
            self._service = make_service(asked)
            return self._service

        self._asked = Asked(self, self._place, limits.stall_s, made)
        self._talk: Talk | None = None
        self._is_speaking = False
        self._numbers: dict[int, int] = {}  # of requests, by place
        self._wanted: list[
            tuple[int, int]
        ] = []  # what is to be answered before it goes on: places and numbers
        self._answers: dict[tuple[int, int], tuple[bytes, Any]] = {}
        self._state: Literal["apart", "comes", "there", "goes", "gone"] = "apart"
        self._retires = False

    # -- messages ---------------------------------------------------------------------------------------------

    def _handler_of(self, peer: Peer) -> Handler:
        return self

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """A shard has sent something."""
        if isinstance(message, Request):
            self._asked.on_request(message, payload)
        elif isinstance(message, Response):
            self._answered(message, payload)
        elif isinstance(message, Present):
            self.members.there = frozenset(self._tree.workers_in(message.workers))
            self._asked.changed()
            self._look_whether_to_come()
        elif isinstance(message, Told):
            self._asked.service.told(message.what)
        else:
            raise ProtocolError(f"{type(message).__name__} was sent to a row server")

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Whether a shard may send a payload of that size."""
        size = payload_size(message)
        if size and not (isinstance(message, Request | Response) and size <= LARGEST_BYTES):
            raise ProtocolError(f"{type(message).__name__} of {peer.name} announces {size} bytes")

    def tell(self, message: Response, payload: Any = None) -> None:
        """An answer to whoever has asked."""
        if message.worker == self.name:
            self._answered(message, payload)
        else:
            self._send(self._tree.leads_to(self._place), message, payload)

    # -- coming and going ---------------------------------------------------------------------------------------

    def on_open(self, peer: Peer, first: bool) -> None:
        self._look_whether_to_come()

    def _look_whether_to_come(self) -> None:
        if self._state == "apart" and self.members.there and not self.waits_for():
            self._begin_to("comes")

    def awaits_its_place(self) -> bool:
        return False  # there are others

    def begin_anew(self, reason: str) -> bool:
        """A shard has parted with this server, so what it had begun has come to nothing."""
        raise NodeLost(self.name, f"{reason}: start it again", may_return=True)

    def retire_soon(self) -> None:
        """Leave in order: hand all rows over first."""
        if self._retires:
            return
        self._retires = True
        if self._state == "apart":
            self.stop()
            return
        self.note("hands_over", "info")
        if self._state != "there":
            return
        self._begin_to("goes")

    def _begin_to(self, what: Literal["comes", "goes"]) -> None:
        self._state = what
        leads = self._tree.shards.index(self._tree.leads_to(self._place))
        self._talk, self._wanted = self._service.moves(what == "comes", leads, self._asked.taken), []
        self._go_on()

    def _is_done(self) -> None:
        """Everything is said."""
        self._talk = None
        if self._state == "comes":
            self._state = "there"
            self.note("holds_rows", "info")
            if self._retires:  # since it began to come
                self._begin_to("goes")
        else:
            self._state = "gone"
            self.note("left", "info", peer=self.name)
            self._look_whether_to_end()

    def _go_on(self) -> None:
        """Say what comes next, when all is answered that was said before."""
        if self._is_speaking:
            return
        self._is_speaking = True
        while self._talk is not None and self._answers.keys() >= set(self._wanted):
            try:
                answers = [self._answers.pop(key) for key in self._wanted]
                asks = self._talk.send(answers) if answers else next(self._talk)
            except StopIteration:
                self._is_done()
                continue
            self._wanted = []
            for place, what, payload in asks:
                self._say(place, what, payload)
        self._is_speaking = False

    def _say(self, place: int, what: bytes, payload: torch.Tensor | None) -> None:
        number = self._numbers[place] = self._numbers.get(place, 0) + 1
        self._wanted.append((place, number))
        size = 0 if payload is None else payload.nbytes
        request = Request(self.name, self.identity.incarnation, number, place, what, size)
        if place == self._place:
            self._asked.on_request(request, payload)
        else:
            self._send(self._tree.leads_to(place), request, payload)

    def _answered(self, response: Response, payload: Any) -> None:
        self._answers[response.shard, response.number] = response.what, payload
        self._go_on()

    def _send(self, shard: str, message: Message, payload: Any = None) -> None:
        peer = self.peer(shard)
        assert peer is not None  # all are dialled at the start
        self.send(peer, message, payload, REQUESTS)

    # -- the end ------------------------------------------------------------------------------------------------

    def on_acknowledged(self, peer: Peer) -> None:
        self._look_whether_to_end()

    def _look_whether_to_end(self) -> None:
        """All rows are elsewhere, and whatever was answered has arrived."""
        peers = [self.peer(shard) for shard in self._tree.shards]
        is_quiet = not any(peer is not None and peer.session.unacknowledged for peer in peers)
        if self._state == "gone" and is_quiet:
            self.stop()

    def on_away(self, peer: Peer) -> None:
        if peer.has_gone:  # the run is over
            self.stop()

    def may_go(self, peer: Peer) -> bool:
        return peer.has_gone

    def on_tick(self) -> None:
        self._look_whether_to_end()
