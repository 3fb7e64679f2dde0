"""The simulated driver: a virtual clock, a seeded network, and the same nodes as in the real one.

Theory of operation. Everything that will happen stands in one heap, ordered by time and then by the order in which it
was planned; the seed decides every random draw. So a run is a function of its seed, and replays bit for bit. Time
passes only here: a link takes size / rate and a delay, a node's jobs take the bytes that they touch /
`memory_bytes_per_s`, one after the other, and a program sleeps as long as it says.

Links follow the model of `channels.emulation.link`; `network.py` says what becomes of messages. `cut` makes a link fall
silent or reset, `crash` ends a node at once, `pause` stops it as SIGSTOP does. A link whose `Network` is cut sends
nothing, and what has left already arrives. Nodes at the sites of a `Graph` share its links (`graph.py`). Programs
(training loops) run in threads of their own, but one at a time and only while the clock stands still.
"""

from __future__ import annotations

import functools
import heapq
import itertools
import random
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from geomx.errors import GeomxError
from geomx.node.contract import (
    MEASURED_EVERY_S,
    Began,
    Called,
    Cut,
    Dial,
    Effect,
    Event,
    Fired,
    Hangup,
    Job,
    JobDone,
    Mark,
    Measured,
    Node,
    Note,
    Notify,
    OpenFlow,
    Persist,
    Started,
    Stop,
    Timer,
    Write,
)
from geomx.node.counts import flows_and_blocks
from geomx.simulate.connections import Connections, Host
from geomx.simulate.graph import Graph
from geomx.simulate.network import Network
from geomx.simulate.programs import Program
from geomx.simulate.stores import SimulatedLog
from geomx.simulate.traffic import Traffic
from geomx.store.log import Log
from geomx.wire.flow.counts import FlowCounts

CHUNK_BYTES = 64 << 10


