"""What stands between simulated nodes: links, and connections on them with their flows.

A connection is a pair of numbers, one at each end; what is written at one end crosses the link between the two nodes,
and arrives at the other if both ends still stand. `network.py` says what a link does to it.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import count
from typing import Any, Protocol

import torch

from geomx.errors import GeomxError, ProtocolError
from geomx.node.contract import Closed, Effect, Event, Failed, Node, Opened, OpenFlow, Received, Write
from geomx.node.path_news import PathNews
from geomx.simulate.flows import SimulatedEnd
from geomx.simulate.network import Clock, Network, SimulatedLink
from geomx.simulate.programs import Program
from geomx.simulate.stores import SimulatedLog
from geomx.simulate.traffic import Traffic
from geomx.wire.flow.ends import WHY, OnConnection
from geomx.wire.flow.inbox import Blocks, Delivered
from geomx.wire.flow.outbox import FlowTerms
from geomx.wire.messages import encode_head
from geomx.wire.proof import NONCE_BYTES
from geomx.wire.roster_messages import Message

HEADER_BYTES = 96  # what a message's frame and head take, about
_GOODBYE = Message()  # the end of a connection, as it crosses a link


@dataclass(slots=True)
class SimulatedConnection:
    """Both ends' view of one connection: (node, its connection number)."""

    ends: dict[str, tuple[str, int]]  # node -> (other node, the other's number)
    alive: bool = True
    flow: dict[str, SimulatedEnd] = field(default_factory=dict)  # by node, once it is open

    def end(self) -> None:
        """Nothing of it arrives any more."""
        self.alive = False
        self.end_flow()

    def end_flow(self) -> None:
        """No more datagrams."""
        for end in self.flow.values():
            end.is_alive = False


@dataclass(slots=True)
class Host:
    """A node, and what the simulator keeps for it."""

    node: Node
    connections: dict[int, SimulatedConnection] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    listener: Callable[[Any], None] | None = None
    program: Program | None = None
    log: SimulatedLog | None = None
    starts_at: float = 0.0
    paths: PathNews = field(default_factory=PathNews)
    paused_until: float = 0.0
    busy_until: float = 0.0  # its processor works on jobs, one after the other
    stopped: bool = False
    error: GeomxError | None = None


class Simulation(Clock, Protocol):
    """The driver around it."""

    hosts: dict[str, Host]

    def deliver(self, host: Host, event: Event) -> None:
        """Hand a node an event."""

    def carry_out(self, host: Host, effects: Iterable[Effect]) -> None:
        """Do what a node wants."""


