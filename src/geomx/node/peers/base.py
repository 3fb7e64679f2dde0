"""What every node does, whatever its place in the tree: greet, keep sessions alive, notice death, end.

Theory of operation. A node has *peers*, each with a session. It dials some (the tree's upward edges) and is dialled by
others. A connection is a stranger's until its Hello has been checked against the run (`greeting`); only then do its
messages reach their `Handler`. Connections come and go beneath a session; when a peer stays silent for the edge's
`timeout_s`, the node ends with `NodeLost` and tells every other peer, so that the whole tree ends and each node names
the first that was lost.

Subclasses say who handles whose messages, answer `on_open` and `on_tick`, and list whom they wait for.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from geomx.errors import GeomxError, NodeLost, ProtocolError, RunFailed, WaitTimeout
from geomx.node.contract import (
    Called,
    Closed,
    Dial,
    Effect,
    Event,
    Fired,
    Hangup,
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
from geomx.node.peers.handshake import HUNG_UP, Handshake, refused
from geomx.node.peers.peer import (
    FIRST_REDIAL_S,
    LAST_REDIAL_S,
    Identity,
    Limits,
    Peer,
    as_failure,
)
from geomx.wire.messages import (
    Ack,
    Beat,
    Failure,
    Hello,
    Message,
    Refuse,
    Welcome,
    payload_size,
)
from geomx.wire.session import Patience, Session

LATE_S = 5.0  # so long after its start a peer that cannot be reached is worth a line


class Handler(Protocol):
    """What takes the messages of an edge's other end: those from above, or those from below."""

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """A message of the run, delivered once."""

    def check_payload(self, peer: Peer, message: Message) -> None:
        """Raise `ProtocolError` where a message with a `size`, be it 0, cannot have one of that size."""


