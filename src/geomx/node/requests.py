"""Requests: a way through the tree between a worker and a shard, for what is no slice of a model.

    worker -> the servers above it -> the shard, whose `Service` answers, now or later -> back by the same servers

A row server (`geomx.node.rows`) answers like a shard; what it is asked, and answers, goes through one.

A session delivers once between two nodes that live. Where one on the way dies, the one below it passes up once more
what is unanswered, in order; the shard knows by number what it has taken already. Nothing here knows what is asked.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

import torch

from geomx.errors import GeomxError, ProtocolError
from geomx.node.durable.journal import Journal
from geomx.node.durable.records import Served
from geomx.node.slices.slice_jobs import SliceJobs
from geomx.wire.request_messages import Request, Response

LARGEST_BYTES = 1 << 28
Send = Callable[[Request, Any], None]


class Responded(NamedTuple):
    """An item for the training loop: what a shard has answered."""

    number: int
    shard: int
    what: bytes
    payload: Any


class Asking:
    """What a node has passed up and has no answer to, its own or of workers below it. `send`: towards the shard."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._unanswered: dict[tuple[str, int, int], tuple[Request, Any]] = {}  # in order
        self._holds = False

    def ask(self, request: Request, payload: Any) -> None:
        """Pass a request up."""
        if request.number == 1:  # of a worker that may have been started again: its former self asks no more
            old = [key for key, (each, _) in self._unanswered.items() if each.worker == request.worker]
            for key in old:
                if self._unanswered[key][0].incarnation != request.incarnation:
                    del self._unanswered[key]
        self._unanswered[request.worker, request.shard, request.number] = request, payload
        if not self._holds:
            self._send(request, payload)

    def hold(self) -> None:
        """Those above do not know this node yet: what is asked waits."""
        self._holds = True

    def again(self) -> None:
        """Those above know this node. They may have lost what they were asked, or what they have answered."""
        self._holds = False
        for request, payload in list(self._unanswered.values()):
            self._send(request, payload)

    def answered(self, response: Response) -> bool:
        """An answer has come; False: it has come before, or is a former self's."""
        key = response.worker, response.shard, response.number
        request, _ = self._unanswered.get(key, (None, None))
        if request is None or request.incarnation != response.incarnation:
            return False
        del self._unanswered[key]
        return True


class Taken(NamedTuple):
    """The last request that was taken of a worker. `before`: how many of its former lives were.

    `first`: that was taken of this life.
    """

    incarnation: int
    number: int
    before: int
    first: int


class Service(Protocol):
    """What answers at a shard."""

    def begins(self, worker: str) -> None:
        """A worker asks for the first time, or was started again: what its former self has asked is nobody's."""

    def changes(self, worker: str, what: bytes, payload: Any) -> bool:
        """Whether a request changes something, so that it belongs in the shard's log."""

    def asked(self, worker: str, number: int, what: bytes, payload: Any, again: bool, now: float) -> None:
        """A request. `number`: rises over all lives of its worker; `again`: it was taken before. Raises GeomxError."""

    def state(self) -> tuple[bytes, list[torch.Tensor]]:
        """All that it has, while nothing is under way; what later requests change stays out of it."""

    def put_back(self, what: bytes, pieces: list[torch.Tensor]) -> None:
        """The inverse of `state`."""

    def changed(self) -> None:
        """Others take part than before."""

    def behind(self, now: float) -> Iterable[tuple[str, str, list[str], float]]:
        """What waits: of what name, whose, for whom, and for how many seconds."""

    def told(self, what: bytes) -> None:
        """The first shard has said something to all."""

    def standing(self) -> bytes:
        """The last that the first shard has said, or would say."""

    def elsewhere(self, worker: str, incarnation: int, number: int, place: int, what: bytes) -> bytes | None:
        """The answer to a request for a row server; None: that one is to answer itself."""

    def holds(self, place: int) -> bool:
        """Whether whoever has that place holds something that nobody else has."""

    def lost(self, server: str) -> None:
        """A row server that holds nothing is gone."""


class Taking(Protocol):
    """Who takes part, of all."""

    @property
    def order(self) -> Iterable[str]: ...
    def present(self, names: Iterable[str]) -> frozenset[str]: ...


class Shard(Protocol):
    """The server around a shard's end, or a row server."""

    name: str
    journal: Journal

    @property
    def members(self) -> Taking: ...

    @property
    def now(self) -> float: ...
    def run_job(
        self, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int, waits: bool = False
    ) -> None: ...
    def tell(self, message: Response, payload: Any = None) -> None: ...
    def after(self, delay_s: float, key: str, then: Callable[[], None]) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: Any) -> None: ...