class Connections:
    """Of one simulation.

    `network`: of links that nothing else is said of; `traffic`: between the nodes of a graph; `chunk_bytes`: see
    `SimulatedLink`.
    """

    def __init__(
        self, simulation: Simulation, seed: int, network: Network, traffic: Traffic, chunk_bytes: int
    ) -> None:
        self._simulation = simulation
        self._seed = seed
        self._network = network
        self._traffic = traffic
        self._chunk_bytes = chunk_bytes
        self._numbers = count(1)
        self.links: dict[tuple[str, str], SimulatedLink] = {}
        self.networks: dict[tuple[str, str], Network] = {}
        self.flows: list[tuple[str, str, SimulatedEnd]] = []  # all that there were: whose, and to whom

    def _plan(self, delay_s: float, action: Callable[[], None]) -> None:
        self._simulation.at(self._simulation.now + delay_s, action)

    def link(self, source: str, target: str) -> SimulatedLink:
        """The link from one node to another."""
        link = self.links.get((source, target))
        if link is None:
            chance, graph = random.Random(f"{self._seed} {source} {target}"), self._traffic.graph
            if graph.holds(source, target):
                network = self.networks.get((source, target)) or graph.network(source, target)
                link = self._traffic.flow(source, target, network, chance, self._chunk_bytes)
            else:
                network = self.networks.get((source, target), self._network)
                link = SimulatedLink(network, self._simulation, chance, self._chunk_bytes)
            self.links[source, target] = link
        return link

    def dial(self, host: Host, peer: str) -> None:
        """A node wants a connection."""
        link = self.link(host.node.name, peer)
        self._plan(max(2e-3 * link.network.delay_ms, 1e-6), lambda: self._connect(host, peer))

    def _connect(self, host: Host, peer: str) -> None:
        target = self._simulation.hosts.get(peer)
        absent = target is None or target.stopped or target.starts_at > self._simulation.now
        link = self.link(host.node.name, peer)
        if target is None or absent or link.network.cut or link.silent_until > self._simulation.now:
            self._simulation.deliver(host, Closed(0, peer, "unreachable"))
            return
        mine, theirs = next(self._numbers), next(self._numbers)
        connection = SimulatedConnection({host.node.name: (peer, theirs), peer: (host.node.name, mine)})
        host.connections[mine] = target.connections[theirs] = connection
        self._simulation.deliver(target, Opened(theirs, "", theirs.to_bytes(NONCE_BYTES)))
        self._simulation.deliver(host, Opened(mine, peer, mine.to_bytes(NONCE_BYTES)))

    def write(self, host: Host, write: Write) -> None:
        """A node writes a message on a connection; its payload goes in datagrams where they pass."""
        connection = host.connections.get(write.conn)
        end = None if connection is None else connection.flow.get(host.node.name)
        if end is None or not end.write(write):
            self._put(host, write)

    def _put(self, host: Host, write: Write) -> None:
        """Onto the connection itself."""
        connection = host.connections.get(write.conn)
        if connection is None or not connection.alive:
            return
        target, number = connection.ends[host.node.name]
        encode_head(write.message)  # it has to fit
        size = HEADER_BYTES + (0 if write.payload is None else write.payload.nbytes)
        link = self.link(host.node.name, target)
        surely = write.message is _GOODBYE or link.network.keeps_streams
        link.put(size, write.priority, lambda: self._arrive(connection, target, number, write), surely)

    def _arrive(self, connection: SimulatedConnection, target: str, number: int, write: Write) -> None:
        host = self._simulation.hosts[target]
        if not connection.alive or host.connections.get(number) is not connection:
            return
        if write.message is _GOODBYE:
            self._part(host, number, connection)
            return
        end = connection.flow.get(target)
        if end is not None:
            end.heard_at = self._simulation.now
        try:
            host.node.admit(number, write.message)
        except GeomxError as error:
            lossy = not self._network.keeps_streams and (self._network.reorder or self._network.loss)
            if not lossy:  # a stream in order never brings a message too early
                self.break_(connection, str(error))
            return
        if end is None or not end.arrived_whole(write.number, write.message):
            self._simulation.deliver(host, Received(number, write.number, write.message, _own(write.payload)))

    def open_flow(self, host: Host, effect: OpenFlow) -> None:
        """Whoever dials has heard last that the other end is known."""
        connection = host.connections.get(effect.conn)
        if connection is None or not connection.alive or connection.flow:
            return
        target, number = connection.ends[host.node.name]
        if not self._dialled(host, connection):
            return
        mine = self._flow_end(host, effect.conn, connection, effect.terms, dials=True)
        theirs = self._flow_end(self._simulation.hosts[target], number, connection, effect.terms, dials=False)
        connection.flow = {host.node.name: mine, target: theirs}
        theirs.meet(mine)
        mine.meet(theirs)
        self.flows += [(host.node.name, target, mine), (target, host.node.name, theirs)]

    def _flow_end(
        self, host: Host, number: int, connection: SimulatedConnection, terms: FlowTerms, *, dials: bool
    ) -> SimulatedEnd:
        """A node's end of a connection's flow; once it has hung up, it hears nothing any more."""
        peer, _ = connection.ends[host.node.name]

        def is_up() -> bool:
            return connection.alive and host.connections.get(number) is connection

        def admit(message: Message) -> None:
            if is_up():
                host.node.admit(number, message)

        def deliver(delivery: Delivered) -> None:
            if is_up():
                load, message, payload = delivery
                whole = (
                    payload if isinstance(payload, Blocks) else torch.frombuffer(payload, dtype=torch.uint8)
                )
                self._simulation.deliver(host, Received(number, load, message, whole))

        def send(message: OnConnection) -> None:
            self._put(host, Write(number, *message))

        def broken(error: ProtocolError) -> None:
            self._simulation.deliver(host, Failed(error, number))
            if is_up():  # else the node has hung up, and its last words are on their way
                self.break_(connection, str(error))

        def tell(passes: bool) -> None:
            note = host.paths.about(peer, passes, WHY[passes])
            self._simulation.carry_out(host, [] if note is None else [note])

        return SimulatedEnd(
            self._simulation,
            self.link(host.node.name, peer),
            terms,
            dials=dials,
            admit=admit,
            deliver=deliver,
            send=send,
            broken=broken,
            stuck=functools.partial(self.break_, connection),
            tell=tell,
        )

    def hang_up(self, host: Host, number: int) -> None:
        """Close one end: what is urgent and was written before still arrives, then the other end sees it close."""
        self.write(host, Write(number, 0, _GOODBYE))
        host.connections.pop(number, None)

    def _part(self, host: Host, number: int, connection: SimulatedConnection) -> None:
        del host.connections[number]
        connection.end_flow()
        self._simulation.deliver(
            host, Closed(number, self._dialled(host, connection), "closed by the other side")
        )

    def break_(self, connection: SimulatedConnection, reason: str) -> None:
        """Close both ends at once; what was under way is lost."""
        connection.end()
        for name in connection.ends:
            host = self._simulation.hosts[name]
            for number in [n for n, other in host.connections.items() if other is connection]:
                del host.connections[number]
                closed = Closed(number, self._dialled(host, connection), reason)
                self._plan(0.0, functools.partial(self._simulation.deliver, host, closed))

    def _dialled(self, host: Host, connection: SimulatedConnection) -> str:
        """The other end's name, for whoever dialled (the first of the two ends)."""
        first = next(iter(connection.ends))
        return connection.ends[first][0] if host.node.name == first else ""


def _own(payload: Any) -> Any:
    """A receiver owns what it got: the sender may need its own copy for a resend."""
    return payload if payload is None or payload.is_meta else payload.clone()
