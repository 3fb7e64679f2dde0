"""The simulated driver: a virtual clock, a seeded network, and the same nodes as in the real one.

Theory of operation. Everything that will happen stands in one heap, ordered by time and then by the order in which it
was planned; the seed decides every random draw. So a run is a function of its seed, and replays bit for bit. Time
passes only here: a link takes size / rate and a delay, a node's jobs take the bytes that they touch /
`memory_bytes_per_s`, one after the other, and a program sleeps as long as it says.

Links follow the model of `channels.emulation.link`; `network.py` says what becomes of messages. `cut` makes a link fall
silent or reset, `crash` ends a node at once, `pause` stops it as SIGSTOP does. A link whose `Network` is cut sends
nothing, and what has left already arrives. Programs (training loops) run in threads of their own, but one at a time and
only while the clock stands still.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from geomx.errors import GeomxError
from geomx.node.contract import (
    Began,
    Called,
    Closed,
    Dial,
    Effect,
    Event,
    Fired,
    Hangup,
    Job,
    JobDone,
    Node,
    Note,
    Notify,
    Opened,
    OpenFlow,
    Received,
    Started,
    Stop,
    Timer,
    Write,
)
from geomx.node.counts import flows_and_blocks
from geomx.node.path_news import PathNews
from geomx.simulate.flows import SimulatedFlow
from geomx.simulate.network import Network, SimulatedConnection, SimulatedLink
from geomx.simulate.programs import Program
from geomx.wire.flow.counts import FlowCounts
from geomx.wire.flow.ends import WHY, Whole
from geomx.wire.flow.receiver import Delivery
from geomx.wire.messages import FlowBroken, Message, Push
from geomx.wire.proof import NONCE_BYTES

HEADER_BYTES = 96  # what a message's frame and head take, about
CHUNK_BYTES = 64 << 10
_GOODBYE = Message()  # the end of a connection, as it crosses a link


@dataclass(slots=True)
class _SimulatedNode:
    """A node, and what the simulator keeps for it."""

    node: Node
    connections: dict[int, SimulatedConnection] = field(default_factory=dict)
    timers: dict[str, int] = field(default_factory=dict)
    listener: Callable[[Any], None] | None = None
    program: Program | None = None
    starts_at: float = 0.0
    paths: PathNews = field(default_factory=PathNews)
    paused_until: float = 0.0
    busy_until: float = 0.0  # its processor works on jobs, one after the other
    stopped: bool = False
    error: GeomxError | None = None


class Simulator:
    """See the module's text."""

    def __init__(
        self,
        seed: int = 0,
        network: Network | None = None,
        memory_bytes_per_s: float = 5e9,
        chunk_bytes: int = CHUNK_BYTES,
    ) -> None:
        self.now = 0.0
        self.random = random.Random(seed)  # for programs; each link has a chance of its own
        self._seed = seed
        self.notes: list[tuple[float, str, Note]] = []
        self._network = network or Network()
        self._memory_bytes_per_s = memory_bytes_per_s
        self._chunk_bytes = chunk_bytes  # how finely messages overtake each other, for more events
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self._numbers = itertools.count(1)
        self._hosts: dict[str, _SimulatedNode] = {}
        self._links: dict[tuple[str, str], SimulatedLink] = {}
        self._networks: dict[tuple[str, str], Network] = {}
        self._flows: list[tuple[str, str, SimulatedFlow]] = []  # all that there were: who dialled whom
        self._changes: dict[tuple[str, str], list[tuple[float, Network, Mapping[str, Any]]]] = defaultdict(
            list
        )
        self.events = 0

    # -- setting up -------------------------------------------------------------------------------------------

    def add(self, node: Node, at: float = 0.0) -> None:
        """Start a node at a time of the clock; one that crashed is replaced under the same name."""
        host = self._hosts[node.name] = _SimulatedNode(node, starts_at=max(at, self.now))
        self._plan(at - self.now, lambda: self._deliver(host, Started()))

    def link(self, one: str, other: str, network: Network) -> None:
        """Let both directions between two nodes behave so from now on."""
        for ends in ((one, other), (other, one)):
            self._networks[ends] = network
            if ends in self._links:
                self._links[ends].change(network)

    def change(
        self, one: str, other: str, at_s: float, network: Network, told: Mapping[str, Any] | None = None
    ) -> None:
        """Let both directions between two nodes behave so from `at_s` seconds after training began at the sender on.

        `told`: what is noted of it.
        """
        for ends in ((one, other), (other, one)):
            self._changes[ends].append((at_s, network, told or {}))

    def listen(self, name: str, listener: Callable[[Any], None]) -> None:
        """Give what a node hands its local program (`Notify`) to a callback."""
        self._hosts[name].listener = listener

    def call(self, name: str, method: str, *arguments: Any) -> None:
        """Call a node's method as its local program would."""
        self._deliver(self._hosts[name], Called(method, arguments))

    def program(self, name: str, function: Callable[[Program], None]) -> Program:
        """Run a training loop against a node; `function` gets its `Port`."""
        host = self._hosts[name]
        program = Program(
            name,
            function,
            lambda method, arguments: self._plan(0.0, lambda: self._deliver(host, Called(method, arguments))),
            lambda: self.now,
            lambda note: self.notes.append((self.now, name, note)),
        )
        host.program, host.listener = program, program.give
        self._plan(host.starts_at - self.now, lambda: self._advance(host))
        return program

    # -- faults ----------------------------------------------------------------------------------------------

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a time of the clock: cut, crash, pause, add."""
        heapq.heappush(self._heap, (max(time, self.now), next(self._order), action))

    def cut(self, one: str, other: str, duration_s: float, reset: bool = False) -> None:
        """Nothing passes between two nodes for a while; `reset`: their connections break at once as well."""
        for ends in ((one, other), (other, one)):
            self._link(*ends).silent_until = self.now + duration_s
        if reset:
            for connection in list(self._hosts[one].connections.values()):
                if other in connection.ends:
                    self._break(connection, "connection reset")

    def crash(self, name: str, silent: bool = False) -> None:
        """End a node at once; `silent`: its peers see no connection close (a power cut)."""
        host = self._hosts[name]
        host.stopped = True
        if host.program is not None:
            host.program.abandon()
        for connection in list(host.connections.values()):
            if silent:
                connection.end()
            else:
                self._break(connection, "connection reset")

    def pause(self, name: str, duration_s: float) -> None:
        """Stop a node as SIGSTOP does: its connections stand, it neither hears nor speaks."""
        self._hosts[name].paused_until = self.now + duration_s

    # -- running ---------------------------------------------------------------------------------------------

    def run(self, until: float = float("inf"), while_: Callable[[], bool] = lambda: True) -> None:
        """Let time pass until every node has stopped, `until` is reached, or `while_()` is false."""
        try:
            while self._heap and while_():
                if self._heap[0][0] > until:
                    self.now = until
                    return
                self.now, _, action = heapq.heappop(self._heap)
                action()
        finally:
            if not self._heap or not while_():
                for host in self._hosts.values():
                    if host.program is not None:
                        host.program.abandon()

    def error_of(self, name: str) -> GeomxError | None:
        """What ended a node, if something did."""
        return self._hosts[name].error

    def has_stopped(self, name: str) -> bool:
        return self._hosts[name].stopped

    def noted(self, name: str) -> list[tuple[float, str, dict[str, Any]]]:
        """Every note of that name: (time, node, fields)."""
        return [(time, node, note.fields) for time, node, note in self.notes if note.name == name]

    def sent_bytes(self, one: str, other: str) -> int:
        """What has left `one` for `other`, heads included."""
        return self._link(one, other).sent_bytes

    def usage(self, name: str) -> dict[str, Any]:
        """What the real driver would record of a node by now, but for what its process uses.

        Nothing counts what has come: `received` is what has left for the node.
        """
        flows: dict[str, FlowCounts] = defaultdict(FlowCounts)
        for sender, receiver, flow in self._flows:
            for end, peer, counts in zip((sender, receiver), (receiver, sender), flow.counts, strict=True):
                if end == name:
                    flows[peer] += counts
        sent = {target: link.sent_bytes for (source, target), link in self._links.items() if source == name}
        received = {peer: self.sent_bytes(peer, name) for peer in sent}
        blocks = self._hosts[name].node.blocks
        return {"sent": sent, "received": received, **flows_and_blocks(flows, blocks)}

    # -- events and effects ------------------------------------------------------------------------------------

    def _plan(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + max(delay, 0.0), next(self._order), action))

    def _deliver(self, host: _SimulatedNode, event: Event) -> None:
        if host.stopped:
            return
        if host.paused_until > self.now:
            self._plan(host.paused_until - self.now, lambda: self._deliver(host, event))
            return
        self.events += 1
        self._carry_out(host, host.node.handle(event, self.now))
        if host.program is not None:
            self._advance(host)

    def _carry_out(self, host: _SimulatedNode, effects: Iterable[Effect]) -> None:
        for effect in effects:
            match effect:
                case Write() | OpenFlow() | Hangup():
                    self._on_connection(host, effect)
                case Job():
                    self._start(host, effect)
                case Notify():
                    if host.listener is not None:
                        host.listener(effect.item)
                case Timer():
                    self._set_timer(host, effect)
                case Note():
                    self.notes.append((self.now, host.node.name, effect))
                case Dial():
                    self._dial(host, effect.peer)
                case Began():
                    self._begin(host.node.name)
                case Stop():
                    host.stopped, host.error = True, effect.error
                    if host.program is not None:
                        host.program.stopped(effect.error)

    def _on_connection(self, host: _SimulatedNode, effect: Write | OpenFlow | Hangup) -> None:
        if isinstance(effect, Write):
            self._write(host, effect)
        elif isinstance(effect, OpenFlow):
            self._open_flow(host, effect)
        else:
            self._hang_up(host, effect.conn)

    def _start(self, host: _SimulatedNode, job: Job) -> None:
        if not job.cost_bytes:
            self._finish(host, job)
            return
        start = max(self.now, host.busy_until)
        host.busy_until = start + job.cost_bytes / self._memory_bytes_per_s
        self._plan(host.busy_until - self.now, lambda: self._finish(host, job))

    def _finish(self, host: _SimulatedNode, job: Job) -> None:
        try:
            done = JobDone(job, job.function())
        except GeomxError as error:
            done = JobDone(job, None, error)
        self._deliver(host, done)

    def _set_timer(self, host: _SimulatedNode, timer: Timer) -> None:
        number = host.timers[timer.key] = next(self._order)

        def fire() -> None:
            if host.timers.get(timer.key) == number:
                self._deliver(host, Fired(timer.key))

        self._plan(timer.delay_s, fire)

    def _advance(self, host: _SimulatedNode) -> None:
        """Let a host's program run until it waits again."""
        assert host.program is not None
        delay = host.program.advance()
        if delay is not None:
            self._plan(delay, lambda: self._advance(host))

    def _begin(self, source: str) -> None:
        """Second 0 of what happens to the links on which a node sends."""
        for (sender, target), changes in self._changes.items():
            for at_s, network, told in changes if sender == source else ():
                self._plan(at_s, functools.partial(self._change, source, target, network, told))

    def _change(self, source: str, target: str, network: Network, told: Mapping[str, Any]) -> None:
        self._link(source, target).change(network)
        self.notes.append((self.now, source, Note("link", dict(told))))

    # -- the network -------------------------------------------------------------------------------------------

    def _link(self, source: str, target: str) -> SimulatedLink:
        link = self._links.get((source, target))
        if link is None:
            network = self._networks.get((source, target), self._network)
            chance = random.Random(f"{self._seed} {source} {target}")
            link = SimulatedLink(network, self, chance, self._chunk_bytes)
            self._links[source, target] = link
        return link

    def _dial(self, host: _SimulatedNode, peer: str) -> None:
        link = self._link(host.node.name, peer)
        self._plan(max(2e-3 * link.network.delay_ms, 1e-6), lambda: self._connect(host, peer))

    def _connect(self, host: _SimulatedNode, peer: str) -> None:
        target = self._hosts.get(peer)
        absent = target is None or target.stopped or target.starts_at > self.now
        link = self._link(host.node.name, peer)
        if target is None or absent or link.network.cut or link.silent_until > self.now:
            self._deliver(host, Closed(0, peer, "unreachable"))
            return
        mine, theirs = next(self._numbers), next(self._numbers)
        connection = SimulatedConnection({host.node.name: (peer, theirs), peer: (host.node.name, mine)})
        host.connections[mine] = target.connections[theirs] = connection
        self._deliver(target, Opened(theirs, "", theirs.to_bytes(NONCE_BYTES)))
        self._deliver(host, Opened(mine, peer, mine.to_bytes(NONCE_BYTES)))

    def _write(self, host: _SimulatedNode, write: Write) -> None:
        connection = host.connections.get(write.conn)
        if connection is None or not connection.alive:
            return
        target, number = connection.ends[host.node.name]
        if write.blocks and connection.flow is not None:
            header = connection.flow.write(write)
            write = write if header is None else replace(write, message=header, payload=None)
        size = HEADER_BYTES + (0 if write.payload is None else write.payload.nbytes)
        link = self._link(host.node.name, target)
        surely = write.message is _GOODBYE or link.network.keeps_streams
        link.put(size, write.priority, lambda: self._arrive(connection, target, number, write), surely)

    def _arrive(self, connection: SimulatedConnection, target: str, number: int, write: Write) -> None:
        host = self._hosts[target]
        if not connection.alive or host.connections.get(number) is not connection:
            return
        if write.message is _GOODBYE:
            self._part(host, number, connection)
            return
        if isinstance(write.message, FlowBroken):
            if connection.flow is not None:
                connection.flow.broken(write.message.below)
            return
        try:
            host.node.admit(number, write.message)
        except GeomxError as error:
            lossy = self._network.reorder or self._network.loss
            if not lossy:  # a stream in order never brings a message too early
                self._break(connection, str(error))
            return
        if isinstance(write.message, Push) and write.message.beside is not None:
            assert connection.flow is not None
            connection.flow.announced(write.number, write.message)
            return
        self._deliver(host, Received(number, write.number, write.message, _own(write.payload)))

    def _open_flow(self, host: _SimulatedNode, effect: OpenFlow) -> None:
        """Whoever dials has heard last that the other end is known."""
        connection = host.connections.get(effect.conn)
        if connection is None or not connection.alive or connection.flow is not None:
            return
        target, number = connection.ends[host.node.name]
        if not self._dialled(host, connection):
            return
        listener = self._hosts[target]

        def deliver(delivery: Delivery) -> None:
            if connection.alive and listener.connections.get(number) is connection:
                self._deliver(listener, Received(number, *delivery))

        def send(whole: Whole) -> None:
            self._write(host, Write(effect.conn, *whole))

        def broken(below: int) -> None:
            self._write(host, Write(effect.conn, 0, FlowBroken(below)))

        up, down = self._link(host.node.name, target), self._link(target, host.node.name)
        refuse = functools.partial(self._break, connection)
        admit = functools.partial(listener.node.admit, number)

        def tell(passes: bool) -> None:
            note = host.paths.about(target, passes, WHY[passes])
            self._carry_out(host, [] if note is None else [note])

        flow = SimulatedFlow(self, up, down, effect.terms, deliver, send, broken, refuse, admit, tell)
        connection.flow = flow
        self._flows.append((host.node.name, target, flow))

    def _hang_up(self, host: _SimulatedNode, number: int) -> None:
        """Close one end: what is urgent and was written before still arrives, then the other end sees it close."""
        self._write(host, Write(number, 0, _GOODBYE))
        host.connections.pop(number, None)

    def _part(self, host: _SimulatedNode, number: int, connection: SimulatedConnection) -> None:
        del host.connections[number]
        connection.end_flow()
        self._deliver(host, Closed(number, self._dialled(host, connection), "closed by the other side"))

    def _break(self, connection: SimulatedConnection, reason: str) -> None:
        """Close both ends at once; what was under way is lost."""
        connection.end()
        for name in connection.ends:
            host = self._hosts[name]
            for number in [n for n, other in host.connections.items() if other is connection]:
                del host.connections[number]
                closed = Closed(number, self._dialled(host, connection), reason)
                self._plan(0.0, functools.partial(self._deliver, host, closed))

    def _dialled(self, host: _SimulatedNode, connection: SimulatedConnection) -> str:
        """The other end's name, for whoever dialled (the first of the two ends)."""
        first = next(iter(connection.ends))
        return connection.ends[first][0] if host.node.name == first else ""


def _own(payload: Any) -> Any:
    """A receiver owns what it got: the sender may need its own copy for a resend."""
    return payload if payload is None or payload.is_meta else payload.clone()
