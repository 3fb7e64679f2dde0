"""How a server ends: once everybody who takes part has left, those below have gone, and those above know."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

from geomx.errors import GeomxError, NodeLost
from geomx.node.members.attendance import Attendance
from geomx.node.peers.peer import Limits, Peer
from geomx.node.round_sink import RoundSink
from geomx.rounds.losses import Losses
from geomx.rounds.membership import Members
from geomx.wire.roster_messages import Message, Retire


class EndingHost(Protocol):
    """The server that ends."""

    members: Members
    attendance: Attendance
    sink: RoundSink
    limits: Limits
    stopped: bool

    @property
    def now(self) -> float: ...
    def peer(self, name: str) -> Peer | None: ...
    def send(self, peer: Peer, message: Message, payload: Any = None, priority: int = 0) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: Any) -> None: ...
    def after(self, delay_s: float, key: str, then: Any) -> None: ...
    def stop(self, error: GeomxError | None = None, in_order: bool = True) -> None: ...


class Ending:
    """See the module's text. `children`: by name, the workers below each; `parents`: whom the server dials.

    `beside`: other shards, where they may be started again.
    """

    def __init__(
        self,
        host: EndingHost,
        children: Mapping[str, tuple[str, ...]],
        parents: Iterable[str],
        losses: Losses,
        beside: Iterable[str] = (),
    ) -> None:
        self._beside = tuple(beside)
        self._host, self._children, self._parents, self._losses = host, children, tuple(parents), losses
        self._is_over = False  # the run has ended without anybody of this server's
        self._retires = False  # it is to leave
        self._hands_over = False  # what those below have given up as they left goes up before the end
        self._since = 0.0  # when all had left

    @property
    def is_due(self) -> bool:
        """Whether everybody who takes part has left; where others go on, whoever is out may come back."""
        host = self._host
        goes_on = not (self._retires or host.sink.is_top or host.attendance.nears_its_end())
        return (host.members.all_left and not (goes_on and host.members.out)) or self._is_over

    def opened(self, peer: Peer, first: bool) -> None:
        """A child's session is open, `first` with this incarnation: it hears of what it has missed."""
        if first and self._retires and peer.name in self._children:
            self._host.send(peer, Retire())
        if self._since:
            self._host.attendance.over()

    def left(self, early: bool) -> None:
        """Members have left. `early`: they were asked to, so others go on."""
        self._hands_over = early

    def over(self) -> None:
        """The run has ended without anybody of this server's."""
        self._is_over = True
        self.look()

    def retire(self) -> None:
        """Leave in order: all below first. Whoever has not within `limits.stop_s` is lost with this server."""
        if self._retires:
            return
        self._retires = True
        self._host.note("retires", "info")
        for child in self._peers(self._children):
            self._host.send(child, Retire())
        self._host.after(self._host.limits.stop_s, "retire", self._retire_late)

    def look(self) -> None:
        """End, if it is time."""
        host = self._host
        if not self.is_due or host.stopped:
            return
        if not self._since:
            self._since = host.now
            host.attendance.over()
        is_late = host.now - self._since > host.limits.stop_s
        if any(map(self._awaits, self._peers(self._children))) or not (is_late or not host.attendance.absent):
            return
        if self._hands_over:
            self._hands_over = False
            host.sink.hand_over()
        unseen = [name for name in self._beside if host.peer(name) is None]  # by this process
        if any(map(self._may_come, self._peers(self._beside))) or not (is_late or not unseen):
            return
        if not any(map(self._awaits, self._peers(self._parents))):
            host.stop(in_order=host.sink.above.quiet)

    def _may_come(self, peer: Peer) -> bool:
        """Whether a shard beside this one is being started again: those below need all shards to leave in order.

        The first ends last.
        """
        if peer.has_gone or peer.session.is_open:
            return not (peer.has_gone or peer.dialled)
        return self._host.now - peer.away_at <= self._losses.awaited_s

    def may_go(self, peer: Peer) -> bool:
        """Whether a peer's silence is no loss, because it has left."""
        members = self._host.members
        if (leaves := self._children.get(peer.name)) is not None:
            return members.has_left(leaves)
        return self._is_over or (self.is_due and (self._host.sink.above.quiet or not peer.dialled))

    def _awaits(self, peer: Peer) -> bool:
        """Whether the end waits for a peer: to know, to hang up, or to come back for its leave's acknowledgement."""
        host = self._host
        if peer.dialled and (host.sink.above.quiet or self._is_over):
            return False
        if peer.session.is_open:
            return host.now - self._since <= host.limits.stop_s
        if peer.dialled and self._losses.on_loss == "wait":
            return True  # it waits for us likewise; `Server.on_lost` bounds that
        return not (peer.has_gone or peer.session.is_lost(host.now))

    def _retire_late(self) -> None:
        members, stop_s = self._host.members, self._host.limits.stop_s
        present = members.present(members.order)
        why = f"it did not leave within {stop_s:g} s (limits.stop_s)"
        late = next((NodeLost(name, why) for name in members.order if name in present), None)
        self._host.stop(late, in_order=self._host.sink.above.quiet)

    def _peers(self, names: Iterable[str]) -> list[Peer]:
        return [peer for peer in map(self._host.peer, names) if peer is not None]
