"""Connections that carry no session yet: who is let in, and who is sent away.

Whoever listens says `Challenge`, whoever dials `Hello`; then whoever listens answers `Welcome`, or `Refuse`. Hello and
Welcome bear a proof of the run's secret; before it has been seen, a refusal is a code and nothing else. Until then a
connection may carry nothing else, and not for long: it is a stranger's for `STRANGER_S`, and of strangers there are
never more than twice those who may come (a flood pushes out the oldest of itself). What a stranger says is repeated
only shortened and in printable characters, be it in a log or in an answer, which must fit into a header.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Protocol

from geomx.errors import Fenced, GeomxError, NodeLost, ProtocolError, Refused
from geomx.node.contract import Effect, Identified, Opened, Write
from geomx.node.peers.dialling import Dialling
from geomx.node.peers.peer import Identity, Peer, as_failure, broken_by
from geomx.wire.messages import PROTOCOL_VERSION, Challenge, Difference, Hello, Refuse, Value, Welcome
from geomx.wire.proof import Side, flow_secret, is_certified, is_proved, proof
from geomx.wire.roster_messages import Message
from geomx.wire.session import Patience, Session

STRANGER_S = 10.0  # how long whoever has not said Hello may stay
LEAST_STRANGERS = 64  # that are borne at a time, however small the run is
MOST_DIFFERENCES, MOST_CHARACTERS, MOST_NAMES = 32, 100, 8  # of what is told in a refusal
MOST_OF_A_REASON = 1000
LAST = 1 << 63  # no incarnation is as great
TELL_EVERY_S = 10.0  # of those who are sent away
SILENT_BEATS = 2  # so many heartbeats unheard, a name's holder no longer keeps it from a newcomer
HUNG_UP = " before it answered Hello (see its log; do both ends have certificates of one authority?)"
SILENT_DOOR = "it accepts connections, but does not answer: is another program at this address?"
RESTARTED = "it was restarted, and its state of this run is lost"

# What a code alone stands for, at both ends.
MEANS = {
    "version": "the two speak different versions of the protocol: install the same geomx on every machine",
    "proof": "the two have different secrets: give both the same run.secret_file",
    "certificate": "its certificate does not name it: it needs the URI geomx:RUN/NAME",
}


class HandshakeHost(Protocol):
    """The node around it."""

    identity: Identity

    @property
    def now(self) -> float: ...
    def emit(self, effect: Effect) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: object) -> None: ...
    def drop(self, conn: int, reason: str) -> None: ...
    @property
    def dialling(self) -> Dialling: ...
    @property
    def beside(self) -> Container[str]: ...
    def open(self, conn: int, peer: Peer, received: int) -> None: ...
    def may_go(self, peer: Peer) -> bool: ...
    def may_return(self, peer: Peer) -> bool: ...
    def returns(self, peer: Peer) -> bool: ...
    def renews(self, peer: Peer) -> bool: ...
    def needs(self, peer: Peer) -> bool: ...
    def awaits_its_place(self) -> bool: ...
    def readmits(self, peer: Peer) -> bool: ...
    def is_ready_for(self, name: str) -> bool: ...
    def begin_anew(self, reason: str) -> bool: ...


@dataclass(slots=True)
class _Greeting:
    """One connection's. `theirs`: the other side's nonce, once it has come."""

    since: float
    ours: bytes
    certified: tuple[str, ...] | None
    theirs: bytes = b""


class Handshake:
    """See the module's text. `expects`: who may dial us; `peers`: the node's own table, to which it adds."""

    def __init__(self, host: HandshakeHost, expects: dict[str, Patience], peers: dict[str, Peer]) -> None:
        self._host = host
        self._expects = expects
        self._peers = peers
        self._greetings: dict[int, _Greeting] = {}  # of every connection, as long as it stands
        self._strangers: dict[int, None] = {}  # accepted, the oldest first
        self._dialled: dict[int, Peer] = {}  # not welcomed yet
        self._most_strangers = max(LEAST_STRANGERS, 2 * len(expects))
        self._is_known = False  # somebody has been told our incarnation, and believed it
        self._held: dict[
            str, tuple[float, float]
        ] = {}  # by peer: since when it says that our name's holder is there
        self.former: set[str] = set()  # who has come from a run of an earlier process of our name
        self.dismissed: dict[str, tuple[int, str]] = {}  # incarnations that have to begin anew, and why
        self._told_at = -TELL_EVERY_S
        self._untold: dict[str, int] = {}  # who was sent away since, and how often

    @property
    def connections(self) -> list[int]:
        return [*self._strangers, *self._dialled]

    def accepted(self, opened: Opened) -> None:
        """Somebody has dialled us."""
        if len(self._strangers) >= self._most_strangers:
            self._host.drop(next(iter(self._strangers)), "too many connections without a Hello")
        self._greetings[opened.conn] = _Greeting(self._host.now, opened.nonce, opened.certified)
        self._strangers[opened.conn] = None
        self._challenge(opened.conn)

    def dialled(self, opened: Opened, peer: Peer) -> None:
        """We have reached a peer, or whoever is at its address."""
        self._greetings[opened.conn] = _Greeting(self._host.now, opened.nonce, opened.certified)
        self._dialled[opened.conn] = peer
        if not self._is_certified(opened.certified, peer.name):
            self._dial_anew(opened.conn, peer, MEANS["certificate"])

    def let_go(self, reason: str, whom: Peer | None = None) -> None:
        """Hang up on dialled peers that have not answered yet. `whom`: on this one alone."""
        for conn, peer in list(self._dialled.items()):
            if whom is None or peer is whom:
                self._host.drop(conn, reason)

    def forget(self, conn: int) -> bool:
        """The connection is gone, or to be. Returns whether a peer that we have dialled owes us an answer."""
        self._greetings.pop(conn, None)
        self._strangers.pop(conn, None)
        return self._dialled.pop(conn, None) is not None

    def received(self, conn: int, message: Message) -> None:
        """Something came on a connection without a session."""
        if conn in self._strangers:
            self._on_stranger(conn, message)
        elif conn in self._dialled:
            self._on_answer(conn, self._dialled[conn], message)

    def welcome(self, conn: int, peer: Peer) -> None:
        """The answer to `Hello`."""
        me = self._host.identity
        told = peer.session.ack_watermark(self._host.now)
        proved = self._proof(conn, "listens", me.run, me.name, me.incarnation)
        self._is_known = True
        self._write(conn, Welcome(me.name, me.incarnation, told, proved, me.term))

    def tick(self) -> None:
        """Hang up on strangers without a Hello, and on dialled peers that do not answer ours."""
        now = self._host.now
        for conn in list(self._strangers):
            if now - self._greetings[conn].since > STRANGER_S:
                self._host.drop(conn, f"no Hello within {STRANGER_S:.0f} s")
            elif any(patience.resend_s for patience in self._expects.values()):
                self._challenge(conn)
        for conn, peer in list(self._dialled.items()):
            if now - self._greetings[conn].since > peer.session.patience.timeout_s / 3:
                self._dial_anew(conn, peer, SILENT_DOOR)
            elif peer.session.patience.resend_s and self._greetings[conn].theirs:
                self._greet(conn, peer)
        if self._untold and now - self._told_at >= TELL_EVERY_S:
            listed = [f"{name} ({count} times)" for name, count in self._untold.items()]
            self._tell(", ".join(listed), "for the same reason, or another that was sent to it")

    # -- the side that dials --------------------------------------------------------------------------------

    def _greet(self, conn: int, peer: Peer) -> None:
        me, told = self._host.identity, peer.session.ack_watermark(self._host.now)
        ours = self._greetings[conn].ours
        proved = self._proof(conn, "dials", me.run, me.name, me.incarnation)
        self._write(
            conn, Hello(PROTOCOL_VERSION, me.run, me.name, me.incarnation, me.manifest, told, ours, proved)
        )

    def _on_answer(self, conn: int, peer: Peer, message: Message) -> None:
        if isinstance(message, Challenge):
            self._greetings[conn].theirs = message.nonce
            self._greet(conn, peer)
        elif isinstance(message, Welcome):
            self._on_welcome(conn, peer, message)
        elif isinstance(message, Refuse):
            self._on_refuse(conn, peer, message)

    def _on_welcome(self, conn: int, peer: Peer, welcome: Welcome) -> None:
        run = self._host.identity.run
        if not is_proved(welcome.proof, self._proof(conn, "listens", run, peer.name, welcome.incarnation)):
            self._dial_anew(conn, peer, MEANS["proof"])
            return
        if welcome.term < peer.term:
            self._dial_anew(conn, peer, f"another process is {peer.name} by now")
            return
        peer.term = welcome.term
        if self._is_renewed(peer, welcome.incarnation):
            pass
        elif peer.session.incarnation not in (0, welcome.incarnation):
            if self._host.returns(peer) and self._host.begin_anew(f"{peer.name} was restarted"):
                return
            lost = NodeLost(peer.name, RESTARTED)
            self._write(conn, as_failure(self._host.identity.name, lost))  # else it waits for us
            peer.is_told = True
            raise lost
        if peer.is_beside and welcome.received < peer.session.known_received:  # it has forgotten this node
            peer.session, peer.joined = Session(peer.name, 0, peer.session.patience, self._host.now), False
        peer.session.incarnation = welcome.incarnation
        self._is_known = True
        self._held.pop(peer.name, None)
        del self._dialled[conn]
        self._open(conn, peer, welcome.received)

    def _is_renewed(self, peer: Peer, incarnation: int) -> bool:
        """Whether a peer that we dial was started again, and both go on: then in a new session."""
        renews = peer.is_beside or self._host.renews(peer)
        if peer.session.incarnation in (0, incarnation) or not renews:
            return False
        peer.session = Session(peer.name, 0, peer.session.patience, self._host.now)
        peer.joined = False
        return True

    def _on_refuse(self, conn: int, peer: Peer, refusal: Refuse) -> None:
        me, now = self._host.identity, self._host.now
        if peer.is_beside:  # there is another way to where it leads
            self._is_renewed(peer, -1)
            self._dial_anew(conn, peer, refusal.reason or refusal.code)
        elif refusal.code == "held":
            since, last = self._held.get(peer.name, (now, now))
            timeout_s = peer.session.patience.timeout_s
            since = now if now - last > timeout_s else since  # it may have stood still since it last said so
            self._held[peer.name] = since, now
            if now - since > timeout_s or not self._host.awaits_its_place():
                raise self._refused(peer, refusal)
            self._dial_anew(conn, peer, refusal.reason)
        elif refusal.code == "fenced" and me.incarnation <= refusal.newest < LAST and not self._is_known:
            self._host.identity = replace(
                me, incarnation=refusal.newest + 1
            )  # this machine's clock is behind
            self._dial_anew(conn, peer, refusal.reason)
        elif refusal.code == "ended" and self._is_renewed(peer, -1):
            self._dial_anew(conn, peer, refusal.reason)
        elif refusal.code != "ended" or not self._host.begin_anew(shown(refusal.reason, MOST_OF_A_REASON)):
            raise self._refused(peer, refusal)

    def _refused(self, peer: Peer, refusal: Refuse) -> GeomxError:
        peer.is_told = True  # it knows that we do not come
        return refused(self._host.identity.name, peer.name, refusal)

    def _dial_anew(self, conn: int, peer: Peer, reason: str) -> None:
        """Close a connection to whoever is not the peer, or not ready for us, and dial anew."""
        self._host.drop(conn, reason)
        self._host.dialling.trouble(peer, reason)
        self._host.dialling.again(peer)

    # -- the side that listens ------------------------------------------------------------------------------

    def _challenge(self, conn: int) -> None:
        self._write(conn, Challenge(self._greetings[conn].ours))

    def _on_stranger(self, conn: int, message: Message) -> None:
        if not isinstance(message, Hello):
            self._host.drop(conn, "no Hello")
            return
        self._greetings[conn].theirs = message.nonce
        code = self._unproved(conn, message)
        if code is not None:
            self._send_away(conn, message, code, MEANS[code.code])
            return
        if not self._host.is_ready_for(message.node):
            self._host.drop(conn, "this node is not ready yet")
            return
        known = self._peers.get(message.node)
        refusal = self._refusal(message, known)
        if refusal is not None:
            self._send_away(conn, message, refusal, refusal.reason)
            if refusal.code == "returned":
                raise NodeLost(message.node, RESTARTED)
            if refusal.code == "ended" and known is None:
                self.former.add(message.node)
            return
        del self._strangers[conn]
        peer = self._session_of(message, known)
        self._host.emit(Identified(conn, peer.name))
        self.welcome(conn, peer)
        self._open(conn, peer, message.received)

    def _open(self, conn: int, peer: Peer, received: int) -> None:
        try:
            self._host.open(conn, peer, received)
        except ProtocolError as error:
            raise broken_by(peer, error) from error

    def _send_away(self, conn: int, hello: Hello, refusal: Refuse, reason: str) -> None:
        if self._host.now - self._told_at >= TELL_EVERY_S:
            self._tell(shown(hello.node), reason)
        else:
            name = shown(hello.node)
            if name not in self._untold and len(self._untold) >= MOST_NAMES:
                name = "others"
            self._untold[name] = self._untold.get(name, 0) + 1
        self._write(conn, refusal)
        self._host.drop(conn, reason)

    def _tell(self, who: str, reason: str) -> None:
        self._told_at, self._untold = self._host.now, {}
        self._host.note("refused", "warning", peer=who, reason=reason)

    def _session_of(self, hello: Hello, known: Peer | None) -> Peer:
        """The same incarnation resumes, a greater one begins anew; in both cases an old connection goes."""
        self._untold.pop(
            hello.node, None
        )  # it was sent away before it came to know that it has to begin anew
        resumes = (
            known is not None
            and known.session.incarnation == hello.incarnation
            and not _has_forgotten(hello, known)
        )
        if known is not None and known.session.conn:
            if not resumes:
                self._write(known.session.conn, _fence(hello.node, hello.incarnation))
            self._host.drop(known.session.conn, "the node has connected anew")
        if known is not None and resumes:
            return known
        session = Session(hello.node, hello.incarnation, self._expects[hello.node], self._host.now)
        beside = hello.node in self._host.beside
        peer = self._peers[hello.node] = Peer(hello.node, session, dialled=False, is_beside=beside)
        self.former.discard(hello.node)
        return peer

    def _unproved(self, conn: int, hello: Hello) -> Refuse | None:
        """Why whoever says this has not proved that it belongs to the run: a code alone."""
        if hello.version != PROTOCOL_VERSION:
            return Refuse("version")
        if not is_proved(hello.proof, self._proof(conn, "dials", hello.run, hello.node, hello.incarnation)):
            return Refuse("proof")
        if not self._is_certified(self._greetings[conn].certified, hello.node):
            return Refuse("certificate")
        return None

    def _refusal(self, hello: Hello, known: Peer | None) -> Refuse | None:
        """Why somebody who belongs to the run is not let in."""
        me = self._host.identity
        if hello.run != me.run:
            return Refuse("run", f"run {shown(hello.run)!r}; {me.name} belongs to run {me.run!r}")
        if hello.node not in self._expects:
            return Refuse("identity", f"{me.name} expects {_few(self._expects)}, not {shown(hello.node)}")
        differences = compare(hello.manifest, me.manifest)
        if differences:
            return Refuse("manifest", f"{hello.node} and {me.name} describe different runs", differences)
        why_new = "has parted with it" if hello.node in self._host.beside else "was started again"
        is_new = f"{me.name} {why_new}, and {hello.node} has to begin a new session"
        if known is None:
            dismissed, why = self.dismissed.get(hello.node, (-1, ""))
            if hello.incarnation <= dismissed:
                return Refuse("ended", why)
            return Refuse("ended", is_new) if hello.received else None
        session = known.session
        if hello.incarnation < session.incarnation:
            return _fence(hello.node, session.incarnation)
        if hello.incarnation == session.incarnation:
            if _has_forgotten(hello, known):
                return None
            return Refuse("ended", is_new) if hello.received > session.sent else _mismatch(hello, session)
        if hello.received:
            return Refuse("ended", is_new)
        if not known.is_beside and self._host.may_go(known) and not self._host.readmits(known):
            return Refuse("identity", f"{hello.node} has left this run, which continues without it")
        silent_s, heartbeat_s = session.silent_s(self._host.now), session.patience.heartbeat_s
        if self._host.needs(known) or (session.is_open and silent_s <= SILENT_BEATS * heartbeat_s):
            return Refuse("held", f"another {hello.node} is connected and alive")
        if known.joined and not (known.is_beside or self._host.may_return(known)):
            return Refuse("returned", f"{hello.node} was restarted, and its state of this run is lost")
        return None

    # -- both -----------------------------------------------------------------------------------------------

    def _proof(self, conn: int, side: Side, run: str, node: str, incarnation: int) -> bytes:
        nonces = self._nonces(conn, conn in self._dialled)
        return proof(self._host.identity.secret, side, run, node, incarnation, nonces)

    def _nonces(self, conn: int, dials: bool) -> tuple[bytes, bytes]:
        """Of the side that listens, then of the one that dials."""
        greeting = self._greetings[conn]
        return (greeting.theirs, greeting.ours) if dials else (greeting.ours, greeting.theirs)

    def flow_secret(self, conn: int, dialled: bool) -> bytes:
        """What both ends of a connection that stands know, and nobody else; empty where the run has no secret."""
        return flow_secret(self._host.identity.secret, self._nonces(conn, dialled))

    def _is_certified(self, uris: tuple[str, ...] | None, node: str) -> bool:
        return uris is None or is_certified(uris, self._host.identity.run, node)

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
        return NodeLost(by, RESTARTED)
    reason = shown(refusal.reason, MOST_OF_A_REASON) or MEANS.get(refusal.code, shown(refusal.code))
    differences = [(shown(d.field), shown(d.yours), shown(d.ours)) for d in refusal.differences]
    listed = "".join(
        f"\n  - {field}: {me} has {ours}, {by} has {theirs}" for field, ours, theirs in differences
    )
    kind = Fenced if refusal.code == "fenced" else Refused
    return kind(f"{by} refused {me}: {reason}{listed}")


def shown(text: str, most: int = MOST_CHARACTERS) -> str:
    """What somebody else has said, short and in printable characters."""
    start = text[: most + 1]
    fit = start if start.isprintable() else ascii(start)
    return fit if len(fit) <= most else f"{fit[:most]}..."


def _fence(name: str, incarnation: int) -> Refuse:
    return Refuse("fenced", f"a newer {name} (incarnation {incarnation}) has joined", newest=incarnation)


def _has_forgotten(hello: Hello, known: Peer) -> bool:
    """Whether a node beside this one has parted with it, and meets it anew."""
    return known.is_beside and hello.received < known.session.known_received


def _mismatch(hello: Hello, session: Session) -> Refuse | None:
    """Whether the same incarnation has received no less than it has said before.

    Who has received nothing is another process, whose number happens to be that of the former: it takes a greater one.
    """
    if not hello.received and session.known_received:
        return _fence(hello.node, session.incarnation)
    if hello.received < session.known_received:
        said = (
            f"{hello.node} has received {hello.received} messages, and somebody in its name has acknowledged"
        )
        return Refuse("watermark", f"{said} {session.known_received}: what lies between is lost")
    return None


def _few(names: Iterable[str]) -> str:
    first, others = list(names)[:MOST_NAMES], len(list(names)) - MOST_NAMES
    return (", ".join(first) or "nobody") + (f" and {others} more" if others > 0 else "")
