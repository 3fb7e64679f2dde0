"""Connections that carry no session yet: who is let in, and who is sent away.

Whoever dials says `Hello`; whoever listens answers `Welcome`, or `Refuse` with the reason. Until then a connection
may carry nothing else, and not for long: it is a stranger's for `STRANGER_S`, and of strangers there are never more
than twice those who may come (a flood pushes out the oldest of itself). What a stranger says is repeated only
shortened and in printable characters, be it in a log or in an answer, which must fit into a header.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

from geomx.errors import Fenced, GeomxError, NodeLost, Refused
from geomx.node.contract import Effect, Identified, Write
from geomx.node.peers.peer import Identity, Peer
from geomx.wire.messages import (
    PROTOCOL_VERSION,
    Difference,
    Hello,
    Message,
    Refuse,
    Value,
    Welcome,
)
from geomx.wire.session import Patience, Session

STRANGER_S = 10.0  # how long whoever has not said Hello may stay
LEAST_STRANGERS = 64  # that are borne at a time, however small the run is
MOST_DIFFERENCES, MOST_CHARACTERS, MOST_NAMES = 32, 100, 8  # of what is told in a refusal
HUNG_UP = (
    " before it answered Hello (its own log may say why; do both ends have certificates of one authority?)"
)
RESTARTED = "it was restarted, and what it knew of this run is gone"


class HandshakeHost(Protocol):
    """The node around it."""

    @property
    def now(self) -> float: ...
    def emit(self, effect: Effect) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: object) -> None: ...
    def drop(self, conn: int, reason: str) -> None: ...
    def redial(self, peer: Peer) -> None: ...
    def open(self, conn: int, peer: Peer, received: int) -> None: ...
    def may_go(self, peer: Peer) -> bool: ...


class Handshake:
    """See the module's text. `expects`: who may dial us; `peers`: the node's own table, to which it adds."""

    def __init__(
        self, host: HandshakeHost, identity: Identity, expects: dict[str, Patience], peers: dict[str, Peer]
    ) -> None:
        self._host = host
        self._identity = identity
        self._expects = expects
        self._peers = peers
        self._strangers: dict[int, float] = {}  # accepted, since when; the oldest first
        self._dialled: dict[int, tuple[Peer, float]] = {}  # not welcomed yet, since when
        self._most_strangers = max(LEAST_STRANGERS, 2 * len(expects))

    @property
    def connections(self) -> list[int]:
        return [*self._strangers, *self._dialled]

    def accepted(self, conn: int) -> None:
        """Somebody has dialled us."""
        if len(self._strangers) >= self._most_strangers:
            self._host.drop(next(iter(self._strangers)), "too many strangers at the door")
        self._strangers[conn] = self._host.now

    def dialled(self, conn: int, peer: Peer) -> None:
        """We have reached a peer."""
        self._dialled[conn] = peer, self._host.now
        self._greet(conn, peer)

    def forget(self, conn: int) -> bool:
        """The connection is gone, or to be. Returns whether a peer that we have dialled owes us an answer."""
        self._strangers.pop(conn, None)
        return self._dialled.pop(conn, None) is not None

    def received(self, conn: int, message: Message) -> None:
        """Something came on a connection without a session."""
        if conn in self._strangers:
            self._on_stranger(conn, message)
        elif conn in self._dialled:
            self._on_answer(conn, self._dialled[conn][0], message)

    def welcome(self, conn: int, peer: Peer) -> None:
        """The answer to `Hello`."""
        told = peer.session.ack_watermark(self._host.now)
        self._write(conn, Welcome(self._identity.name, self._identity.incarnation, told))

    def tick(self) -> None:
        """Hang up on strangers without a Hello, and on dialled peers that do not answer ours."""
        now = self._host.now
        for conn, since in list(self._strangers.items()):
            if now - since > STRANGER_S:
                self._host.drop(conn, f"no Hello within {STRANGER_S:.0f} s")
        for conn, (peer, since) in list(self._dialled.items()):
            if now - since > peer.session.patience.timeout_s / 3:
                self._host.drop(conn, "no answer to Hello")
                peer.trouble = "it accepts connections, but does not answer Hello"
                self._host.redial(peer)
            elif peer.session.patience.resend_s:
                self._greet(conn, peer)

    def _greet(self, conn: int, peer: Peer) -> None:
        me, told = self._identity, peer.session.ack_watermark(self._host.now)
        self._write(conn, Hello(PROTOCOL_VERSION, me.run, me.name, me.incarnation, me.manifest, told))

    def _on_stranger(self, conn: int, message: Message) -> None:
        if not isinstance(message, Hello):
            self._host.drop(conn, "no Hello")
            return
        known = self._peers.get(message.node)
        refusal = self._refusal(message, known)
        if refusal is not None:
            self._host.note("refused", "warning", peer=shown(message.node), reason=refusal.reason)
            self._write(conn, refusal)
            self._host.drop(conn, refusal.reason)
            return
        del self._strangers[conn]
        peer = self._session_of(message, known)
        self._host.emit(Identified(conn, peer.name))
        self.welcome(conn, peer)
        self._host.open(conn, peer, message.received)

    def _session_of(self, hello: Hello, known: Peer | None) -> Peer:
        """The same incarnation resumes, a greater one begins anew; in both cases an old connection goes."""
        resumes = known is not None and known.session.incarnation == hello.incarnation
        if known is not None and known.session.conn:
            if not resumes:
                self._write(known.session.conn, _fence(hello.node, hello.incarnation))
            self._host.drop(known.session.conn, "the node has connected anew")
        if known is not None and resumes:
            return known
        session = Session(hello.node, hello.incarnation, self._expects[hello.node], self._host.now)
        peer = self._peers[hello.node] = Peer(hello.node, session, dialled=False)
        return peer

    def _refusal(self, hello: Hello, known: Peer | None) -> Refuse | None:
        me = self._identity
        if hello.version != PROTOCOL_VERSION:
            return Refuse(
                "version",
                f"protocol version {hello.version}; {me.name} speaks {PROTOCOL_VERSION}: "
                "run the same geomx on every machine",
            )
        if hello.run != me.run:
            return Refuse("run", f"run {shown(hello.run)!r}; {me.name} belongs to run {me.run!r}")
        if hello.node not in self._expects:
            return Refuse("identity", f"{me.name} expects {_few(self._expects)}, not {shown(hello.node)}")
        if known is not None and hello.incarnation < known.session.incarnation:
            return _fence(hello.node, known.session.incarnation)
        differences = compare(hello.manifest, me.manifest)
        if differences:
            return Refuse("manifest", f"{hello.node} and {me.name} describe different runs", differences)
        resumes = known is not None and known.session.incarnation == hello.incarnation
        if hello.received > (known.session.sent if known is not None and resumes else 0):
            return Refuse("ended", RESTARTED)
        if known is not None and not resumes and self._host.may_go(known):
            return Refuse("identity", f"{hello.node} has left this run, which goes on without it")
        return None

    def _on_answer(self, conn: int, peer: Peer, message: Message) -> None:
        if isinstance(message, Refuse):
            raise refused(self._identity.name, peer.name, message)
        if isinstance(message, Welcome):
            if peer.session.incarnation not in (0, message.incarnation):
                raise NodeLost(peer.name, RESTARTED)
            peer.session.incarnation = message.incarnation
            del self._dialled[conn]
            self._host.open(conn, peer, message.received)

    def _write(self, conn: int, message: Message) -> None:
        self._host.emit(Write(conn, 0, message))


def compare(theirs: Mapping[str, Value], ours: Mapping[str, Value]) -> tuple[Difference, ...]:
    """The fields in which two manifests differ, as many as can be told."""
    absent = "(absent)"
    differing = [
        key for key in sorted(theirs.keys() | ours.keys()) if theirs.get(key, absent) != ours.get(key, absent)
    ]
    return tuple(
        Difference(shown(key), shown(str(theirs.get(key, absent))), shown(str(ours.get(key, absent))))
        for key in differing[:MOST_DIFFERENCES]
    )


def refused(me: str, by: str, refusal: Refuse) -> GeomxError:
    """The error of a node that was not let in."""
    if refusal.code == "ended":
        return NodeLost(by, refusal.reason)
    listed = "".join(f"\n  - {d.field}: {me} has {d.yours}, {by} has {d.ours}" for d in refusal.differences)
    kind = Fenced if refusal.code == "fenced" else Refused
    return kind(f"{by} refused {me}: {refusal.reason}{listed}")


def shown(text: str) -> str:
    """What somebody else has said, short and in printable characters."""
    start = text[: MOST_CHARACTERS + 1]
    fit = start if start.isprintable() else ascii(start)
    return fit if len(fit) <= MOST_CHARACTERS else f"{fit[:MOST_CHARACTERS]}..."


def _fence(name: str, incarnation: int) -> Refuse:
    return Refuse("fenced", f"a newer {name} (incarnation {incarnation}) has joined")


def _few(names: Iterable[str]) -> str:
    first, others = list(names)[:MOST_NAMES], len(list(names)) - MOST_NAMES
    return (", ".join(first) or "nobody") + (f" and {others} more" if others > 0 else "")
