"""What a shard has where other servers have parents: nobody above, and beside it the other shards.

Shards talk with each other about what concerns all slices: the norm for `clip_norm`, and who takes part. The others
dial the first shard, and send to it alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from geomx.errors import ProtocolError
from geomx.node.durable.journal import Journal
from geomx.node.members.attendance import Attendance
from geomx.node.members.roster_keeper import RosterKeeper
from geomx.node.members.whole_turns import WholeTurns
from geomx.node.overlay.conductor import Conductor
from geomx.node.peers.peer import Peer
from geomx.node.requests import Asked
from geomx.node.rows.row_servers import RowServers
from geomx.node.slices.clipping import Clipping
from geomx.rounds.losses import Losses
from geomx.rounds.membership import Members
from geomx.wire.copy_messages import Begun
from geomx.wire.messages import (
    Calling,
    Hyperparameters,
    Norms,
    Sampled,
    Scale,
    Stepped,
    payload_size,
)
from geomx.wire.overlay_messages import Rates, Table, Use
from geomx.wire.request_messages import Told
from geomx.wire.roster_messages import Asks, Close, Complete, Held, Hold, Lost, Message, Roster

MOST_KEPT = 64  # rosters


class Checked(Protocol):
    """Its log."""

    def check(self) -> None: ...


class Shard(Protocol):
    """The server that is one."""

    name: str
    members: Members
    attendance: Attendance
    journal: Journal
    conductor: Conductor | None

    @property
    def log(self) -> Checked: ...

    def has_begun(self) -> bool: ...
    def look(self) -> None: ...
    def may_close(self) -> bool: ...
    def last_closed(self, cohort: str) -> int: ...
    def promise(self, cohort: str, turn: int) -> None: ...


class Top:
    """See the module's text.

    `hyper`: takes hyper-parameters; `send(shard, message)`; `shards`: all of them, the first first; `asked`: answers
    what workers ask this shard, `row_servers` passes on what they ask others.
    """

    quiet = True

    def __init__(
        self,
        server: Shard,
        hyper: Callable[[bytes, Hyperparameters], None],
        clipping: Clipping,
        losses: Losses,
        send: Callable[[str, Message], None],
        shards: tuple[str, ...],
        row_servers: RowServers,
        asked: Asked,
    ) -> None:
        lead = "" if server.name == shards[0] else shards[0]
        others = () if lead else shards[1:]
        self._server, self.hyper, self._clipping = server, hyper, clipping
        self._send, self._others, self._lead = send, others, lead
        self.asked, self.ask = asked, row_servers.ask
        self.row_servers, self.others_take_part, self.held_up = (
            row_servers,
            row_servers.changed,
            asked.held_up,
        )
        self._decided: dict[int, Roster] = {}  # the newest
        self.whole = WholeTurns(
            server.name, shards, self._promise, self._tell_behind, server.attendance.named, server.may_close
        )
        self._keeper = RosterKeeper(
            server.members, losses, others, server.attendance, send, self._publish, server.has_begun
        )

    def on_message(self, peer: Peer, message: Message, payload: Any) -> None:
        """From another shard."""
        if isinstance(message, Begun):
            self._server.log.check()
        elif isinstance(message, Table | Use | Rates) and self._server.conductor is not None:
            self._server.conductor.on_message(peer.name, message)
        elif isinstance(message, Norms | Scale):
            self._clipping.message(message)
        elif isinstance(message, Lost | Asks) and not self._lead:
            self._keeper.told(message)
        elif isinstance(message, Held) and not self._lead:
            self._keeper.answered(peer.name, message)
        elif isinstance(message, Hold) and self._lead:
            self._tell_behind(self._lead, self._server.attendance.held(message.number, message.nodes))
        elif isinstance(message, Complete) and not self._lead:
            self.whole.complete(peer.name, message, self._server.last_closed(message.cohort))
        elif isinstance(message, Close) and self._lead:
            self._server.attendance.named(message.cohort, message.turn)
        elif isinstance(message, Told) and self._lead:
            self.row_servers.told(message)
        elif isinstance(message, Roster) and self._lead:
            if message.number > self._server.attendance.roster.number:
                self._server.journal.write(message)
            self._server.attendance.told(message)
        else:
            raise ProtocolError(f"{type(message).__name__} was sent to a shard beside it")

    def check_payload(self, peer: Peer, message: Message) -> None:
        if payload_size(message):
            raise ProtocolError(f"{type(message).__name__} announces a payload to a shard beside it")

    def for_first_shard(self, message: Stepped | Sampled | Lost | Asks) -> None:
        if isinstance(message, Stepped | Sampled):
            raise ProtocolError(f"{message.worker} tells {type(message).__name__} where nobody asks for it")
        if self._lead:
            self._tell_behind(self._lead, message)
        else:
            self._keeper.told(message)

    def _tell_behind(self, shard: str, message: Message) -> None:
        """Tell another shard where this one stands, once that is in the log."""
        self._server.journal.behind(partial(self._send, shard, message))

    def _promise(self, message: Complete) -> None:
        self._server.promise(message.cohort, message.turn)
        self._tell_behind(self._lead, message)

    def at_barrier(self, message: Calling) -> None:
        """Nobody above needs to know."""

    def leave(self, turns: dict[str, int], origins: tuple[str, ...], early: bool = False) -> None:
        """Nobody above needs to know."""

    def renewed(self, shard: str) -> None:
        """Another shard was started again, or there for the first time: it hears what it may have missed."""
        self.whole.renewed()
        self._clipping.renewed()
        if self._lead:
            self._server.attendance.tells_again()
        else:
            self._keeper.renewed(shard)
            for roster in (*self._decided.values(), self._server.attendance.roster):
                self._send(shard, roster)
            self._send(shard, self.row_servers.standing())
        self._server.look()

    def replay(self, roster: Roster) -> None:
        """This was decided before."""
        self._server.journal.write(roster)
        self._keep(roster)
        self._keeper.resume(roster)
        self._server.attendance.told(roster)

    @property
    def rosters(self) -> tuple[Roster, ...]:
        """The newest, of which there are some."""
        newest = self._server.attendance.roster
        return tuple(self._decided.values()) or (newest,) * (newest.number > 0)

    @property
    def settled(self) -> dict[str, int]:
        """See `RosterKeeper`."""
        return self._keeper.settled

    def put_back(self, rosters: Sequence[Roster], settled: Mapping[str, int]) -> None:
        """The inverse of `rosters` and `settled`."""
        for roster in rosters:
            self._keep(roster)
        if rosters:
            self._keeper.resume(rosters[-1], settled)

    def _publish(self, roster: Roster, then: Callable[[], None]) -> None:
        self._server.journal.write(roster)
        self._server.journal.behind(partial(self._tell, roster, then))

    def _keep(self, roster: Roster) -> None:
        self._decided[roster.number] = roster
        if len(self._decided) > MOST_KEPT:
            del self._decided[next(iter(self._decided))]

    def _tell(self, roster: Roster, then: Callable[[], None]) -> None:
        self._keep(roster)
        for shard in self._others:
            self._send(shard, roster)
        self._server.attendance.told(roster)
        then()
