"""A server's log: what it writes, what it does when that is there, and what it goes on from. Most servers keep none."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

from geomx.errors import GeomxError, NodeLost
from geomx.node.contract import Began as HasBegun
from geomx.node.contract import Cut, Effect, Mark, Note, Persist
from geomx.node.durable.cut import CutHost, CutTimes, Cutting
from geomx.node.durable.replay import Replay, Replayed
from geomx.node.durable.replicas import Host as ReplicasHost
from geomx.node.durable.replicas import Replicas
from geomx.node.peers.peer import Handler, Peer
from geomx.rounds.gathering import Gathering
from geomx.wire.copy_messages import Begun

HAS_GONE = "it was started again without its log, which went with the store, or with the shard that had it"


class LoggedServer(ReplicasHost, Replayed, CutHost, Protocol):
    """The server whose log it is."""

    def muted(self, told: Callable[[Effect], bool]) -> AbstractContextManager[None]: ...
    def meets(self) -> None: ...
    def begins(self) -> None: ...


class ShardLog:
    """See the module's text.

    `times`: when to write the whole state; None: there is no log. `beside`: the shard in whose memory it is, and whose
    log is kept here; None: the driver writes it.
    """

    def __init__(
        self,
        server: LoggedServer,
        gathering: Gathering,
        replay: Replay,
        times: CutTimes | None,
        beside: tuple[str, str] | None,
    ) -> None:
        self._server, self._gathering, self._replay = server, gathering, replay
        above, state = server.sink.above, server.sink.state
        self._replicas = Replicas(server, self, *beside, above) if beside else None
        self.cutting = None if times is None or state is None else Cutting(server, state, gathering, times)

    # -- what comes to the server ---------------------------------------------------------------------------------

    @property
    def handler(self) -> Handler:
        """Of what other shards say."""
        return self._replicas or self._server.sink.above

    @property
    def is_awaited(self) -> bool:
        """Whether nobody below is to be let in: it is not known yet what was decided."""
        return self._replicas is not None and self._replicas.is_restoring

    def opened(self, peer: Peer, first: bool) -> None:
        """Another shard's session is open."""
        if self._replicas is not None:
            self._replicas.opened(peer, first)

    def met(self, peer: Peer) -> None:
        """Another shard is there for the first time, or again."""
        if self._server.journal.is_kept and max(self._gathering.all_closed().values(), default=0) > 0:
            self._server.send(peer, Begun())

    def check(self) -> None:
        """The workers have taken a step. Raises `NodeLost` where the log of that has gone."""
        if self._server.journal.is_kept and not self._server.reception.state.slices:
            raise NodeLost(self._server.name, HAS_GONE)

    def away(self) -> None:
        """A peer has gone, or was cut off."""
        if self._replicas is not None:
            self._replicas.look()

    def keeps(self, effect: Effect) -> bool:
        """Whether an effect is no business of the driver's."""
        if self._replicas is None or not isinstance(effect, Persist | Mark | Cut):
            return False
        self._replicas.keep(effect)
        return True

    def handled(self) -> None:
        """An event is over."""
        if self._replicas is not None:
            self._replicas.flush()

    def looks(self) -> None:
        """Something that was under way is done."""
        if self.cutting is not None:
            self.cutting.look()

    def tick(self) -> None:
        """See whether it is time for a cut."""
        if self.cutting is not None:
            self.cutting.tick()

    # -- what comes from whoever writes ---------------------------------------------------------------------------

    def persisted(self, number: int) -> None:
        """So many records are there."""
        self._server.journal.stored(number)
        self.looks()

    def cut_stored(self, error: GeomxError | None) -> None:
        """The whole state is, or could not be written."""
        if self.cutting is not None:
            self.cutting.stored(error)

    def cut_at_once(self) -> None:
        """Whoever has this log has lost it."""
        if self.cutting is not None:
            self.cutting.at_once()

    def restored(self, records: Iterable[tuple[bytes, Any]]) -> None:
        """Those before have left this."""
        with self._server.muted(_is_told_again):
            self._replay.all(records)
        self._server.begins()

    def is_known(self) -> None:
        """All is known that was decided: the shards that have come meanwhile are met."""
        self._server.meets()

    def promise(self, cohort: str, turn: int) -> None:
        """Another shard will count on it that this turn is complete here."""
        if self._server.journal.is_kept:
            for index, round_ in self._gathering.promise(cohort, turn).items():
                self._server.journal.promised(index, round_)


def _is_told_again(effect: Effect) -> bool:
    """Of what has happened before: the process before this one may have died with it on its lips."""
    if isinstance(effect, Note) and effect.name == "round":
        effect.fields["again"] = True
        return True
    return isinstance(effect, HasBegun)