class BaseNode(ABC):
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
        self._handshake = Handshake(self, identity, expects, self._peers)
        self._effects: list[Effect] = []
        self._now = 0.0
        self._started = self._waited_aloud = 0.0
        self._last_tick = 0.0
        self.stopped = False
        self._violation: ProtocolError | None = (
            None  # by a peer that had been let in: the run cannot trust it
        )
        every = [*dials.values(), *expects.values()]
        self._tick_s = min((p.resend_s or p.heartbeat_s / 2 for p in every), default=1.0)
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
            self._fail(error)
        effects, self._effects = self._effects, []
        return effects

    def admit(self, conn: int, message: Message) -> None:
        """See `geomx.node.contract.Node.admit`."""
        peer = self._by_conn.get(conn)
        if peer is None:
            if payload_size(message) or not isinstance(message, Hello | Welcome | Refuse):
                raise ProtocolError(f"a {type(message).__name__} before the connection was greeted")
        elif hasattr(message, "size"):
            try:
                self.handler_of(peer).check_payload(peer, message)
            except ProtocolError as error:
                self._violation = _broken_by(peer, error)
                raise self._violation from error

    # -- for subclasses to answer -------------------------------------------------------------------------

    def on_open(self, peer: Peer, first: bool) -> None:
        """A session is open; `first`: for the first time with this incarnation of the peer."""

    @abstractmethod
    def handler_of(self, peer: Peer) -> Handler:
        """What takes the messages of a peer."""

    def on_tick(self) -> None:
        """Called twice in every heartbeat."""

    def waits_for(self) -> list[str]:
        """The peers without which the run cannot start, and that have not come yet."""
        return [name for name in self._dials if not self._has_joined(name)]

    def may_go(self, peer: Peer) -> bool:
        """Whether a peer's silence is no loss, because it has left."""
        return False

    def on_lost(self, peer: Peer) -> None:
        """A peer has been silent for too long; called twice in every heartbeat."""
        raise NodeLost(peer.name, f"silent for {peer.session.patience.timeout_s:g} s")

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
        for conn in [*self._by_conn, *self._handshake.connections]:
            self._effects.append(Hangup(conn, reason))
        self._effects.append(Stop(error))
        self.stopped = True

    def _fail(self, error: GeomxError) -> None:
        """End this node with an error, and tell every peer why."""
        failure = as_failure(self.name, error)
        self.note("failed", "error", node=failure.node, error=failure.error, reason=failure.reason)
        for peer in self._by_conn.values():
            self._effects.append(Write(peer.session.conn, 0, failure))
        self.stop(error)

    # -- connections ------------------------------------------------------------------------------------------

    def _on_started(self, event: Started) -> None:
        self._started = self._waited_aloud = self._last_tick = self._now
        for name, patience in self._dials.items():
            peer = self._peers[name] = Peer(name, Session(name, 0, patience, self._now), dialled=True)
            self._effects.append(Dial(peer.name))
        self._effects.append(Timer("tick", self._tick_s))

    def _on_opened(self, event: Opened) -> None:
        if event.peer:
            self._handshake.dialled(event.conn, self._peers[event.peer])
        else:
            self._handshake.accepted(event.conn)

    def _on_closed(self, event: Closed) -> None:
        unanswered = self._handshake.forget(event.conn)
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
        if peer.dialled and not self.stopped:  # which the end of its last connection may have brought about
            self._tell_trouble(peer, f"{event.reason}{HUNG_UP if unanswered else ''}")
            self.redial(peer)

    def on_away(self, peer: Peer) -> None:
        """A session has lost its connection."""

    def redial(self, peer: Peer) -> None:
        """Dial a peer again, after a pause that grows."""
        self._effects.append(Timer(f"dial {peer.name}", peer.redial_s))
        peer.redial_s = min(2 * peer.redial_s, LAST_REDIAL_S)

    def _tell_trouble(self, peer: Peer, reason: str) -> None:
        """Say once why a peer cannot be reached; but that it is a moment late to start says nothing."""
        peer.trouble = reason
        if self._now - self._started >= LATE_S and peer.trouble_told != reason:
            peer.trouble_told = reason
            self.note("unreachable", "info", peer=peer.name, reason=reason)

    def drop(self, conn: int, reason: str) -> None:
        """Close a connection that carries no session, or no longer."""
        self._handshake.forget(conn)
        self._by_conn.pop(conn, None)
        self._effects.append(Hangup(conn, reason))

    def open(self, conn: int, peer: Peer, received: int) -> None:
        """A connection carries a peer's session from now on, which has everything up to `received`."""
        self._by_conn[conn] = peer
        peer.redial_s, peer.trouble, peer.trouble_told = FIRST_REDIAL_S, "", ""
        for number, sent in peer.session.opened(conn, received, self._now):
            self._effects.append(Write(conn, number, sent.message, sent.payload, sent.priority))
        first, peer.joined = not peer.joined, True
        self.note("joined" if first else "resumed", "info", peer=peer.name)
        self.on_open(peer, first)

    # -- messages ---------------------------------------------------------------------------------------------

    def _on_received(self, event: Received) -> None:
        peer = self._by_conn.get(event.conn)
        if peer is None:
            self._handshake.received(event.conn, event.message)
            return
        peer.session.heard = self._now
        try:
            if event.number:
                self._on_numbered(peer, event)
            else:
                self._on_control(peer, event.conn, event.message)
        except ProtocolError as error:
            raise _broken_by(peer, error) from error

    def _on_numbered(self, peer: Peer, event: Received) -> None:
        session, message = peer.session, event.message
        if session.accept(event.number, message):
            self.handler_of(peer).on_message(peer, message, event.payload)
        if session.owes_ack():
            self.acknowledge(peer)

    def _on_control(self, peer: Peer, conn: int, message: Message) -> None:
        """What belongs to one connection alone."""
        if isinstance(message, Ack | Beat):
            peer.session.acknowledged(message.received)
            self.on_acknowledged(peer)
        elif isinstance(message, Failure):
            raise RunFailed(message.node, message.reason, message.error)
        elif isinstance(message, Refuse):
            raise refused(self.name, peer.name, message)
        elif isinstance(message, Hello):  # a lossy channel lost our Welcome
            self._handshake.welcome(conn, peer)
        elif not isinstance(message, Welcome):  # which may come twice for the same reason
            raise ProtocolError(f"{type(message).__name__} was sent without a number")

    def acknowledge(self, peer: Peer) -> None:
        """Tell a peer now what has arrived."""
        if peer.session.conn:
            self._effects.append(Write(peer.session.conn, 0, Ack(peer.session.ack_watermark(self._now))))

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
        self._handshake.tick()
        self._wait_for_the_missing()
        self.on_tick()
        if not self.stopped:
            self._effects.append(Timer("tick", self._tick_s))

    def _look_after(self, peer: Peer) -> None:
        """Beat, resend, and notice silence, on one edge."""
        session, now = peer.session, self._now
        if not peer.joined or self.may_go(peer):
            return
        if session.is_lost(now):
            self.on_lost(peer)
            return
        if peer.dialled and session.conn and session.silent_s(now) > session.patience.timeout_s / 2:
            self.drop(session.conn, "silent; dialling anew")
            session.away()
            self.redial(peer)
            return
        for number, sent in session.overdue(now):
            self._effects.append(Write(session.conn, number, sent.message, sent.payload, sent.priority))
        if session.wants_beat(now):
            self._effects.append(Write(session.conn, 0, Beat(session.ack_watermark(now))))

    def _wait_for_the_missing(self) -> None:
        """Before the run can start: say for whom it waits, every `stall_s`, and give up after `start_s`."""
        missing = self.waits_for()
        waited_s, limits = self._now - self._started, self.limits
        if not missing or waited_s <= min(limits.start_s, limits.stall_s):
            return
        troubles = {name: peer.trouble for name, peer in self._peers.items()}
        whom = ", ".join(f"{name} ({why})" if (why := troubles.get(name)) else name for name in missing)
        if waited_s > limits.start_s:
            raise WaitTimeout(
                f"{self.name} waited {limits.start_s:.0f} s for {whom} to join; start them, or raise limits.start_s"
            )
        if self._now - self._waited_aloud >= limits.stall_s:
            self._waited_aloud = self._now
            self.note("waiting", "warning", whom=whom, seconds=waited_s)

    def _has_joined(self, name: str) -> bool:
        peer = self._peers.get(name)
        return peer is not None and peer.joined


def _broken_by(peer: Peer, error: ProtocolError) -> ProtocolError:
    """The same, with the name of who did it, and what to do."""
    return ProtocolError(
        f"{peer.name} broke the protocol: {error}; see that {peer.name} is healthy and runs the same geomx"
    )
