"""The channels `datagram` and `dgt`: TCP, and beside it payloads in datagrams, both ways.

Who listens has a UDP socket beside each TCP socket, at the same address and port number, and answers from the address
that was dialled. Who dials sends from a port of its own: nothing has to reach it that it has not asked for, and answers
go to wherever its newest datagram came from, so a NAT may give it another address at any time. Datagrams of a flow
begin only when both ends have proved who they are; where they do not pass, TCP carries everything
(`geomx.wire.flow.path`). `block_classes.py` says which blocks may be lost.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from functools import partial
from math import inf
from typing import Any

import torch

from geomx.channels.block_classes import Alike, Dgt
from geomx.channels.connection import TcpConnection, view_of, views_of
from geomx.channels.contract import BlockClasses, Connection, ConnectionHandler, EdgeSettings
from geomx.channels.datagram_port import READS, Answers, DatagramListener, DatagramPort, open_ports
from geomx.channels.emulation.pacing import LinkPacer
from geomx.channels.sealing import ENVELOPE_BYTES, SALT_BYTES, Seal, seals
from geomx.channels.tcp import Tcp, split_address
from geomx.channels.udp import UdpSocket
from geomx.errors import ProtocolError
from geomx.wire.flow.congestion import Congestion
from geomx.wire.flow.counts import FlowCounts
from geomx.wire.flow.ends import WHY, FlowEnd, OnConnection, Outgoing
from geomx.wire.flow.inbox import Blocks, Delivered
from geomx.wire.flow.outbox import BlockOut, FlowTerms
from geomx.wire.flow.path import SIZES, State
from geomx.wire.flow_messages import FlowBroken, FlowOpen
from geomx.wire.messages import Carried
from geomx.wire.roster_messages import Message

NO_FLOW = FlowOpen(0, b"")  # whoever listens cannot receive datagrams
MOST_TOGETHER, LEAST_TOGETHER = 32, 2  # datagrams in a row before others have their turn
TRIES = 8  # of ports that TCP has free and another program has for datagrams
LEAST_WAIT_S, MOST_WAIT_S = 0.0005, 0.0125  # waking up costs more than what a datagram does


class DatagramConnection(TcpConnection):
    """A TCP connection with a flow beside it, once it is open; see `geomx.channels.contract.FlowConnection`."""

    def __init__(
        self,
        receiver: ConnectionHandler,
        chunk_bytes: int,
        pacer: LinkPacer | None,
        connected: Callable[[TcpConnection, Any], None],
        channel: Datagram,
        *,
        dials: bool,
    ) -> None:
        super().__init__(receiver, chunk_bytes, pacer, connected)
        self._channel = channel
        self._dials = dials
        self._secret: bytes | None = None  # None: the peer has not proved who it is
        self._terms = FlowTerms()
        self._out: Seal
        self._in: Seal
        self._end: FlowEnd | None = None
        self._congestion: Congestion
        self._counted = FlowCounts()  # of a flow that has ended
        self._udp: UdpSocket | None = None  # of whoever dials
        self._answers: Answers | None = None  # of whoever listens
        self._way: UdpSocket | Answers  # one of them, while there is a flow
        self._newest = -1
        self._timer: asyncio.Handle | None = None
        self._due_at = inf

    # -- for the session above ----------------------------------------------------------------------------------

    def open_flow(self, secret: bytes, terms: FlowTerms) -> None:
        """See `FlowConnection.open_flow`. Whoever listens says how the flow's datagrams are to be sealed."""
        self._secret, self._terms = secret, terms
        if self._dials or not (secret or self._channel.is_secured):
            return
        here = self._transport.get_extra_info("sockname")
        port = self._channel.port_of(here)
        if port is None:
            self.write(0, NO_FLOW, None, 0)
            return
        salt = secrets.token_bytes(SALT_BYTES)
        self._answers = self._way = Answers(port, self, here)
        self._in, self._out = seals(self._answers.flow, salt, secret)
        self._begin(0.0)
        self.write(0, FlowOpen(self._answers.flow, salt), None, 0)

    def _begin(self, pace_mbps: float) -> None:
        self._congestion = Congestion(SIZES[0] + ENVELOPE_BYTES, pace_mbps)
        admit = partial(self._receiver.admit, self)
        self._end = FlowEnd(self._congestion, self._terms, admit, time.monotonic(), dials=self._dials)

    def write(self, number: int, message: Message, payload: Any, priority: int) -> None:
        """Queue a message, see `Connection.write`; its payload goes in datagrams where they pass."""
        data = () if payload is None else view_of(payload)
        if not self._writes_beside(number, message, payload, priority, data):
            super().write(number, message, payload, priority)

    def write_blocks(
        self, number: int, message: Message, payload: Any, priority: int, blocks: Sequence[tuple[Any, int]]
    ) -> None:
        """See `FlowConnection.write_blocks`."""
        views = views_of(block.payload for block, _ in blocks)
        outs = [
            BlockOut(block.start, block.stop, view, level)
            for (block, level), view in zip(blocks, views, strict=True)
        ]
        if not self._writes_beside(number, message, payload, priority, outs):
            super().write(number, message, payload, priority)

    def _writes_beside(
        self,
        number: int,
        message: Message,
        payload: Any,
        priority: int,
        data: Sequence[BlockOut] | memoryview,
    ) -> bool:
        if self._end is None or not isinstance(message, Carried):
            return False
        whole = OnConnection(number, message, payload, priority)
        if not self._end.write(Outgoing(whole, data), time.monotonic()):
            return False
        self.run_flow()
        return True

    @property
    def flow_state(self) -> State:
        """Whether payloads can leave in datagrams."""
        return "waiting" if self._end is None else self._end.path.state

    @property
    def flow_counts(self) -> FlowCounts:
        """See `FlowConnection.flow_counts`."""
        return self._counted if self._end is None else self._end.counts

    # -- what comes on the connection ------------------------------------------------------------------------------

    def arrived_whole(self, number: int, message: Message, payload: Any) -> None:
        """A message has come on the connection. Raises `ProtocolError`."""
        if isinstance(message, FlowOpen):
            self._opened_by_peer(message)
        elif isinstance(message, FlowBroken):
            end = self._opened()
            self._judged(lambda: end.broken(message))
        elif isinstance(message, Carried) and message.beside is not None:
            end = self._opened()
            self._judged(lambda: end.announced(number, message, time.monotonic()))
            self.run_flow()
        else:
            super().arrived_whole(number, message, payload)

    def _opened(self) -> FlowEnd:
        if self._end is None:
            raise ProtocolError("a payload was announced beside the connection, where no flow is open")
        return self._end

    def _opened_by_peer(self, message: FlowOpen) -> None:
        if (
            self._secret is None
            or self._end is not None
            or not self._dials
            or (message != NO_FLOW and len(message.salt) != SALT_BYTES)
        ):
            raise ProtocolError("FlowOpen came where no flow can be opened")
        if not (self._secret or self._channel.is_secured):
            return
        if message == NO_FLOW:
            self._receiver.flow(self, False, "its UDP port cannot be used; its log says why")
            return
        try:
            self._udp = self._way = UdpSocket(self.socket.family)
            self._udp.connect(self._transport.get_extra_info("peername"))
        except OSError as error:
            why = f"this machine cannot send them ({error.strerror or error})"
            self._receiver.flow(self, False, why)
            return
        self._out, self._in = seals(message.flow, message.salt, self._secret)
        self._begin(self._channel.pace_mbps)
        self._loop.add_reader(self._udp, self._readable)
        self.run_flow()

    # -- datagrams ----------------------------------------------------------------------------------------------------

    def _readable(self) -> None:
        """For whoever dials."""
        assert self._udp is not None
        for datagram, _ in self._udp.receive(READS):
            self.arrived(datagram, None)
            if not self.is_open:
                return
        self.run_flow()

    def arrived(self, datagram: memoryview, address: Any) -> bool:
        """A datagram has come for this flow. Returns whether it is the peer's."""
        if self._end is None:
            return False
        opened = self._in.open(datagram)
        if opened is None:
            return False
        number, body = opened
        self.bytes_received += len(datagram)
        if number > self._newest:
            self._newest = number
            if self._answers is not None:
                self._answers.address = address
        end = self._end
        return self._judged(lambda: end.received(number, body, time.monotonic()))

    def _judged(self, act: Callable[[], None]) -> bool:
        """Whether the peer could have meant this.

        Only a member can have sealed what came: to connect again would not help, so the run ends, and names it.
        """
        try:
            act()
        except ProtocolError as error:
            self._receiver.broken(self, error)
            if self.is_open:
                self.fail(str(error))
            return False
        return True

    def run_flow(self) -> None:
        """Send what may leave now, hand on what has closed, and see to it that this is called again in time."""
        if self._end is None or not self.is_open:
            return
        end, now = self._end, time.monotonic()
        self._hand_on(end, now)
        if not self.is_open:
            return
        leaving = end.datagrams(now, ENVELOPE_BYTES, self._most_together(end))
        self._send([self._out.close(*each) for each in leaving], end)
        for message in end.to_write(now, self.heard_at):
            super().write(*message)
        passes = end.news(now)
        if passes is not None:
            self._receiver.flow(self, passes, WHY[passes])
        self._plan(end, now)

    def _most_together(self, end: FlowEnd) -> int:
        """How many payloads leave in a row: no more than the path carries while they are held back."""
        if not self._congestion.rate:
            return MOST_TOGETHER
        held_bytes = self._congestion.rate * _held_s(end)
        return min(max(int(held_bytes / SIZES[0]), LEAST_TOGETHER), MOST_TOGETHER)

    def _hand_on(self, end: FlowEnd, now: float) -> None:
        why = end.why_stuck(now, self.heard_at)
        if why:
            self.fail(why)
        else:
            self._judged(lambda: self._deliver(end.closed(now)))

    def _deliver(self, deliveries: list[Delivered]) -> None:
        for number, message, payload in deliveries:
            whole = payload if isinstance(payload, Blocks) else torch.frombuffer(payload, dtype=torch.uint8)
            self._receiver.received(self, number, message, whole)
            if not self.is_open:
                return

    def _send(self, datagrams: list[bytes], end: FlowEnd) -> None:
        if self._pacer is None and end.path.is_open:  # probes leave alone
            self.bytes_sent += sum(map(len, datagrams))
            self._way.send_together(datagrams)
        else:
            for datagram in datagrams:
                self._depart(datagram)

    def _depart(self, datagram: bytes) -> None:
        """A datagram leaves, through the emulated link if there is one."""
        self.bytes_sent += len(datagram)
        if self._pacer is None:
            self._put(datagram)
        else:
            self._pacer.offer(len(datagram), partial(self._put, datagram))

    def _put(self, datagram: bytes) -> None:
        """Into the socket; what it does not take is lost."""
        if self._end is not None:
            self._way.send(datagram)

    def _plan(self, end: FlowEnd, now: float) -> None:
        due_at = end.next_at()
        if self._timer is not None:
            if self._due_at == due_at:
                return
            self._timer.cancel()
        self._due_at = due_at
        if due_at == inf:
            self._timer = None
        elif due_at <= now:
            self._timer = self._loop.call_soon(self._due)
        else:
            self._timer = self._loop.call_later(max(due_at - now, _held_s(end)), self._due)

    def _due(self) -> None:
        self._timer = None
        self.run_flow()

    # -- the end ------------------------------------------------------------------------------------------------

    def ended(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._udp is not None:
            self._loop.remove_reader(self._udp)
            self._udp.close()
            self._udp = None
        if self._answers is not None:
            self._answers.close()
        self._counted, self._end = self.flow_counts, None


def _held_s(end: FlowEnd) -> float:
    """How long datagrams are held back, to leave together: a sixteenth of a round trip makes no queue."""
    return min(max(end.sender.round_trip_s / 16, LEAST_WAIT_S), MOST_WAIT_S)


class Datagram(Tcp):
    """TCP, with payloads in datagrams beside it. `classes`: which blocks may be lost. Raises `ConfigError`."""

    def __init__(self, edge: EdgeSettings, classes: BlockClasses) -> None:
        super().__init__(
            edge.link,
            chunk_bytes=edge.chunk_bytes,
            congestion=edge.congestion,
            pace_mbps=edge.pace_mbps,
            tls=edge.tls,
            seed=edge.seed,
        )
        self.classes = classes
        self.pace_mbps = edge.pace_mbps
        self.is_secured = edge.tls is not None
        self._ports: list[DatagramPort] = []  # of accepted connections, once it listens

    async def listen(
        self, address: str, receiver: ConnectionHandler, accepted: Callable[[Connection], None]
    ) -> DatagramListener:
        """See `Channel.listen`. Any free port is one that is free for datagrams, too."""
        for left in reversed(range(TRIES if split_address(address)[1] == 0 else 1)):
            listener = await super().listen(address, receiver, accepted)
            troubles: list[str] = []
            self._ports = open_ports(listener.names, troubles.append)
            door = DatagramListener(listener, self._ports)
            if not (troubles and left):
                break
            await door.close()
        for trouble in troubles:
            receiver.no_datagrams(trouble)
        return door

    def port_of(self, name: Any) -> DatagramPort | None:
        """Where datagrams come that are sent to this address of this machine; None: nowhere.

        Args:
            name: The address, as `getsockname` of an accepted connection gives it.
        """
        return next((port for port in self._ports if port.serves(name)), None)

    def new_connection(
        self,
        receiver: ConnectionHandler,
        chunk_bytes: int,
        pacer: LinkPacer | None,
        connected: Callable[[TcpConnection, Any], None],
        *,
        dials: bool,
    ) -> DatagramConnection:
        return DatagramConnection(receiver, chunk_bytes, pacer, connected, self, dials=dials)


def datagram(edge: EdgeSettings, *, deadline: float = 0.0, fec: float = 0.0) -> Datagram:
    """The channel `datagram` of a description.

    Args:
        edge: What the description says of the edges.
        deadline: How long lost blocks are sent again, in round trips behind a payload's end; 0: until they have come.
        fec: Parity pieces for each piece, up to 1, from which lost ones are rebuilt; 0: as many as the measured loss
            asks for, of what must arrive.

    Raises:
        ConfigError: A parameter is out of range.
    """
    return Datagram(edge, Alike(deadline, fec))


def dgt(
    edge: EdgeSettings,
    *,
    k: float = 0.8,
    k_least: float = 0.2,
    channels: int = 3,
    alpha: float = 0.3,
    adaptive: bool = True,
    rank: str = "contribution",
    drop: bool = False,
) -> Datagram:
    """The channel `dgt` of a description; see `geomx.channels.block_classes.Dgt` for its parameters.

    Raises:
        ConfigError: A parameter is out of range.
    """
    return Datagram(edge, Dgt(k, k_least, channels, alpha, adaptive, rank, drop, edge.seed))