class Asked:
    """A shard's end: which requests it has taken, and what its `service` needs of the node around it.

    `place`: the shard's; `make_service(asked)`.

    Attributes:
        place: As given.
        service: What answers here.
        announcing: Of the first shard: tells all shards and row servers what its service has to say.
    """

    def __init__(
        self, server: Shard, place: int, stall_s: float, make_service: Callable[[Asked], Service]
    ) -> None:
        self._server, self.place, self._stall_s = server, place, stall_s
        self.announcing: Callable[[bytes], None] = _nobody
        self._jobs = SliceJobs(server)
        self._taken: dict[str, Taken] = {}  # by worker
        self._looks = False
        self.service = make_service(self)

    # -- for the service ---------------------------------------------------------------------------------------

    def run(
        self, index: int, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int
    ) -> None:
        """Compute in a job behind all those of `index` that came before."""
        self._jobs.run(index, function, then, cost_bytes)

    def respond(self, worker: str, number: int, what: bytes, payload: Any) -> None:
        """Answer a request, once the log has what the answer tells of; what a former self has asked is nobody's."""
        taken = self._taken[worker]
        if self._server.journal.is_replaying or number <= taken.before:
            return
        size = 0 if payload is None else payload.nbytes
        response = Response(worker, taken.incarnation, number - taken.before, self.place, what, size)
        self._server.journal.behind(lambda: self._server.tell(response, payload))

    def announce(self, what: bytes) -> None:
        """Of the first shard: tell all others, and row servers."""
        self.announcing(what)

    def holders(self, names: Iterable[str]) -> None:
        """Others hold rows than before."""
        self._server.note("row_holders", "info", servers=", ".join(names))

    def keeps_log(self) -> bool:
        """Whether this shard does."""
        return self._server.journal.is_kept

    def taken(self) -> dict[str, Taken]:
        """By worker, what was taken."""
        return dict(self._taken)

    def present(self) -> list[str]:
        """The workers that take part, in the order of the run."""
        members = self._server.members
        there = members.present(members.order)
        return [name for name in members.order if name in there]

    # -- what comes --------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Others take part than before."""
        self.service.changed()

    def on_request(self, request: Request, payload: Any) -> None:
        """A request has come. Raises GeomxError."""
        if request.shard != self.place:
            raise ProtocolError(f"a request to place {request.shard} came to place {self.place}")
        incarnation, last, before, first = self._taken.get(request.worker, Taken(-1, 0, 0, 0))
        if request.incarnation < incarnation:
            return  # of one that is no more
        if request.incarnation > incarnation:
            last, before, first = 0, before + last, request.number
            self.service.begins(request.worker)
        self._taken[request.worker] = Taken(request.incarnation, max(last, request.number), before, first)
        again = request.number <= last
        if not again and self.service.changes(request.worker, request.what, payload):
            self._server.journal.write(request, [] if payload is None else [payload])
        now = self._server.now
        self.service.asked(request.worker, before + request.number, request.what, payload, again, now)
        if not (self._looks or self._server.journal.is_replaying):
            self._looks = True
            self._server.after(self._stall_s, "requests", self._look)

    def again(self, request: Request, payload: Any) -> None:
        """A request that stands in the log; one that was refused is refused again."""
        with contextlib.suppress(GeomxError):
            self.on_request(request, payload)

    def state(self) -> tuple[Served, list[torch.Tensor]]:
        """For a cut: see `geomx.node.durable.cut`."""
        what, pieces = self.service.state()
        return Served(dict(self._taken), what, tuple(piece.nbytes for piece in pieces)), pieces

    def put_back(self, served: Served, payload: torch.Tensor) -> None:
        """The inverse."""
        self._taken = {worker: Taken(*taken) for worker, taken in served.taken.items()}
        pieces = torch.split(payload, list(served.sizes)) if served.sizes else ()
        self.service.put_back(served.what, [piece.clone() for piece in pieces])

    def held_up(self) -> list[str]:
        """Who waits here for whom, in words."""
        return [
            f"{worker} waits in the table {table!r} for {', '.join(others)}"
            for table, worker, others, _ in self.service.behind(self._server.now)
        ]

    def _look(self) -> None:
        """Tell who waits for whom, and for long."""
        self._looks = False
        for table, worker, others, seconds in self.service.behind(self._server.now):
            if seconds >= self._stall_s:
                whom = ", ".join(others)
                self._server.note("waits", "warning", table=table, worker=worker, whom=whom, seconds=seconds)
            self._looks = True
        if self._looks:
            self._server.after(self._stall_s, "requests", self._look)


def _nobody(_: bytes) -> None:
    """Nobody listens."""