class Simulator:
    """See the module's text."""

    def __init__(
        self,
        seed: int = 0,
        network: Network | None = None,
        memory_bytes_per_s: float = 5e9,
        chunk_bytes: int = CHUNK_BYTES,
        graph: Graph | None = None,
    ) -> None:
        self.now = 0.0
        self.random = random.Random(seed)  # for programs; each link has a chance of its own
        self.notes: list[tuple[float, str, Note]] = []
        self._memory_bytes_per_s = memory_bytes_per_s
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._order = itertools.count()
        self.hosts: dict[str, Host] = {}
        # `chunk_bytes`: how finely messages overtake each other, for more events
        self.traffic = Traffic(graph or Graph({}, {}), self)  # what nodes of a graph send each other
        self._connections = Connections(self, seed, network or Network(), self.traffic, chunk_bytes)
        self._changes: dict[tuple[str, str], list[tuple[float, Network, Mapping[str, Any]]]] = defaultdict(
            list
        )
        self.events = 0

    # -- setting up -------------------------------------------------------------------------------------------

    def add(self, node: Node, at: float = 0.0, log: Log | None = None, latency_s: float = 0.0) -> None:
        """Start a node at a time of the clock; one that crashed is replaced under the same name.

        `log`: where it keeps one, what is left of those before; `latency_s`: what writing to it takes, at most.
        """
        host = self.hosts[node.name] = Host(node, starts_at=max(at, self.now))
        if log is not None:
            host.log = SimulatedLog(
                log, latency_s, self.random, host, self._plan, functools.partial(self.deliver, host)
            )
            self._plan(at - self.now, host.log.restore)
        self._plan(at - self.now, lambda: self.deliver(host, Started()))
        if node.measures:
            self._plan(at - self.now, lambda: self._measure(host, {}))

    def _measure(self, host: Host, before: dict[str, tuple[int, float]], came_before: int = 0) -> None:
        """Tell a node what has left it since, again and again."""
        if host.stopped:
            return
        name, links = host.node.name, self._connections.links
        now = {target: link.left for (source, target), link in links.items() if source == name}
        sent = {}
        for target, (size_bytes, busy_s) in now.items():
            size_before, busy_before = before.get(target, (0, 0.0))
            if size_bytes > size_before:
                sent[target] = size_bytes - size_before, busy_s - busy_before
        came = sum(link.left[0] for (_, target), link in links.items() if target == name)
        if sent or came > came_before:
            self.deliver(host, Measured(sent, sum(size for size, _ in sent.values()), came - came_before))
        self._plan(MEASURED_EVERY_S, lambda: self._measure(host, now, came))

    def link(self, one: str, other: str, network: Network) -> None:
        """Let both directions between two nodes behave so from now on."""
        for ends in ((one, other), (other, one)):
            self._connections.networks[ends] = network
            if ends in self._connections.links:
                self._connections.links[ends].change(network)

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
        self.hosts[name].listener = listener

    def call(self, name: str, method: str, *arguments: Any) -> None:
        """Call a node's method as its local program would."""
        self.deliver(self.hosts[name], Called(method, arguments))

    def program(self, name: str, function: Callable[[Program], None]) -> Program:
        """Run a training loop against a node; `function` gets its `Port`."""
        host = self.hosts[name]
        program = Program(
            name,
            function,
            lambda method, arguments: self._plan(0.0, lambda: self.deliver(host, Called(method, arguments))),
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
            self._connections.link(*ends).silent_until = self.now + duration_s
        if reset:
            for connection in list(self.hosts[one].connections.values()):
                if other in connection.ends:
                    self._connections.break_(connection, "connection reset")

    def crash(self, name: str, silent: bool = False) -> None:
        """End a node at once; `silent`: its peers see no connection close (a power cut)."""
        host = self.hosts[name]
        host.stopped = True
        if host.program is not None:
            host.program.abandon()
        for connection in list(host.connections.values()):
            if silent:
                connection.end()
            else:
                self._connections.break_(connection, "connection reset")

    def pause(self, name: str, duration_s: float) -> None:
        """Stop a node as SIGSTOP does: its connections stand, it neither hears nor speaks."""
        self.hosts[name].paused_until = self.now + duration_s

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
                for host in self.hosts.values():
                    if host.program is not None:
                        host.program.abandon()

    def error_of(self, name: str) -> GeomxError | None:
        """What ended a node, if something did."""
        return self.hosts[name].error

    def has_stopped(self, name: str) -> bool:
        return self.hosts[name].stopped

    def noted(self, name: str) -> list[tuple[float, str, dict[str, Any]]]:
        """Every note of that name: (time, node, fields)."""
        return [(time, node, note.fields) for time, node, note in self.notes if note.name == name]

    def sent_bytes(self, one: str, other: str) -> int:
        """What has left `one` for `other`, heads included."""
        return self._connections.link(one, other).sent_bytes

    def usage(self, name: str) -> dict[str, Any]:
        """What the real driver would record of a node by now, but for what its process uses.

        Nothing counts what has come: `received` is what has left for the node.
        """
        flows: dict[str, FlowCounts] = defaultdict(FlowCounts)
        for node, peer, end in self._connections.flows:
            if node == name:
                flows[peer] += end.counts
        sent = {
            target: link.sent_bytes
            for (source, target), link in self._connections.links.items()
            if source == name
        }
        received = {peer: self.sent_bytes(peer, name) for peer in sent}
        blocks = self.hosts[name].node.blocks
        return {"sent": sent, "received": received, **flows_and_blocks(flows, blocks)}

    # -- events and effects ------------------------------------------------------------------------------------

    def _plan(self, delay: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + max(delay, 0.0), next(self._order), action))

    def deliver(self, host: Host, event: Event) -> None:
        if host.stopped:
            return
        if host.paused_until > self.now:
            self._plan(host.paused_until - self.now, lambda: self.deliver(host, event))
            return
        self.events += 1
        self.carry_out(host, host.node.handle(event, self.now))
        if host.program is not None:
            self._advance(host)

    def carry_out(self, host: Host, effects: Iterable[Effect]) -> None:
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
                case Persist() | Mark() | Cut():
                    assert host.log is not None  # such nodes are given one
                    host.log.keep(effect)
                case Note():
                    self.notes.append((self.now, host.node.name, effect))
                case Dial():
                    self._connections.dial(host, effect.peer)
                case Began() | Stop():
                    self._begin_or_stop(host, effect)
        if host.log is not None:
            host.log.flush()

    def _begin_or_stop(self, host: Host, effect: Began | Stop) -> None:
        if isinstance(effect, Began):
            self._begin(host.node.name)
            return
        host.stopped, host.error = True, effect.error
        if host.program is not None:
            host.program.stopped(effect.error)

    def _on_connection(self, host: Host, effect: Write | OpenFlow | Hangup) -> None:
        if isinstance(effect, Write):
            self._connections.write(host, effect)
        elif isinstance(effect, OpenFlow):
            self._connections.open_flow(host, effect)
        else:
            self._connections.hang_up(host, effect.conn)

    def _start(self, host: Host, job: Job) -> None:
        if not job.cost_bytes:
            self._finish(host, job)
            return
        start = max(self.now, host.busy_until)
        host.busy_until = start + job.cost_bytes / self._memory_bytes_per_s
        self._plan(host.busy_until - self.now, lambda: self._finish(host, job))

    def _finish(self, host: Host, job: Job) -> None:
        try:
            done = JobDone(job, job.function())
        except GeomxError as error:
            done = JobDone(job, None, error)
        self.deliver(host, done)

    def _set_timer(self, host: Host, timer: Timer) -> None:
        number = host.timers[timer.key] = next(self._order)

        def fire() -> None:
            if host.timers.get(timer.key) == number:
                self.deliver(host, Fired(timer.key))

        self._plan(timer.delay_s, fire)

    def _advance(self, host: Host) -> None:
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
        self._connections.link(source, target).change(network)
        self.notes.append((self.now, source, Note("link", dict(told))))
