"""Requests: a way through the tree between a worker and a shard, for what is no slice of a model.

    worker -> the servers above it -> the shard, whose `Service` answers, now or later -> back by the same servers

A session delivers once between two nodes that live. Where one on the way dies, the worker asks for what is unanswered
once more when it joins anew, in order; the shard knows by number what it has taken already. Nothing here knows what is
asked.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, Protocol

from geomx.errors import ProtocolError, Unsupported
from geomx.node.durable.journal import Journal
from geomx.node.slices.slice_jobs import SliceJobs
from geomx.rounds.membership import Members
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
    """A worker's end. `send`: to the server above that leads to the shard."""

    def __init__(self, worker: str, incarnation: int, send: Send) -> None:
        self._worker, self._incarnation, self._send = worker, incarnation, send
        self._numbers: dict[int, int] = {}  # by shard: the last
        self._unanswered: dict[tuple[int, int], tuple[Request, Any]] = {}  # by shard and number, in order

    def ask(self, shard: int, number: int, what: bytes, payload: Any) -> None:
        """Ask a shard; `number`: the next of this worker's to it."""
        size = 0 if payload is None else payload.nbytes
        request = Request(self._worker, self._incarnation, number, shard, what, size)
        self._unanswered[shard, number] = request, payload
        self._send(request, payload)

    def again(self) -> None:
        """Those above may have lost what they were asked, or what they have answered."""
        for request, payload in self._unanswered.values():
            self._send(request, payload)

    def responded(self, response: Response, payload: Any) -> Responded | None:
        """What to tell the loop; None: it has been told."""
        if self._unanswered.pop((response.shard, response.number), None) is None:
            return None
        return Responded(response.number, response.shard, response.what, payload)

    @property
    def quiet(self) -> bool:
        """Whether everything has been answered."""
        return not self._unanswered


class Service(Protocol):
    """What answers at a shard."""

    def begins(self, worker: str) -> None:
        """A worker asks for the first time, or was started again: what its former self has asked is nobody's."""

    def asked(self, worker: str, number: int, what: bytes, payload: Any, again: bool, now: float) -> None:
        """A request. `again`: it was taken before. Raises GeomxError."""

    def changed(self) -> None:
        """Others take part than before."""

    def behind(self, now: float) -> Iterable[tuple[str, str, list[str], float]]:
        """What waits: of what name, whose, for whom, and for how many seconds."""


class Shard(Protocol):
    """The server around a shard's end."""

    name: str
    members: Members
    journal: Journal

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
    """

    def __init__(
        self, server: Shard, place: int, stall_s: float, make_service: Callable[[Asked], Service]
    ) -> None:
        self._server, self._place, self._stall_s = server, place, stall_s
        self._jobs = SliceJobs(server)
        self._taken: dict[str, tuple[int, int]] = {}  # by worker: its incarnation, and the last number
        self._looks = False
        self._service = make_service(self)

    # -- for the service ---------------------------------------------------------------------------------------

    def run(
        self, index: int, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int
    ) -> None:
        """Compute in a job behind all those of `index` that came before."""
        self._jobs.run(index, function, then, cost_bytes)

    def respond(self, worker: str, number: int, what: bytes, payload: Any) -> None:
        """Answer a request."""
        size = 0 if payload is None else payload.nbytes
        self._server.tell(Response(worker, number, self._place, what, size), payload)

    def present(self) -> list[str]:
        """The workers that take part, in the order of the run."""
        members = self._server.members
        there = members.present(members.order)
        return [name for name in members.order if name in there]

    # -- what comes --------------------------------------------------------------------------------------------

    def changed(self) -> None:
        """Others take part than before."""
        self._service.changed()

    def on_request(self, request: Request, payload: Any) -> None:
        """A request has come. Raises GeomxError."""
        if self._server.journal.is_kept:
            raise Unsupported(
                f"{self._server.name} keeps a log, in which tables are not yet: leave out store.url and run.replicas"
            )
        if request.shard != self._place:
            raise ProtocolError(f"a request to shard {request.shard} came to shard {self._place}")
        incarnation, last = self._taken.get(request.worker, (-1, 0))
        if request.incarnation < incarnation:
            return  # of one that is no more
        if request.incarnation > incarnation:
            last = 0
            self._service.begins(request.worker)
        if request.number > last + 1:
            raise ProtocolError(f"request {request.number} of {request.worker} came behind request {last}")
        self._taken[request.worker] = request.incarnation, max(last, request.number)
        again = request.number <= last
        now = self._server.now
        self._service.asked(request.worker, request.number, request.what, payload, again, now)
        if not self._looks:
            self._looks = True
            self._server.after(self._stall_s, "requests", self._look)

    def _look(self) -> None:
        """Tell who waits for whom, and for long."""
        self._looks = False
        for table, worker, others, seconds in self._service.behind(self._server.now):
            if seconds >= self._stall_s:
                whom = ", ".join(others)
                self._server.note("waits", "warning", table=table, worker=worker, whom=whom, seconds=seconds)
            self._looks = True
        if self._looks:
            self._server.after(self._stall_s, "requests", self._look)
