"""Flows on the simulated network: the engines of `geomx.wire.flow`, with datagrams on seeded links that lose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf
from typing import Any

from geomx.channels.sealing import ENVELOPE_BYTES
from geomx.errors import ProtocolError
from geomx.node.contract import Write
from geomx.simulate.network import Clock, SimulatedLink
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.counts import FlowCounts
from geomx.wire.flow.ends import FlowEnd, OnConnection, Outgoing
from geomx.wire.flow.inbox import Delivered
from geomx.wire.flow.outbox import BlockOut, FlowTerms
from geomx.wire.flow.path import SIZES
from geomx.wire.flow_messages import FlowBroken
from geomx.wire.messages import Carried
from geomx.wire.roster_messages import Message

MOST_AT_ONCE = 1 << 16
PRIORITY = 0  # as on the wire, where nothing waits for more than the chunk before it


class SimulatedEnd:
    """One end of a connection's flow. `link`: to the other end.

    `admit`: that of its node. `deliver`: gives the node a message that has closed. `send`: writes one on the
    connection. `broken`: hears what the peer could not mean, `stuck`: that it is to be connected to again. `tell`:
    hears whether datagrams pass.
    """

    def __init__(
        self,
        clock: Clock,
        link: SimulatedLink,
        terms: FlowTerms,
        *,
        dials: bool,
        admit: Callable[[Message], None],
        deliver: Callable[[Delivered], None],
        send: Callable[[OnConnection], None],
        broken: Callable[[ProtocolError], None],
        stuck: Callable[[str], None],
        tell: Callable[[bool], None],
    ) -> None:
        self._clock, self._link = clock, link
        self._deliver, self._send, self._broken, self._tell = deliver, send, broken, tell
        self._stuck = stuck
        self.end = FlowEnd(Congestion(SIZES[0] + ENVELOPE_BYTES), terms, admit, clock.now, dials=dials)
        self._peer: SimulatedEnd
        self._due_at = inf
        self.heard_at = -inf  # when something came on the connection last
        self.is_alive = True

    def meet(self, peer: SimulatedEnd) -> None:
        """The other end stands as well."""
        self._peer = peer
        self.run()

    @property
    def counts(self) -> FlowCounts:
        """What it has counted."""
        return self.end.counts

    def write(self, write: Write) -> bool:
        """Take a message; False: the connection has to carry all of it."""
        if not isinstance(write.message, Carried):
            return False
        data: Any = [BlockOut(b.start, b.stop, _view(b.payload), level) for b, level in write.blocks]
        if not data and write.payload is not None:
            data = _view(write.payload)
        whole = OnConnection(write.number, write.message, write.payload, write.priority)
        if not self.end.write(Outgoing(whole, data), self._clock.now):
            return False
        self.run()
        return True

    def arrived_whole(self, number: int, message: Message) -> bool:
        """A message has come on the connection; False: it is not for the flow."""
        if isinstance(message, FlowBroken):
            self._guarded(lambda: self.end.broken(message))
        elif isinstance(message, Carried) and message.beside is not None:
            self._guarded(lambda: self.end.announced(number, message, self._clock.now))
            self.run()
        else:
            return False
        return True

    def run(self) -> None:
        """Do what is due now, and come again when something is."""
        if not self.is_alive:
            return
        now = self._clock.now
        why = self.end.why_stuck(now, self.heard_at)
        if why:
            self._stuck(why)
            return
        try:
            deliveries = self.end.closed(now)
        except ProtocolError as error:
            self._broken(error)
            return
        for delivery in deliveries:
            self._deliver(delivery)
        for number, body in self.end.datagrams(now, ENVELOPE_BYTES, MOST_AT_ONCE):
            arrived = partial(self._peer.arrived, number, body)
            self._link.put(len(body) + ENVELOPE_BYTES, PRIORITY, arrived, surely=False)
        for message in self.end.to_write(now, self.heard_at):
            self._send(message)
        passes = self.end.news(now)
        if passes is not None:
            self._tell(passes)
        due_at = self.end.next_at()
        if due_at < self._due_at:
            self._due_at = due_at
            self._clock.at(due_at, partial(self._wake, due_at))

    def _wake(self, due_at: float) -> None:
        if due_at == self._due_at:  # else something was due before
            self._due_at = inf
            self.run()

    def arrived(self, number: int, body: bytes) -> None:
        """A datagram has come."""
        if self.is_alive:
            self._guarded(lambda: self.end.received(number, body, self._clock.now))
            self.run()

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ProtocolError as error:
            self._broken(error)


def _view(payload: Any) -> memoryview:
    return memoryview(payload.numpy())
