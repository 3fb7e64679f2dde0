"""Looks after a node's peers as time passes: beats, resends, notices silence, and says for whom the start waits."""

from __future__ import annotations

import math
from typing import Protocol

from geomx.errors import NodeLost, WaitTimeout
from geomx.node.contract import Effect, Write
from geomx.node.peers.dialling import Dialling
from geomx.node.peers.handshake import RESTARTED
from geomx.node.peers.peer import LATE_S, Identity, Limits, Peer
from geomx.node.peers.stillness import Stillness, least_s
from geomx.wire.messages import Beat


class WatchedHost(Protocol):
    """The node around it."""

    identity: Identity
    limits: Limits
    has_overlay: bool

    @property
    def now(self) -> float: ...
    def emit(self, effect: Effect) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: object) -> None: ...
    def drop(self, conn: int, reason: str) -> None: ...
    @property
    def dialling(self) -> Dialling: ...
    def may_go(self, peer: Peer) -> bool: ...
    def lose(self, peer: Peer) -> None: ...
    def is_gone(self, peer: Peer) -> bool: ...
    def is_idle(self) -> bool: ...
    def pace(self) -> int: ...
    def waits_for(self) -> list[str]: ...


class Watch:
    """See the module's text. `tick_s`: how often `tick` is called.

    `peers`: the node's own table; `former`: the names of those that belong to a run of an earlier process of its name.
    """

    def __init__(
        self,
        host: WatchedHost,
        peers: dict[str, Peer],
        former: set[str],
        stillness: Stillness,
        tick_s: float,
    ) -> None:
        self._host = host
        self._peers = peers
        self._former = former
        self._stillness = stillness
        self._tick_s = tick_s
        self._started = self._waited_aloud = self._last_tick = 0.0
        self._own_still_s = 0.0
        self._woke, self._slept_s = (
            -math.inf,
            0.0,
        )  # when we last stood still ourselves until, and for how long

    def begin(self) -> None:
        """The node has started."""
        self._started = self._waited_aloud = self._last_tick = self._host.now
        self._stillness.moved(self._host.now)

    def tick(self) -> None:
        """Look at every edge. Raises `NodeLost`, `WaitTimeout`."""
        now = self._host.now
        late_s = now - self._last_tick - self._tick_s
        self._last_tick = now
        if late_s > max(2 * self._tick_s, 1.0):  # a laptop asleep, a stopped process
            self._woke, self._slept_s = now, late_s
            self._host.note("slept", "warning", seconds=late_s)
            for peer in self._peers.values():
                peer.session.excuse(now, late_s)
        self._own_still_s = self._still_here_s()
        for peer in list(self._peers.values()):
            self._look_after(peer)
        self._wait_for_the_missing()

    def still_s(self) -> float:
        """For how long the node and all below it have been still."""
        return least_s(self._own_still_s, self._staying())

    def _still_here_s(self) -> float:
        if not self._host.is_idle() or self._host.waits_for():
            return 0.0
        return self._stillness.own_s(self._staying(), self._host.now)

    def _staying(self, but: Peer | None = None) -> list[Peer]:
        return [peer for peer in self._peers.values() if peer is not but and not self._host.may_go(peer)]

    def _look_after(self, peer: Peer) -> None:
        """Beat, resend, and notice silence, on one edge."""
        session, now, may_go = peer.session, self._host.now, self._host.may_go(peer)
        if not peer.joined or (may_go and not peer.dialled):
            return
        if not may_go and (session.is_lost(now) or self._is_gone(peer)):
            self._host.lose(peer)
            return
        if (
            not may_go
            and peer.dialled
            and session.conn
            and session.silent_s(now) > session.patience.timeout_s / 2
        ):
            self._host.drop(session.conn, "silent; dialling anew")
            session.away()
            self._host.dialling.again(peer)
            return
        for number, sent in session.overdue(now):
            self._host.emit(Write(session.conn, number, sent.message, sent.payload, sent.priority))
        if session.wants_beat(now):
            is_above = peer.dialled and not peer.is_beside
            still_s = least_s(self._own_still_s, self._staying(peer)) if is_above else self._own_still_s
            step = self._host.pace() if is_above else -1
            self._host.emit(
                Write(session.conn, 0, Beat(session.ack_watermark(now), session.sent, still_s, step))
            )

    def _is_gone(self, peer: Peer) -> bool:
        """Whether it counts as lost already, since no other connection follows the last."""
        if peer.is_beside and self._host.has_overlay:
            return (
                not peer.session.is_open and self._host.now - peer.away_at > peer.session.patience.heartbeat_s
            )
        return self._host.is_gone(peer)

    def loss_of(self, peer: Peer) -> NodeLost:
        """Whoever stood still itself, and has heard nothing since, does not blame the others."""
        if (
            peer.session.heard <= self._woke + peer.session.patience.heartbeat_s
        ):  # what lay in the socket is old
            stood = f"it did not run for {self._slept_s:.0f} s (suspended, or no processor time)"
            return NodeLost(
                self._host.identity.name, f"{stood}, and then heard nothing from {peer.name}", may_return=True
            )
        if peer.session.breaks_always:
            often = f"{peer.session.fruitless} connections in a row with {self._host.identity.name} broke"
            return NodeLost(
                peer.name, f"{often} before one message arrived: check the link between them", may_return=True
            )
        silent = (
            f"{self._host.identity.name} has heard nothing from it for {peer.session.patience.timeout_s:g} s"
        )
        return NodeLost(
            peer.name, f"{silent}: it has ended or hangs, or the link between them is cut", may_return=True
        )

    def _wait_for_the_missing(self) -> None:
        """Before the run can start: say for whom it waits, soon and every `stall_s`, and give up after `start_s`."""
        missing, now, limits = self._host.waits_for(), self._host.now, self._host.limits
        waited_s = now - self._started
        me = self._host.identity.name
        troubles = {name: peer.trouble for name, peer in self._peers.items()}
        troubles |= dict.fromkeys(
            self._former, f"it belonged to the run of an earlier {me}, and has ended with it"
        )
        is_told = self._waited_aloud > self._started or any(map(troubles.get, missing))
        every_s = limits.stall_s if is_told else LATE_S  # soon: it may have gone before it ever came
        if not missing or waited_s <= min(limits.start_s, every_s):
            return
        whom = ", ".join(f"{name} ({why})" if (why := troubles.get(name)) else name for name in missing)
        if waited_s > limits.start_s and self._former:
            raise NodeLost(me, f"{RESTARTED}; it waited {limits.start_s:.0f} s for {whom} to join")
        if waited_s > limits.start_s:
            raise WaitTimeout(
                f"{me} waited {limits.start_s:.0f} s for {whom} to join; start them, or raise limits.start_s"
            )
        if now - self._waited_aloud >= every_s:
            self._waited_aloud = now
            self._host.note("waiting", "warning", whom=whom, seconds=waited_s)
