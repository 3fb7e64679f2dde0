"""Flows on the simulated network: the engines of `geomx.wire.flow`, with datagrams on seeded links that lose."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from math import inf

from geomx.errors import ProtocolError
from geomx.node.contract import Write
from geomx.simulate.network import Clock, SimulatedLink
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.counts import FlowCounts
from geomx.wire.flow.ends import ReceivingEnd, SendingEnd, Whole
from geomx.wire.flow.path import SIZES
from geomx.wire.flow.receiver import Delivery
from geomx.wire.flow.sender import BlockOut, FlowTerms
from geomx.wire.messages import Message, Push

ENVELOPE_BYTES = 54  # of a datagram: seal, UDP, IPv4
MOST_AT_ONCE = 1 << 16
PRIORITY = 0  # as on the wire, where nothing waits for more than the chunk before it


class SimulatedFlow:
    """Both ends of one connection's flow. `up`, `down`: the links; `passes()`: whether the connection stands.

    `deliver`: gives the listening node a message that has closed. `send`: writes one on the connection, whole;
    `broken`: says there which loads come so. `refuse`: ends the connection. `admit`: that of the listening node.
    `tell`: hears whether datagrams pass.
    """

    def __init__(
        self,
        clock: Clock,
        up: SimulatedLink,
        down: SimulatedLink,
        terms: FlowTerms,
        deliver: Callable[[Delivery], None],
        send: Callable[[Whole], None],
        broken: Callable[[int], None],
        refuse: Callable[[str], None],
        admit: Callable[[Message], None],
        tell: Callable[[bool], None],
    ) -> None:
        self._clock = clock
        self._up, self._down = up, down
        self._deliver, self._send, self._tell_broken, self._refuse = deliver, send, broken, refuse
        self._tell = tell
        self._sending = SendingEnd(Congestion(SIZES[0] + ENVELOPE_BYTES), terms, clock.now)
        self._receiving = ReceivingEnd(admit, terms.coding)
        self._due_at = inf
        self.is_alive = True
        self._run()

    @property
    def sending(self) -> SendingEnd:
        """The end that dialled."""
        return self._sending

    @property
    def counts(self) -> tuple[FlowCounts, FlowCounts]:
        """What the end that dialled, and the other one, have counted."""
        return self._sending.counts, self._receiving.counts

    def write(self, write: Write) -> Push | None:
        """Take a payload; returns the header for the connection, or None: that has to carry all of it."""
        assert isinstance(write.message, Push)
        blocks = [
            BlockOut(b.start, b.stop, memoryview(b.payload.numpy()), level) for b, level in write.blocks
        ]
        whole = Whole(write.number, write.message, write.payload, write.priority)
        header = self._sending.write(whole, blocks, self._clock.now)
        self._run()
        return header

    def announced(self, number: int, message: Push) -> None:
        """A header has come on the connection. Raises `ProtocolError`."""
        self._receiving.announced(number, message, self._clock.now)
        self._run()

    def broken(self, below: int) -> None:
        """What is open comes on the connection."""
        self._receiving.receiver.forget(below)

    def _run(self) -> None:
        """Do what is due now at both ends, and come again when something is."""
        if not self.is_alive:
            return
        now = self._clock.now
        for number, body in self._sending.datagrams(now, ENVELOPE_BYTES, MOST_AT_ONCE):
            self._travel(self._up, body, partial(self._came_up, number))
        wholes = self._sending.fallen_back(now, now)
        if wholes:
            self._tell_broken(self._sending.sender.next_load)
        for whole in wholes:
            self._send(whole)
        passes = self._sending.news()
        if passes is not None:
            self._tell(passes)
        self._answer(now)
        due_at = min(self._sending.next_at(), self._receiving.next_at())
        if due_at < self._due_at:
            self._due_at = due_at
            self._clock.at(due_at, self._wake)

    def _wake(self) -> None:
        self._due_at = inf
        self._run()

    def _answer(self, now: float) -> None:
        deliveries: list[Delivery] = []
        self._guarded(lambda: deliveries.extend(self._receiving.closed(now, now)))
        for delivery in deliveries:
            self._deliver(delivery)
        for body in self._receiving.bodies(now):
            self._travel(self._down, body, self._came_down)

    def _came_up(self, number: int, body: bytes) -> None:
        self._receiving.received(number, body, self._clock.now)

    def _came_down(self, body: bytes) -> None:
        self._sending.received(body, self._clock.now)

    def _travel(self, link: SimulatedLink, body: bytes, arrive: Callable[[bytes], None]) -> None:
        def arrived() -> None:
            if self.is_alive:
                self._guarded(lambda: arrive(body))
                self._run()

        link.put(len(body) + ENVELOPE_BYTES, PRIORITY, arrived, surely=False)

    def _guarded(self, act: Callable[[], None]) -> None:
        try:
            act()
        except ProtocolError as error:
            self._refuse(str(error))
