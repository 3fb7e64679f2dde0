"""What every node does, whatever its place in the tree: greet, keep sessions alive, notice death, end.

Theory of operation. A node has *peers*, each with a session. It dials some (the tree's upward edges) and is dialled by
others. A connection is a stranger's until its Hello has been checked against the run; only then do its messages
reach `on_message`. Connections come and go beneath a session; when a peer stays silent for the edge's `timeout_s`,
the node ends with `NodeLost` and tells every other peer, so that the whole tree ends and each node names the first
that was lost.

Subclasses answer `on_start`, `on_open`, `on_message`, `on_tick` and list whom they expect.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geomx.errors import GeomxError, NodeLost, ProtocolError, RunFailed, WaitTimeout
from geomx.node.contract import (
    Called,
    Closed,
    Dial,
    Effect,
    Event,
    Fired,
    Hangup,
    Identified,
    Job,
    JobDone,
    Note,
    Opened,
    Received,
    Started,
    Stop,
    Timer,
    Write,
)
from geomx.node.peers import (
    FIRST_REDIAL_S,
    LAST_REDIAL_S,
    Identity,
    Limits,
    Peer,
    as_failure,
    compare,
    refused,
)
from geomx.protocol.messages import (
    PROTOCOL_VERSION,
    Ack,
    Beat,
    Failure,
    Hello,
    Message,
    Refuse,
    Welcome,
    payload_size,
)
from geomx.protocol.session import Patience, Session

STRANGER_S = 10.0  # how long whoever has not said Hello may stay


class BaseNode:
    """See the module's text. `handle` and `admit` are the contract of `geomx.node.contract.Node`."""

    def __init__(
        self, identity: Identity, limits: Limits, dials: dict[str, Patience], expects: dict[str, Patience]
    ) -> None:
        self.identity = identity
        self.name = identity.name
        self.limits = limits
        self._dials = dials
        self._expects = expects  # who may dial us
        self._peers: dict[str, Peer] = {}
        self._by_conn: dict[int, Peer] = {}
        self._greeting: dict[int, tuple[Peer, float]] = {}  # dialled, not welcomed yet; since when
        self._strangers: dict[int, float] = {}  # accepted, not greeted yet
        self._effects: list[Effect] = []
        self._now = 0.0
        self._started = 0.0
        self._last_tick = 0.0
        self.stopped = False
        self._violation: ProtocolError | None = (
            None  # of a peer that had been let in: the run cannot trust it
        )
        every = [*dials.values(), *expects.values()]
        self._tick_s = min((p.resend_s or p.heartbeat_s for p in every), default=1.0)
        self._handlers: dict[type, Callable[[Any], None]] = {
            Started: self._on_started,
            Opened: self._on_opened,
            Received: self._on_received,
            Closed: self._on_closed,
            Fired: self._on_fired,
            JobDone: self._on_job_done,
            Called: self._on_called,
        }

    # -- the contract with the driver -------------------------------------------------------------------

    def handle(self, event: Event, now: float) -> list[Effect]:
        """React to one event; see `geomx.node.contract`."""
        if self.stopped:
            return []
        self._now = now
        try:
            if self._violation is not None:
                raise self._violation
            self._handlers[type(event)](event)
        except GeomxError as error:
            self.abort(error)
        effects, self._effects = self._effects, []
        return effects

    def admit(self, conn: int, message: Message) -> None:
        """See `geomx.node.contract.Node.admit`."""
        peer = self._by_conn.get(conn)
        if peer is None:
            if payload_size(message) or not isinstance(message, Hello | Welcome | Refuse):
                raise ProtocolError(f"a {type(message).__name__} before the connection was greeted")
        elif payload_size(message):
            try:
                self.check_payload(peer, message)
            except ProtocolError as error:
                self._violation = error
                raise

    # -- for subclasses to answer -------------------------------------------------------------------------

    def on_open(self, peer: Peer, first: bool) -> None:
        """A session is open; `first`: for the first time with this incarnation of the peer."""

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """A message of the run, delivered once."""
        raise ProtocolError(f"{peer.name} sent {type(message).__name__} to {self.name}")

    def on_tick(self) -> None:
        """Called at every heartbeat."""

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Raise `ProtocolError` where a payload of that size is impossible."""

    def waits_for(self) -> list[str]:
        """The peers without which the run cannot start, and that have not come yet."""
        return [name for name in self._dials if not self._has_joined(name)]

    def may_go(self, peer: Peer) -> bool:
        """Whether a peer's silence is no loss, because it has left."""
        return False

    # -- for subclasses to use -------------------------------------------------------------------------------

    def send(self, peer: Peer, message: Message, payload: Any = None, priority: int = 0) -> None:
        """Send once the session is open, and again until it has arrived."""
        session = peer.session
        number = session.enqueue(message, payload, priority, self._now)
        if session.conn:
            session.spoke = self._now
            self._effects.append(Write(session.conn, number, message, payload, priority))

    def run_job(self, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int) -> None:
        """Have arithmetic done outside the node; `then(result)` continues here."""
        self._effects.append(Job(then, function, cost_bytes))

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

    def stop(self, error: GeomxError | None = None) -> None:
        """End this node: hang up everywhere, then tell the driver."""
        reason = str(error) if error else "the run has ended"
        for conn in [*self._by_conn, *self._greeting, *self._strangers]:
            self._effects.append(Hangup(conn, reason))
        self._effects.append(Stop(error))
        self.stopped = True

    def abort(self, error: GeomxError) -> None:
        """End this node with an error, and tell every peer why."""
        if self.stopped:
            return
        failure = as_failure(self.name, error)
        self.note("failed", "error", node=failure.node, error=failure.error, reason=failure.reason)
        for peer in self._by_conn.values():
            self._effects.append(Write(peer.session.conn, 0, failure))
        self.stop(error)

    # -- connections ------------------------------------------------------------------------------------------

    def _on_started(self, event: Started) -> None:
        self._started = self._last_tick = self._now
        for name, patience in self._dials.items():
            peer = self._peers[name] = Peer(name, Session(name, 0, patience, self._now), dialled=True)
            self._effects.append(Dial(peer.name))
        self._effects.append(Timer("tick", self._tick_s))

    def _on_opened(self, event: Opened) -> None:
        if not event.peer:
            self._strangers[event.conn] = self._now
            return
        peer = self._peers[event.peer]
        self._greeting[event.conn] = peer, self._now
        self._greet(event.conn, peer)

    def _greet(self, conn: int, peer: Peer) -> None:
        me = self.identity
        told = peer.session.told(self._now)
        self._effects.append(
            Write(conn, 0, Hello(PROTOCOL_VERSION, me.run, me.name, me.incarnation, me.manifest, told))
        )

    def _welcome(self, conn: int, peer: Peer) -> None:
        told = peer.session.told(self._now)
        self._effects.append(Write(conn, 0, Welcome(self.name, self.identity.incarnation, told)))

    def _on_closed(self, event: Closed) -> None:
        self._strangers.pop(event.conn, None)
        self._greeting.pop(event.conn, None)
        peer = self._by_conn.pop(event.conn, None)
        if peer is None and event.peer:
            peer = self._peers[event.peer]
        if peer is None or peer.session.conn not in (0, event.conn):
            return
        if peer.session.conn:
            peer.session.away()
            level = "debug" if self.may_go(peer) else "warning"
            self.note("away", level, peer=peer.name, reason=event.reason)
            self.on_away(peer)
        if peer.dialled and not self.stopped:
            self._redial(peer)

    def on_away(self, peer: Peer) -> None:
        """A session has lost its connection."""

    def _redial(self, peer: Peer) -> None:
        self._effects.append(Timer(f"dial {peer.name}", peer.redial_s))
        peer.redial_s = min(2 * peer.redial_s, LAST_REDIAL_S)

    def _drop(self, conn: int, reason: str) -> None:
        """Close a connection that carries no session, or no longer."""
        for table in (self._strangers, self._greeting, self._by_conn):
            table.pop(conn, None)
        self._effects.append(Hangup(conn, reason))

    # -- greeting ---------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> None:
        peer = self._by_conn.get(event.conn)
        if peer is not None:
            self._on_peer_message(peer, event)
        elif event.conn in self._strangers:
            self._on_stranger(event.conn, event.message)
        elif event.conn in self._greeting:
            self._on_answer(event.conn, self._greeting[event.conn][0], event.message)

    def _on_stranger(self, conn: int, message: Message) -> None:
        if not isinstance(message, Hello):
            self._drop(conn, "no Hello")
            return
        refusal = self._refusal(message)
        if refusal is not None:
            self.note("refused", "warning", peer=message.node, reason=refusal.reason)
            self._effects.append(Write(conn, 0, refusal))
            self._drop(conn, refusal.reason)
            return
        del self._strangers[conn]
        peer = self._peers.get(message.node)
        fresh = peer is None or peer.session.incarnation < message.incarnation
        if peer is not None and peer.session.conn:
            if fresh:
                fence = Refuse(
                    "fenced", f"a newer {peer.name} (incarnation {message.incarnation}) has joined"
                )
                self._effects.append(Write(peer.session.conn, 0, fence))
            self._drop(peer.session.conn, "the node has connected anew")
        if peer is None or fresh:
            session = Session(message.node, message.incarnation, self._expects[message.node], self._now)
            peer = self._peers[message.node] = Peer(message.node, session, dialled=False)
        self._effects.append(Identified(conn, peer.name))
        self._welcome(conn, peer)
        self._open(conn, peer, message.received)

    def _refusal(self, hello: Hello) -> Refuse | None:
        if hello.version != PROTOCOL_VERSION:
            return Refuse(
                "version", f"protocol version {hello.version}; {self.name} speaks {PROTOCOL_VERSION}"
            )
        if hello.run != self.identity.run:
            return Refuse("run", f"run {hello.run!r}; {self.name} belongs to run {self.identity.run!r}")
        if hello.node not in self._expects:
            return Refuse(
                "identity", f"{self.name} expects {', '.join(self._expects) or 'nobody'}, not {hello.node}"
            )
        known = self._peers.get(hello.node)
        if known is not None and hello.incarnation < known.session.incarnation:
            return Refuse(
                "fenced", f"a newer {hello.node} (incarnation {known.session.incarnation}) has joined"
            )
        differences = compare(hello.manifest, self.identity.manifest)
        if differences:
            return Refuse("manifest", f"{hello.node} and {self.name} describe different runs", differences)
        return None

    def _on_answer(self, conn: int, peer: Peer, message: Message) -> None:
        if isinstance(message, Refuse):
            self.abort(refused(self.name, peer.name, message))
        elif isinstance(message, Welcome):
            session = peer.session
            if session.incarnation not in (0, message.incarnation):
                raise NodeLost(peer.name, "it was restarted, and what it knew of this run is gone")
            session.incarnation = message.incarnation
            del self._greeting[conn]
            peer.redial_s = FIRST_REDIAL_S
            self._open(conn, peer, message.received)

    def _open(self, conn: int, peer: Peer, received: int) -> None:
        self._by_conn[conn] = peer
        for number, sent in peer.session.opened(conn, received, self._now):
            self._effects.append(Write(conn, number, sent.message, sent.payload, sent.priority))
        first, peer.joined = not peer.joined, True
        self.note("joined" if first else "resumed", "info", peer=peer.name)
        self.on_open(peer, first)

    # -- messages ---------------------------------------------------------------------------------------------

    def _on_peer_message(self, peer: Peer, event: Received) -> None:
        session, message = peer.session, event.message
        session.heard = self._now
        if event.number:
            if session.accept(event.number, message):
                self.on_message(peer, message, event.payload)
            if session.owes_ack():
                self.acknowledge(peer)
        elif isinstance(message, Ack | Beat):
            session.acknowledged(message.received)
            self.on_acknowledged(peer)
        elif isinstance(message, Failure):
            self.abort(RunFailed(message.node, message.reason, message.error))
        elif isinstance(message, Refuse):
            self.abort(refused(self.name, peer.name, message))
        elif isinstance(message, Hello):  # a lossy channel lost our Welcome
            self._welcome(event.conn, peer)

    def acknowledge(self, peer: Peer) -> None:
        """Tell a peer now what has arrived."""
        if peer.session.conn:
            self._effects.append(Write(peer.session.conn, 0, Ack(peer.session.told(self._now))))

    def on_acknowledged(self, peer: Peer) -> None:
        """A peer has told what has arrived."""

    def _on_job_done(self, event: JobDone) -> None:
        if event.error is not None:
            raise (
                event.error
                if isinstance(event.error, GeomxError)
                else RunFailed(self.name, repr(event.error))
            )
        event.job.then(event.result)

    def _on_called(self, event: Called) -> None:
        getattr(self, event.method)(*event.arguments)

    # -- time -------------------------------------------------------------------------------------------------

    def _on_fired(self, event: Fired) -> None:
        if event.key == "tick":
            self._tick()
        elif event.key.startswith("dial "):
            peer = self._peers[event.key.removeprefix("dial ")]
            if not peer.session.conn:
                self._effects.append(Dial(peer.name))

    def _tick(self) -> None:
        late_s = self._now - self._last_tick - self._tick_s
        self._last_tick = self._now
        for peer in list(self._peers.values()):
            if late_s > max(2 * self._tick_s, 1.0):  # we stood still: a laptop asleep, a stopped process
                peer.session.excuse(late_s)
            self._look_after(peer)
        self._drop_the_mute()
        missing = self.waits_for()
        if missing and self._now - self._started > self.limits.start_s:
            raise WaitTimeout(
                f"{self.name} waited {self.limits.start_s:.0f} s for {', '.join(missing)} to join; "
                "start them, or raise limits.start_s"
            )
        self.on_tick()
        if not self.stopped:
            self._effects.append(Timer("tick", self._tick_s))

    def _look_after(self, peer: Peer) -> None:
        """Beat, resend, and notice silence, on one edge."""
        session, now = peer.session, self._now
        if self.stopped or not peer.joined or self.may_go(peer):
            return
        if session.is_lost(now):
            self.abort(NodeLost(peer.name, f"silent for {session.patience.timeout_s:g} s"))
            return
        if peer.dialled and session.conn and session.silent_s(now) > session.patience.timeout_s / 2:
            self._drop(session.conn, "silent; dialling anew")
            session.away()
            self._redial(peer)
            return
        for number, sent in session.overdue(now):
            self._effects.append(Write(session.conn, number, sent.message, sent.payload, sent.priority))
        if session.wants_beat(now):
            self._effects.append(Write(session.conn, 0, Beat(session.told(now))))

    def _drop_the_mute(self) -> None:
        """Hang up on strangers without a Hello, and on dialled peers that do not answer ours."""
        for conn, since in list(self._strangers.items()):
            if self._now - since > STRANGER_S:
                self._drop(conn, f"no Hello within {STRANGER_S:.0f} s")
        for conn, (peer, since) in list(self._greeting.items()):
            if self._now - since > peer.session.patience.timeout_s / 3:
                self._drop(conn, "no answer to Hello")
                self._redial(peer)
            elif peer.session.patience.resend_s:
                self._greet(conn, peer)

    def _has_joined(self, name: str) -> bool:
        peer = self._peers.get(name)
        return peer is not None and peer.joined
