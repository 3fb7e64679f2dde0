"""What every node does, whatever its place in the tree: greet, keep sessions alive, notice death, end.

Theory of operation. A node has *peers*, each with a session. It dials some (the tree's upward edges) and is dialled by
others. A connection is a stranger's until its Hello has been checked against the run (`handshake`); only then do its
messages reach their `Handler`. Connections come and go beneath a session; when a peer stays silent for the edge's
`timeout_s`, the node ends with `NodeLost` and tells every other peer, so that the whole tree ends and each node names
the first that was lost.

Subclasses say who handles whose messages, answer `on_open` and `on_tick`, and list whom they wait for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from geomx.errors import Fenced, GeomxError, ProtocolError, RunFailed
from geomx.node.contract import (
    Called,
    Closed,
    CutStored,
    Effect,
    Event,
    Failed,
    Fired,
    Hangup,
    Job,
    JobDone,
    Measured,
    Note,
    Opened,
    OpenFlow,
    Persisted,
    Received,
    Restored,
    Started,
    Stop,
    Timer,
    Write,
)
from geomx.node.counts import BlockCounts
from geomx.node.peers.beside import Beside, Companion, Siblings
from geomx.node.peers.delivery import Delivery
from geomx.node.peers.dialling import Dialling
from geomx.node.peers.farewell import Farewell
from geomx.node.peers.handshake import HUNG_UP, Handshake
from geomx.node.peers.peer import (
    FIRST_REDIAL_S,
    Handler,
    Identity,
    Limits,
    Peer,
    as_failure,
    broken_by,
    check_beside,
    raise_failed,
)
from geomx.node.peers.stillness import Stillness
from geomx.node.peers.watch import Watch
from geomx.wire.flow.outbox import FlowTerms
from geomx.wire.messages import Ack, Challenge, Gone, Hello, Refuse, Welcome, payload_size
from geomx.wire.roster_messages import Message
from geomx.wire.session import Patience, Session

Blocked = Sequence[tuple[Any, int]]


class BaseNode(ABC):
    """See the module's text. `handle` and `admit` are the contract of `geomx.node.contract.Node`.

    `returning`: those whom this node dials that may be started again and know nothing of it then; None: none may, and
    this node cannot begin anew itself. `siblings`: None: there is no overlay in its tier.
    """

    def __init__(
        self,
        identity: Identity,
        limits: Limits,
        dials: dict[str, Patience],
        expects: dict[str, Patience],
        flows: Mapping[str, FlowTerms] | None = None,
        returning: frozenset[str] | None = None,
        siblings: Siblings | None = None,
    ) -> None:
        self.identity = identity
        self.name = identity.name
        self.blocks = BlockCounts()
        self.measures = False
        self.limits = limits
        self._dials = dials
        self._expects = expects  # who may dial us, but for those beside
        self._returning = returning
        self._flows = flows or {}  # peers beside whose connections datagrams may travel
        self._peers: dict[str, Peer] = {}
        self._ever: set[str] = set()  # who has joined at some time
        self._by_conn: dict[int, Peer] = {}
        beside = siblings or Siblings()
        self._handshake = Handshake(self, {**expects, **beside.patience}, self._peers)
        self.beside = Beside(self, self._peers, self._handshake, beside)
        self.has_overlay = siblings is not None and siblings.relays
        self._effects: list[Effect] = []
        self._now = 0.0
        self.dialling = Dialling(self)
        self.stopped = False
        self._violation: ProtocolError | None = None  # by a peer that had been let in
        every = [*dials.values(), *expects.values()]
        self._tick_s = min((p.resend_s or p.heartbeat_s / 2 for p in every), default=1.0)
        self._timers: dict[str, Callable[[], None]] = {}
        self._stillness = Stillness()
        self._watch = Watch(self, self._peers, self._handshake.former, self._stillness, self._tick_s)
        self._delivery = Delivery(self, self._by_conn, self._handshake, self._stillness)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Started: self._on_started,
            Opened: self._on_opened,
            Received: self._delivery.received,
            Closed: self._on_closed,
            Fired: self._on_fired,
            JobDone: self._on_job_done,
            Called: self._on_called,
            Persisted: lambda event: self.on_persisted(event.number),
            Measured: self.on_measured,
            CutStored: lambda event: self.on_cut_stored(event.error),
            Restored: lambda event: self.on_restored(event.records),
            Failed: lambda event: raise_failed(event.error, event.conn, self._by_conn),
        }
        self._farewell: Farewell | None = None

    # -- the contract with the driver -------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """React to one event; see `geomx.node.contract`."""
        if self.stopped:
            return []
        self._now = now
        try:
            if self._farewell is not None:
                self._farewell.handle(event)
            elif self._violation is not None:
                raise self._violation
            else:
                self._handlers[type(event)](event)
        except GeomxError as error:
            self._fail(error)
        self.on_handled()
        effects, self._effects = self._effects, []
        return effects

    def admit(self, conn: int, message: Message) -> None:
        """See `geomx.node.contract.Node.admit`."""
        peer = self._by_conn.get(conn)
        if peer is None:
            if payload_size(message) or not isinstance(message, Challenge | Hello | Welcome | Refuse):
                raise ProtocolError(f"a {type(message).__name__} before the connection was greeted")
        elif hasattr(message, "size"):
            try:
                check_beside(peer, message, peer.name in self._flows)
                self.handler_of(peer).check_payload(peer, message)
            except ProtocolError as error:
                self._violation = broken_by(peer, error)
                raise self._violation from error

    # -- for subclasses to answer -------------------------------------------------------------------------

    def on_open(self, peer: Peer, first: bool) -> None:
        """A session is open; `first`: for the first time with this incarnation of the peer."""

    @abstractmethod
    def _handler_of(self, peer: Peer) -> Handler:
        """What takes the messages of a peer above or below."""

    def on_tick(self) -> None:
        """Called twice in every heartbeat."""

    def waits_for(self) -> list[str]:
        """The peers without which the run cannot start, and that have not come yet."""
        return [name for name in self._dials if not self._has_joined(name)]

    def may_go(self, peer: Peer) -> bool:
        """Whether a peer's silence is no loss, because it has left."""
        return False

    def may_return(self, peer: Peer) -> bool:
        """Whether a peer that was restarted can take part again."""
        return True

    def renews(self, peer: Peer) -> bool:
        """Whether a peer that was started again knows all that counts, so that both go on in a new session."""
        return False

    def is_ready_for(self, name: str) -> bool:
        """Whether a node that dials may come in now; else it is to dial again."""
        return True

    def readmits(self, peer: Peer) -> bool:
        """Whether a peer that has left may come once more: another shard may not know it, and have it begin anew."""
        return False

    def is_gone(self, peer: Peer) -> bool:
        """Whether a peer that has closed its connection counts as lost before it has been silent for too long."""
        return False

    def ends_below(self, error: GeomxError) -> bool:
        """Whether this node's end is no end of the run: those above go on without it."""
        return False

    def heeds(self, peer: Peer) -> bool:
        """Whether this node ends when a peer says that the run cannot go on."""
        return not peer.is_beside or self.needs(peer)

    def awaits_its_place(self) -> bool:
        """Whether it waits for another process of its name to end, which others still have."""
        return True

    def needs(self, peer: Peer) -> bool:
        """Whether the run cannot do without a node beside this one."""
        return peer.is_beside and self.companion is not None and self.companion.needs(peer)

    def pace(self) -> int:
        """How many steps the slowest worker here or below has taken by itself; -1: that is not known."""
        return -1

    def on_anew(self) -> None:
        """This node has begun anew: nobody above knows it."""

    def is_idle(self) -> bool:
        """Whether this node itself has nothing to do before something comes."""
        return True

    def on_handled(self) -> None:
        """An event is over, but for its effects."""

    def on_job_done(self) -> None:
        """A job has ended, and what follows from it is done."""

    @property
    def has_jobs(self) -> bool:
        """Whether jobs of this node are under way."""
        return self._stillness.jobs > 0

    def on_persisted(self, number: int) -> None:
        """So many records are in this node's log."""

    def on_cut_stored(self, error: GeomxError | None) -> None:
        """This node's state is in the store, or could not be written."""

    def on_restored(self, records: Iterable[tuple[bytes, Any]]) -> None:
        """This node is started in the place of one that has left a log."""

    def on_lost(self, peer: Peer) -> None:
        """A peer has been silent for too long; called twice in every heartbeat."""
        raise self._watch.loss_of(peer)

    @property
    def companion(self) -> Companion | None:
        """What has to do with nodes beside this one."""
        return None

    def on_measured(self, measured: Measured) -> None:
        """See `Measured`."""
        if self.companion is not None:
            self.companion.measured(measured)

    def handler_of(self, peer: Peer) -> Handler:
        """What takes the messages of a peer."""
        return self.companion if peer.is_beside and self.companion is not None else self._handler_of(peer)

    # -- for subclasses to use -------------------------------------------------------------------------------

    def send(
        self, peer: Peer, message: Message, payload: Any = None, priority: int = 0, blocks: Blocked = ()
    ) -> None:
        """Send once the session is open, and again until it has arrived. `blocks`: see `Write`."""
        session = peer.session
        number = session.enqueue(message, payload, priority, self._now)
        self._stillness.moved(self._now)
        if session.conn:
            session.spoke = self._now
            self._effects.append(Write(session.conn, number, message, payload, priority, blocks))

    def run_job(
        self, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int, waits: bool = False
    ) -> None:
        """Have arithmetic done outside the node; `then(result)` continues here. `waits`: see `Job`."""
        self._stillness.jobs += 1
        self._effects.append(Job(then, function, cost_bytes, waits))

    def after(self, delay_s: float, key: str, then: Callable[[], None]) -> None:
        """Call `then` in so many seconds; a key that is set again moves, and takes the new `then`."""
        self._timers[key] = then
        self._effects.append(Timer(key, delay_s))

    def emit(self, effect: Effect) -> None:
        self._effects.append(effect)

    def note(self, name: str, level: str = "debug", **fields: Any) -> None:
        self._effects.append(Note(name, fields, level))

    @property
    def now(self) -> float:
        """The time of the event that is being handled, in seconds."""
        return self._now

    def peer(self, name: str) -> Peer | None:
        return self._peers.get(name)

    def returns(self, peer: Peer) -> bool:
        """Whether a peer above may be started again."""
        return self._returning is not None and peer.name in self._returning

    def begin_anew(self, reason: str) -> bool:
        """Those above know nothing of this node any more: open new sessions. Returns whether it can."""
        if self._returning is None:
            return False
        self.identity = replace(self.identity, incarnation=self.identity.incarnation + 1)
        self._handshake.let_go(reason)
        for peer in list(self._peers.values()):
            if peer.is_beside:
                self.beside.part(peer, reason)
            elif peer.dialled:
                if peer.session.conn:
                    self.drop(peer.session.conn, reason)
                known = 0 if peer.name in self._returning else peer.session.incarnation
                peer.session = Session(peer.name, known, peer.session.patience, self._now)
                peer.still_s, peer.sent, peer.redial_s = 0.0, 0, FIRST_REDIAL_S
                self.dialling.again(peer)
        self.note("anew", "info", reason=reason)
        self.on_anew()
        return True

    def dismiss(self, peer: Peer, reason: str) -> None:
        """Forget a peer that dials us: if it comes again, it hears why, and begins anew."""
        if peer.session.conn:
            self.drop(peer.session.conn, reason)
        self._handshake.dismissed[peer.name] = peer.session.incarnation, reason
        del self._peers[peer.name]

    def stop(self, error: GeomxError | None = None, in_order: bool = True) -> None:
        """End this node: hang up everywhere, then tell the driver. `in_order`: those above know that it has left."""
        reason = str(error) if error else "the run has ended"
        if error is None and in_order:
            told = [
                conn
                for conn, peer in self._by_conn.items()
                if peer.dialled or self.renews(peer) or (peer.is_beside and not self.has_overlay)
            ]
            self._effects += [Write(conn, 0, Gone()) for conn in told]
        for conn in [*self._by_conn, *self._handshake.connections]:
            self._effects.append(Hangup(conn, reason))
        self._effects.append(Stop(error))
        self.stopped = True

    def fail(self, reason: str, refusal: str = "") -> None:
        """The user's script raised, or the process is to end: every node ends, and names this one; see `Port`."""
        raise RunFailed(self.name, reason, refusal or RunFailed.__name__)

    def _fail(self, error: GeomxError) -> None:
        """End this node with an error, and tell every peer why: now, or as soon as it comes (`farewell`)."""
        failure = as_failure(self.name, error)
        self.note("failed", "error", node=failure.node, error=failure.error, reason=failure.reason)
        if isinstance(error, Fenced):  # the others go on with whoever is in its place
            self.stop(error)
            return
        late = [
            name for name in (*self._dials, *self._expects) if name != failure.node and self._is_away(name)
        ]
        ends_below = self.ends_below(error)
        late = [name for name in late if not (ends_below and name in self._dials)]
        for conn, peer in list(self._by_conn.items()):
            if not (ends_below and peer.dialled):
                self._effects.append(Write(conn, 0, failure))
            self.drop(conn, str(error))
        self._farewell = Farewell(self, self._handshake, error, failure, late, self._tick_s)

    def _is_away(self, name: str) -> bool:
        """Whether a peer is not connected, and belongs to the run nevertheless."""
        peer = self._peers.get(name)
        return peer is None or not (peer.session.is_open or peer.is_told or self.may_go(peer))

    # -- connections ------------------------------------------------------------------------------------------

    def _on_started(self, event: Started) -> None:
        self.dialling = Dialling(self)
        self._watch.begin()
        for name, patience in self._dials.items():
            peer = self._peers[name] = Peer(name, Session(name, 0, patience, self._now), dialled=True)
            self.dialling.dial(peer)
        self.after(self._tick_s, "tick", self._tick)

    def _on_opened(self, event: Opened) -> None:
        if event.peer:
            if (peer := self._peers.get(event.peer)) is None:  # it was parted with meanwhile
                self.drop(event.conn, "not wanted any more")
            else:
                self._handshake.dialled(event, peer)
        else:
            self._handshake.accepted(event)

    def _on_closed(self, event: Closed) -> None:
        unanswered = self._handshake.forget(event.conn)
        peer = self._by_conn.pop(event.conn, None)
        if peer is None and event.peer:
            peer = self._peers.get(event.peer)
        if peer is None or peer.session.conn not in (0, event.conn):
            return
        if peer.session.conn:
            peer.session.away()
            peer.away_at = self._now
            if peer.is_beside:
                self.note("unlinked", peer=peer.name, reason=event.reason)
            else:
                level = "debug" if self.may_go(peer) else "warning"
                self.note("away", level, peer=peer.name, reason=event.reason)
                self.on_away(peer)
        if peer.dialled and not self.stopped:  # which the end of its last connection may have brought about
            self.dialling.trouble(peer, f"{event.reason}{HUNG_UP if unanswered else ''}")
            self.dialling.again(peer)

    def on_away(self, peer: Peer) -> None:
        """A session has lost its connection."""

    def drop(self, conn: int, reason: str) -> None:
        """Close a connection that carries no session, or no longer."""
        self._handshake.forget(conn)
        self._by_conn.pop(conn, None)
        self._effects.append(Hangup(conn, reason))

    def open(self, conn: int, peer: Peer, received: int) -> None:
        """A connection carries a peer's session from now on, which has everything up to `received`."""
        if self._farewell is not None:
            self._farewell.tell(conn, peer.name)
            return
        self._by_conn[conn] = peer
        peer.trouble = peer.trouble_told = ""
        if peer.name in self._flows:
            secret = self._handshake.flow_secret(conn, peer.dialled)
            self._effects.append(OpenFlow(conn, secret, self._flows[peer.name]))
        for number, sent in peer.session.opened(conn, received, self._now):
            self._effects.append(Write(conn, number, sent.message, sent.payload, sent.priority))
        if not peer.session.fruitless:
            peer.redial_s = FIRST_REDIAL_S
        first, peer.joined = not peer.joined, True
        self._ever.add(peer.name)
        if peer.is_beside:
            self.note("linked", peer=peer.name)
            if self.companion is not None:
                self.companion.opened(peer, first)
            return
        self.note("joined" if first else "resumed", "info", peer=peer.name)
        self.on_open(peer, first)
        self.on_acknowledged(peer)

    # -- messages ---------------------------------------------------------------------------------------------

    def acknowledge(self, peer: Peer) -> None:
        """Tell a peer now what has arrived."""
        if peer.session.conn:
            self._effects.append(Write(peer.session.conn, 0, Ack(peer.session.ack_watermark(self._now))))

    def on_acknowledged(self, peer: Peer) -> None:
        """A peer has told what has arrived."""

    def _on_job_done(self, event: JobDone) -> None:
        self._stillness.jobs -= 1
        self._stillness.moved(self._now)
        if isinstance(event.error, GeomxError):
            raise event.error
        if event.error is not None:
            raise RunFailed(self.name, repr(event.error))
        event.job.then(event.result)
        self.on_job_done()

    def _on_called(self, event: Called) -> None:
        self._stillness.moved(self._now)
        getattr(self, event.method)(*event.arguments)

    # -- time -------------------------------------------------------------------------------------------------

    def _on_fired(self, event: Fired) -> None:
        then = self._timers.pop(event.key, None)
        if then is not None:
            then()

    def _tick(self) -> None:
        self.after(self._tick_s, "tick", self._tick)  # before what may fail: a farewell needs time as well
        self._watch.tick()
        self._handshake.tick()
        self.on_tick()

    def whereabouts(self, name: str) -> str:
        """See `Peer.whereabouts`; of whoever is no peer, the name."""
        peer = self._peers.get(name)
        return name if peer is None else peer.whereabouts

    def still_s(self) -> float:
        """For how long this node and all below it have been still; see `geomx.node.peers.stillness`."""
        return self._watch.still_s()

    def lose(self, peer: Peer) -> None:
        """A peer has been silent for too long; called twice in every heartbeat."""
        if peer.is_beside:
            self.beside.part(peer, "silent")
            if self.companion is not None:
                self.companion.lost(peer)
        else:
            self.on_lost(peer)

    def _has_joined(self, name: str) -> bool:
        return name in self._ever
