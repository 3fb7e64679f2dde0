"""The real driver: asyncio, sockets, and the machine's clock, for the same nodes as the simulated one.

Theory of operation. All of a node's events happen on one event loop, one after the other. Arithmetic (jobs) runs in
a thread beside it, so that it never holds up a heartbeat; what takes less than the way there and back runs at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import resource
import secrets
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain
from typing import Any, Protocol
from weakref import WeakSet

from geomx.channels.contract import Channel, Connection, FlowConnection, Listener, MeasuringConnection
from geomx.config import LinkChange
from geomx.drive.durable import Durable
from geomx.errors import ConfigError, Fault, GeomxError, NodeLost, ProtocolError, RunFailed
from geomx.node.contract import (
    MEASURED_EVERY_S,
    Began,
    Called,
    Closed,
    Cut,
    CutStored,
    Dial,
    Effect,
    Event,
    Failed,
    Fired,
    FirstStep,
    Hangup,
    Identified,
    Job,
    JobDone,
    Mark,
    Measured,
    Node,
    Note,
    Notify,
    Opened,
    OpenFlow,
    Persist,
    Persisted,
    Received,
    Restored,
    Started,
    Stop,
    Timer,
    Write,
)
from geomx.node.counts import flows_and_blocks
from geomx.node.path_news import PathNews
from geomx.wire.flow.counts import FlowCounts
from geomx.wire.proof import NONCE_BYTES
from geomx.wire.roster_messages import Message

INLINE_BYTES = (
    8 << 20
)  # about a millisecond: less than the way to a thread and back costs in caches and locks
USAGE_EVERY_S = 0.5
LOG_EVERY_S = 5.0  # how often one asks the store whether it was replaced
MOST_TURNED_AWAY = (
    64  # strangers that are still being told why, for 2 s each; of more the oldest hear nothing
)


class RecordSink(Protocol):
    """Who keeps what nodes tell; see `geomx.observe`."""

    def record(self, name: str, level: str = "debug", /, **fields: Any) -> None:
        """Keep one record."""


@dataclass(frozen=True, slots=True)
class ListeningEdge:
    """Where a node listens. `shape(connection, peer)` is called once it is known who has come."""

    channel: Channel
    address: str
    shape: Callable[[Connection, str], None] = lambda connection, peer: None


@dataclass(frozen=True, slots=True)
class Wiring:
    """A node's edges: the door it opens, how to reach each peer that it dials, and what becomes of emulated links.

    A peer with several addresses is at one of them. Each change has a function that makes it. `beside`: a second
    door, for nodes of its own tier.
    """

    listening: ListeningEdge | None = None
    peers: Mapping[str, tuple[Channel, str | Sequence[str]]] = field(default_factory=dict)
    changes: Sequence[tuple[LinkChange, Callable[[], None]]] = ()
    beside: ListeningEdge | None = None

    @property
    def doors(self) -> list[ListeningEdge]:
        """Where it listens."""
        return [door for door in (self.listening, self.beside) if door is not None]


@dataclass(slots=True)
class _Traffic:
    """Bytes that crossed the sockets to and from one peer, frames included, and what became of its datagrams."""

    sent: int = 0
    received: int = 0
    flow: FlowCounts = field(default_factory=FlowCounts)

    def count(self, connection: Connection) -> None:
        """Add what has crossed a connection."""
        self.sent += connection.bytes_sent
        self.received += connection.bytes_received
        if isinstance(connection, FlowConnection):
            self.flow += connection.flow_counts


class Driver:
    """Runs one node. `notify` gets what the node hands its local program; `durable`: its log, where it keeps one."""

    def __init__(
        self,
        node: Node,
        wiring: Wiring,
        recorder: RecordSink,
        notify: Callable[[Any], None] = lambda item: None,
        threads: int = 1,
        durable: Durable | None = None,
    ) -> None:
        self._durable = durable
        self.node = node
        self._wiring = wiring
        self._recorder = recorder
        self._notify = notify
        self._threads = threads
        self._connections: dict[int, Connection] = {}
        self._closing: WeakSet[Connection] = WeakSet()
        self._turned_away: deque[Connection] = deque()
        self._peer_of: dict[int, str] = {}
        self._traffic: dict[str, _Traffic] = {}  # of connections that have ended
        self._places: dict[str, int] = {}  # by peer: which of its addresses is dialled next
        self._paths = PathNews()
        self._timers: dict[str, asyncio.TimerHandle] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._listeners: list[Listener] = []
        self._doors: dict[int, ListeningEdge] = {}  # by connection that was accepted
        self._called: list[Called] | None = []  # before the node has started; None: it has
        self._loop: asyncio.AbstractEventLoop
        self._executor: ThreadPoolExecutor
        self._waiter: (
            ThreadPoolExecutor  # of jobs that wait for a device, one behind the other as it computes
        )
        self._ended: asyncio.Future[None]

    async def run(self) -> None:
        """Until the node has ended; raises what it ended with."""
        self._loop = asyncio.get_running_loop()
        self._ended = self._loop.create_future()
        self._executor = ThreadPoolExecutor(self._threads, thread_name_prefix=f"{self.node.name} job")
        self._waiter = ThreadPoolExecutor(1, thread_name_prefix=f"{self.node.name} device")
        error: BaseException | None = None
        try:
            self._restore()
            await self._listen()
            self.deliver(Started())
            called, self._called = self._called or [], None
            for call in called:
                self.deliver(call)
            self._check_log()
            self._use()
            if self.node.measures:
                self._measure((0, 0))
            await self._ended
        except BaseException as raised:
            error = raised
            raise
        finally:
            await self._close()
            if self._durable is not None:
                self._durable.end(error)

    def _restore(self) -> None:
        """Before anybody can come: what a process of this node's name has left."""
        if self._durable is None:
            return
        self._durable.loss.add_done_callback(lambda future: self._call_soon(self._lose, future.result()))
        records = self._durable.records()
        if (first := next(records, None)) is not None:
            began = time.monotonic()
            self.deliver(Restored(chain([first], records)))
            self._recorder.record(
                "restored", "info", seconds=time.monotonic() - began, term=self._durable.term.number
            )

    def deliver(self, event: Event) -> None:
        """Hand the node an event; on the event loop only."""
        if self._called is not None and isinstance(event, Called):  # a script that is quick
            self._called.append(event)
        elif not self._ended.done():
            try:
                self._carry_out(self.node.handle(event, self._loop.time()))
            except Exception as error:  # a fault of ours: end loudly rather than wait for ever
                self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Tell the others that this node fails, whatever state it is in, and end."""
        told = error if isinstance(error, GeomxError) else RunFailed(self.node.name, repr(error))
        with contextlib.suppress(Exception):
            self._carry_out(self.node.handle(Failed(told), self._loop.time()))
        self._end(error)

    # -- what a connection tells (geomx.channels.contract.ConnectionHandler) ------------------------------

    def admit(self, connection: Connection, message: Message) -> None:
        self.node.admit(connection.ident, message)

    def received(self, connection: Connection, number: int, message: Message, payload: Any) -> None:
        self.deliver(Received(connection.ident, number, message, payload))

    def flow(self, connection: Connection, passes: bool, why: str) -> None:
        peer = self._peer_of.get(connection.ident, connection.peer_address)
        note = self._paths.about(peer, passes, why)
        if note is not None:
            self._effect(note)

    def broken(self, connection: Connection, error: ProtocolError) -> None:
        self.deliver(Failed(error, connection.ident))

    def closed(self, connection: Connection, reason: str) -> None:
        peer = self._peer_of.get(connection.ident, "")
        self._forget(connection.ident)
        self.deliver(Closed(connection.ident, peer if peer in self._wiring.peers else "", reason))

    def failed(self, error: GeomxError) -> None:
        self.deliver(Failed(error))

    def no_datagrams(self, why: str) -> None:
        self._recorder.record("no_datagrams", "warning", why=why)

    def refused(self, reason: str) -> None:
        self._recorder.record("refused", "warning", peer="somebody at the door", reason=reason)

    # -- effects ----------------------------------------------------------------------------------------------------

    def _carry_out(self, effects: Any) -> None:
        for effect in effects:
            self._effect(effect)
        if self._durable is not None:  # records that come together are written together
            self._durable.flush(self._written)

    def _effect(self, effect: Effect) -> None:
        match effect:
            case Write() | OpenFlow():
                self._on_connection(effect)
            case Job():
                self._start(effect)
            case Persist() | Mark() | Cut():
                self._keep(effect)
            case Notify():
                self._notify(effect.item)
            case Note():
                self._recorder.record(effect.name, effect.level, **effect.fields)
            case Timer():
                self._set_timer(effect)
            case Dial():
                self._spawn(self._dial(effect.peer))
            case Hangup():
                self._hang_up(effect.conn, effect.reason)
            case Identified():
                self._identified(effect)
            case Stop():
                self._end(effect.error)
            case Began():
                self._begin()
            case FirstStep():
                self._record_usage("first_step")

    def _identified(self, effect: Identified) -> None:
        self._peer_of[effect.conn] = effect.peer
        door = self._doors.pop(effect.conn, None)
        if door is not None and effect.conn in self._connections:
            door.shape(self._connections[effect.conn], effect.peer)

    def _on_connection(self, effect: Write | OpenFlow) -> None:
        connection = self._connections.get(effect.conn)
        if connection is None:
            return
        if isinstance(effect, OpenFlow):
            if isinstance(connection, FlowConnection):
                connection.open_flow(effect.secret, effect.terms)
        elif effect.blocks and isinstance(connection, FlowConnection):
            connection.write_blocks(
                effect.number, effect.message, effect.payload, effect.priority, effect.blocks
            )
        else:
            connection.write(effect.number, effect.message, effect.payload, effect.priority)

    def _begin(self) -> None:
        """Second 0 of what happens to links."""
        for number, (change, make) in enumerate(self._wiring.changes):
            timer = self._loop.call_later(change.at_s, self._change, change, make)
            self._timers[f"change {number}"] = timer

    def _change(self, change: LinkChange, make: Callable[[], None]) -> None:
        make()
        level = "info" if change.party == self.node.name else "debug"  # one of its two ends tells people
        self._recorder.record("link", level, **change.fields)

    def _start(self, job: Job) -> None:
        if job.cost_bytes < INLINE_BYTES and not job.waits:
            self._finish(job, functools.partial(_run, job))
            return
        future = (self._waiter if job.waits else self._executor).submit(_run, job)
        future.add_done_callback(lambda done: self._call_soon(self._finish, job, done.result))

    def _finish(self, job: Job, outcome: Callable[[], tuple[Any, Exception | None]]) -> None:
        result, error = outcome()
        self.deliver(JobDone(job, result, error))

    def _call_soon(self, function: Callable[..., None], *arguments: Any) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(function, *arguments)

    def _check_log(self) -> None:
        """Now and then: a process that stood still may have been replaced meanwhile."""
        if self._durable is not None and not self._ended.done():
            self._durable.check(lambda future: self._call_soon(self._checked, future))
            self._timers["log"] = self._loop.call_later(LOG_EVERY_S, self._check_log)

    def _checked(self, future: Future[Any]) -> None:
        if (error := future.exception()) is not None:
            self._lose(error)

    def _lose(self, error: BaseException) -> None:
        """The log cannot be written, or the term is another's."""
        assert self._durable is not None
        told = self._durable.as_error(error)
        if isinstance(told, NodeLost):
            self.deliver(Called("step_down", (told.reason,)))
        else:
            self.deliver(Failed(told))

    def _keep(self, effect: Persist | Mark | Cut) -> None:
        assert self._durable is not None  # such nodes are given one
        if isinstance(effect, Persist):
            self._durable.write(effect)
        elif isinstance(effect, Mark):
            self._durable.mark()
        else:
            self._durable.cut(effect, lambda future: self._call_soon(self._cut_stored, future))

    def _written(self, future: Future[Any], number: int) -> None:
        """In the log's thread: a piece is there."""
        self._call_soon(self._persisted, future, number)

    def _persisted(self, future: Future[Any], number: int) -> None:
        assert self._durable is not None
        if self._ended.done():
            return
        if (error := future.exception()) is not None:
            self._lose(error)
            return
        self._durable.go_on(self._written)
        self.deliver(Persisted(number))

    def _cut_stored(self, future: Future[Any]) -> None:
        assert self._durable is not None
        error = future.exception()
        self.deliver(CutStored(self._durable.as_error(error) if error else None))

    def _set_timer(self, timer: Timer) -> None:
        old = self._timers.pop(timer.key, None)
        if old is not None:
            old.cancel()
        self._timers[timer.key] = self._loop.call_later(timer.delay_s, self.deliver, Fired(timer.key))

    def _end(self, error: Exception | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)

    # -- connections -------------------------------------------------------------------------------------------

    async def _listen(self) -> None:
        for door in self._wiring.doors:
            accepted = functools.partial(self._accepted, door)
            try:
                listener = await door.channel.listen(door.address, self, accepted)
            except OSError as error:
                allowed = "an address of this machine with a free port"
                raise ConfigError(
                    self.node.name, [Fault("address", door.address, allowed, str(error))]
                ) from error
            self._listeners.append(listener)
            self._recorder.record("listening", "info", address=listener.address)

    def _accepted(self, door: ListeningEdge, connection: Connection) -> None:
        self._connections[connection.ident] = connection
        self._doors[connection.ident] = door
        self.deliver(Opened(connection.ident, "", _nonce(), connection.certified))

    async def _dial(self, peer: str) -> None:
        """At the address behind that where it was last, so that one which leads nowhere is left."""
        channel, given = self._wiring.peers[peer]
        addresses = [given] if isinstance(given, str) else given
        place = self._places.get(peer, 0)
        self._places[peer] = place + 1
        address = addresses[place % len(addresses)]
        try:
            connection = await channel.dial(address, self)
        except (OSError, TimeoutError, GeomxError) as error:
            nobody = f"nothing is listening at {' or '.join(addresses)}"
            reason = (
                nobody if isinstance(error, ConnectionRefusedError) else str(error) or type(error).__name__
            )
            if self._places[peer] % len(addresses):
                await self._dial(peer)
            else:
                self.deliver(Closed(0, peer, reason))
            return
        self._connections[connection.ident] = connection
        self._peer_of[connection.ident] = peer
        self.deliver(Opened(connection.ident, peer, _nonce(), connection.certified))

    def _spawn(self, coroutine: Any) -> None:
        task = self._loop.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._done)

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and isinstance(error := task.exception(), Exception):
            self._give_up(error)

    def _forget(self, conn: int) -> None:
        connection = self._connections.pop(conn, None)
        self._doors.pop(conn, None)
        peer = self._peer_of.pop(conn, "")
        if connection is not None and peer:
            self._traffic.setdefault(peer, _Traffic()).count(connection)

    def _hang_up(self, conn: int, reason: str) -> None:
        connection = self._connections.get(conn)
        if connection is None:
            return
        if conn not in self._peer_of:
            self._turned_away.append(connection)
            if len(self._turned_away) > MOST_TURNED_AWAY:
                self._turned_away.popleft().abort()
        self._forget(conn)
        self._closing.add(connection)
        connection.close(reason)

    async def _close(self) -> None:
        self._record_usage()
        for timer in self._timers.values():
            timer.cancel()
        for task in list(self._tasks):
            task.cancel()
        for conn in list(self._connections):
            self._hang_up(conn, "the node has ended")
        for listener in self._listeners:
            await listener.close()
        await asyncio.gather(*(connection.gone() for connection in self._closing))
        for executor in (self._executor, self._waiter):
            executor.shutdown(wait=False, cancel_futures=True)

    # -- usage -------------------------------------------------------------------------------------------------

    def _use(self) -> None:
        if not self._ended.done():
            self._record_usage()
            self._timers["usage"] = self._loop.call_later(USAGE_EVERY_S, self._use)

    def _measure(self, before: tuple[int, int]) -> None:
        """Tell the node what has left since, again and again."""
        if self._ended.done():
            return
        sent: dict[str, tuple[int, float]] = {}
        for conn, connection in self._connections.items():
            if (peer := self._peer_of.get(conn)) and isinstance(connection, MeasuringConnection):
                carried = connection.carried(MEASURED_EVERY_S)
                sent |= {} if carried is None else {peer: carried}
        open_now = [each for conn, each in self._connections.items() if conn in self._peer_of]
        totals = sum(each.bytes_sent for each in open_now), sum(each.bytes_received for each in open_now)
        left, came = (max(0, now - past) for now, past in zip(totals, before, strict=True))
        if left or came:
            self.deliver(Measured(sent, left, came))
        self._timers["measure"] = self._loop.call_later(MEASURED_EVERY_S, self._measure, totals)

    def _record_usage(self, name: str = "usage") -> None:
        """What the process has used, and what has crossed its sockets, since its start."""
        every = {peer: replace(traffic) for peer, traffic in self._traffic.items()}
        for conn, connection in self._connections.items():
            peer = self._peer_of.get(conn)
            if peer:
                every.setdefault(peer, _Traffic()).count(connection)
        self._recorder.record(
            name,
            cpu_s=time.process_time(),
            rss_mb=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
            sent={peer: traffic.sent for peer, traffic in every.items()},
            received={peer: traffic.received for peer, traffic in every.items()},
            **flows_and_blocks({peer: traffic.flow for peer, traffic in every.items()}, self.node.blocks),
        )


def _nonce() -> bytes:
    return secrets.token_bytes(NONCE_BYTES)


def _run(job: Job) -> tuple[Any, Exception | None]:
    try:
        return job.function(), None
    except Exception as error:
        return None, error
