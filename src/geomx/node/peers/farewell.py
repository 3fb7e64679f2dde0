"""The last thing that a node does which cannot go on: it tells those who cannot be told yet.

Whoever is connected has been told. Others may still join, or come back to an edge that was cut: they would find nobody,
and name this node for what another has done. So it goes on greeting, and dialling, for `limits.stop_s`, and each
that it meets hears what has happened. Nothing else happens any more; what a greeting brings up closes that connection.

A node whose own the fault is ends at once: to be named is all that is due. So does one that has waited for those very
nodes in vain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol

from geomx.errors import Fenced, GeomxError, OutOfMemory, WaitTimeout
from geomx.node.contract import Called, Closed, Dial, Effect, Event, Fired, Opened, Received, Timer, Write
from geomx.node.peers.handshake import Handshake
from geomx.node.peers.peer import LAST_REDIAL_S, Identity, Limits, Peer
from geomx.wire.messages import Failure


class FarewellHost(Protocol):
    """The node around it."""

    identity: Identity
    limits: Limits

    @property
    def now(self) -> float: ...
    def emit(self, effect: Effect) -> None: ...
    def drop(self, conn: int, reason: str) -> None: ...
    def stop(self, error: GeomxError | None = None) -> None: ...
    def peer(self, name: str) -> Peer | None: ...


class Farewell:
    """Of a node that has failed with `error`. `failure`: what is told; `late`: whom, if it is worth it.

    `tick_s`: how often it looks whether its time is over.
    """

    def __init__(
        self,
        host: FarewellHost,
        handshake: Handshake,
        error: GeomxError,
        failure: Failure,
        late: Iterable[str],
        tick_s: float,
    ) -> None:
        self._host = host
        self._handshake = handshake
        self._error = error
        self._failure = failure
        self._late = set(late) if _is_worth_telling(host.identity.name, error) else set[str]()
        self._tick_s = tick_s
        self._until = host.now + host.limits.stop_s
        self._end_if_over()

    def handle(self, event: Event) -> None:
        """React to one event, in place of the node."""
        match event:
            case Opened():
                self._on_opened(event)
            case Received():
                self._on_received(event)
            case Closed():
                self._handshake.forget(event.conn)
                if event.peer in self._late:
                    self._host.emit(Timer(f"dial {event.peer}", LAST_REDIAL_S))
            case Fired(key="tick"):
                self._handshake.tick()
                self._host.emit(Timer("tick", self._tick_s))
            case Fired() if event.key.startswith("dial "):
                self._host.emit(Dial(event.key.removeprefix("dial ")))
            case Called(method="fail" | "retire"):
                self._late.clear()
        self._end_if_over()

    def tell(self, conn: int, name: str) -> None:
        """Somebody who belongs to the run has come."""
        self._late.discard(name)
        self._host.emit(Write(conn, 0, self._failure))
        self._host.drop(conn, str(self._error))

    def _on_opened(self, event: Opened) -> None:
        if not event.peer:
            self._handshake.accepted(event)
        elif (peer := self._host.peer(event.peer)) is not None:
            self._handshake.dialled(event, peer)

    def _on_received(self, event: Received) -> None:
        try:
            self._handshake.received(event.conn, event.message)
        except GeomxError as error:
            self._host.drop(event.conn, str(error))

    def _end_if_over(self) -> None:
        if not self._late or self._host.now >= self._until:
            self._host.stop(self._error)


def _is_worth_telling(me: str, error: GeomxError) -> bool:
    """Whether those who come when node `me` has failed should hear of something else than of `me`."""
    at_once = WaitTimeout | OutOfMemory | Fenced
    return not isinstance(error, at_once) and getattr(error, "node", "") != me
