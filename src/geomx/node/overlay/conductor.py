"""The holders' part in an overlay: the first has tables planned and says which one is used; all answer by it.

A table is planned from what was measured, sent to all members and other holders, and used once every member has said
that it is linked with those whom it needs. It is void as soon as something may have gone with one of its members, or
others take part; then there is none until the next is planned.

Tables of planners that follow what is measured are left again where a round takes longer by them than without.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from statistics import median
from typing import Any, Protocol

import msgspec

from geomx.errors import ConfigError, ProtocolError
from geomx.layout import Layout, Slice
from geomx.node.contract import Measured
from geomx.node.overlay.meter import Meter
from geomx.node.overlay.part import below, checked
from geomx.node.overlay.relay import is_routed
from geomx.node.peers.peer import Peer
from geomx.node.slices.priority import priority_of
from geomx.overlay.contract import Load, Planner, Routes, with_names
from geomx.overlay.estimate import Estimate
from geomx.rounds.membership import Members
from geomx.wire.messages import Push, Update
from geomx.wire.overlay_messages import Apart, Linked, Rates, Strayed, Table, Unanswered, Use, Void, Way
from geomx.wire.roster_messages import Message

PLAN_COST_BYTES = 64 << 20  # so much that it runs in a thread
PLAN_PAUSE_S = 2.0  # at least, between two plans
FIRST_PLAN_TURNS = 2  # that are measured before
ROUNDS_COMPARED, ROUNDS_FEW = 9, 3
# Than without: a table is left by which many rounds, or a few, take so much longer.
WORSE, FAR_WORSE = 1.05, 1.3
AGAIN_TURNS = 10  # behind which another is tried then; twice as many the next time
RECENT_TABLES = 16
LEAST_RATE, MOST_RATE = 1.0, 1e13  # bytes a second, of what is believed
MOST_ROUND_TRIP_S = 60.0
STRAYED_TURNS = 20  # for which a pair that did not reach each other is not used


class ConductorHost(Protocol):
    """The server around it."""

    name: str
    members: Members

    @property
    def now(self) -> float: ...
    def peer(self, name: str) -> Peer | None: ...
    def send(self, peer: Peer, message: Message, payload: Any = None, priority: int = 0) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: Any) -> None: ...
    def run_job(self, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int) -> None: ...
    def welcomed(self) -> list[str]:
        """The children that take part, by name."""


@dataclass(slots=True)
class _Planned:
    """A table on its way. `receivers`: by way, whom a holder answers itself."""

    table: Table
    receivers: tuple[tuple[str, ...], ...]
    waits_for: set[str] = field(default_factory=set)


class Conductor:
    """See the module's text.

    Args:
        host: The server.
        children: Its children's workers, by child, in the order of the run.
        holders: All that hold slices of this tier, the first first.
        planner: Makes tables.
        may_send: Whether a table may have one node send to another, by name.
        tell: Sends a message to another holder.
        own: The members whose ways are their own, see `geomx.overlay.estimate`.
    """

    def __init__(
        self,
        host: ConductorHost,
        children: Mapping[str, tuple[str, ...]],
        holders: Sequence[str],
        planner: Planner,
        may_send: Callable[[str, str], bool],
        tell: Callable[[str, Message], None],
        own: Collection[str] = (),
    ) -> None:
        self._host, self._children, self._holders = host, children, tuple(holders)
        self._planner, self._may_send, self._tell = planner, may_send, tell
        self._everybody = frozenset(worker for leaves in children.values() for worker in leaves)
        self._leads = host.name == self._holders[0]
        self._layout: Layout | None = None
        self._estimate, self._meter = Estimate(own), Meter()
        self._number = 0  # of the newest table
        self._tables: dict[int, _Planned] = {}
        self._recent: dict[int, Table] = {}  # by which contributions may still come
        # By table, way and child: see `origins_of`.
        self._below: dict[tuple[int, int, str], frozenset[str]] = {}
        self._current = 0  # the table by which is answered; 0: none
        self._pending = 0  # the one that is used as soon as all are linked
        self._void = 0  # of a holder that does not lead: tables up to this are over
        self._last: dict[int, tuple[Update, Any]] = {}  # by slice: what was answered last, if by a table
        self._sizes = [0, 0, 0]  # of slices that were answered: as they are, encoded up, and down
        self._up_bytes: dict[int, int] = {}
        self._turn, self._turn_at = -1, 0.0
        self._turns = 0
        self._plan_at = FIRST_PLAN_TURNS  # behind so many turns
        self._may_plan_at = 0.0
        self._pause = AGAIN_TURNS
        self._routes: Routes | None = None  # of the table that is used
        self._is_planning = False
        self._strayed: dict[frozenset[str], int] = {}  # pairs: the turn up to which they are not used
        self._without_s: list[float] = []  # what rounds took without a table
        self._with_s: list[float] = []  # and by this one

    def begin(self, layout: Layout) -> None:
        """The model is known."""
        self._layout = layout

    # -- answering ----------------------------------------------------------------------------------------------

    def answers(self, slice_: Slice, update: Update) -> tuple[Update, tuple[str, ...] | None]:
        """An update as it goes down, and to whom; None: to all."""
        planned = self._tables.get(self._current)
        if planned is None or not is_routed(slice_, update):
            return update, None
        way = planned.table.of[slice_.index]
        if way < 0:
            return update, None
        return msgspec.structs.replace(update, table=self._current), planned.receivers[way]

    def answered(self, slice_: Slice, update: Update, payload: Any) -> None:
        """A slice was answered."""
        if not is_routed(slice_, update):
            return
        if update.table:  # it may have to be sent again
            self._last[slice_.index] = update, payload
        else:
            self._last.pop(slice_.index, None)
        if payload is not None:
            sizes = slice_.size_bytes, self._up_bytes.get(slice_.index, payload.nbytes), payload.nbytes
            self._sizes = [size + known for size, known in zip(sizes, self._sizes, strict=True)]
        if update.turn > self._turn:
            self._begin_turn(update.turn)

    def misses(self, child: str, index: int, turn: int) -> None:
        """A child has no answer to what it has pushed: if there is one, it may have gone with a relay."""
        known = self._last.get(index)
        peer = self._host.peer(child)
        if known is None or peer is None or known[0].turn != turn:
            return
        update, payload = known
        assert self._layout is not None
        self._host.send(peer, update, payload, priority_of(self._layout.slices[index]))

    def apart(self, index: int, turn: int, names: AbstractSet[str]) -> None:
        """What these workers have contributed to a slice does not count, since it was added to somebody else's."""
        for child, leaves in self._children.items():
            if not names.isdisjoint(leaves) and (peer := self._host.peer(child)) is not None:
                self._host.send(peer, Apart(index, turn))

    def origins_of(self, child: str, push: Push) -> AbstractSet[str]:
        """Whose contributions a child may send: its own workers', and by a table of all that send through it."""
        if not push.table:
            return set(self._children[child])
        if (table := self._recent.get(push.table)) is None:
            return self._everybody
        way = table.of[push.slice]
        if way < 0 or child not in table.nodes:
            return set(self._children[child])
        known = self._below.get((push.table, way, child))
        if known is None:
            members = below(table.ways[way].up, table.nodes.index(child))
            known = frozenset(worker for each in members for worker in self._children[table.nodes[each]])
            self._below[push.table, way, child] = known
        return known

    def came(self, push: Push, payload: Any) -> None:
        """A contribution has come."""
        if payload is not None and hasattr(payload, "nbytes"):
            self._up_bytes[push.slice] = payload.nbytes

    def measured(self, measured: Measured) -> None:
        """What has left for others of late."""
        self._meter.take_in(measured)

    # -- what comes from members and other holders ----------------------------------------------------------------

    def on_message(self, sender: str, message: Message) -> None:
        """Raises `ProtocolError` for what nobody may say here."""
        is_first = sender == self._holders[0]
        if isinstance(message, Table) and is_first:
            self._keep(checked(message))
        elif isinstance(message, Use) and is_first:
            self._current = message.number if message.number > self._void else 0
        elif isinstance(message, Void) and not self._leads:
            self._void_up_to(min(message.number, max(self._recent, default=0) + RECENT_TABLES))
        elif isinstance(message, Unanswered):
            self.misses(sender, message.slice, message.turn)
        elif isinstance(message, Rates):
            self._told_rates(sender, message)
        elif isinstance(message, Linked) and self._leads:
            for other, seconds in message.round_trips_s.items():
                if other in self._children and 0.0 <= seconds < MOST_ROUND_TRIP_S:
                    self._estimate.round_trip(sender, other, seconds)
            self._linked(sender, message.number)
        elif isinstance(message, Strayed) and self._leads and message.peer in self._children:
            self._strayed[frozenset((sender, message.peer))] = self._turns + STRAYED_TURNS
            if message.number in self._tables:
                self.void(f"{sender} does not reach {message.peer}")
        else:
            raise ProtocolError(f"{type(message).__name__} was sent to {self._host.name}")

    def _told_rates(self, sender: str, rates: Rates) -> None:
        """What cannot be is left out."""
        nodes = {*self._children, *self._holders}
        sent = {peer: rate for peer, rate in rates.by_peer.items() if peer in nodes and _may_be(rate)}
        ends = (rate if _may_be(rate) else 0.0 for rate in (rates.leaving, rates.entering))
        self._estimate.told(sender, sent, *ends)

    def void(self, why: str) -> None:
        """Tables so far are over."""
        if not self._leads:
            self._void_up_to(max(self._tables, default=0))
            return
        if self._number not in self._tables:
            self._plan_at = min(self._plan_at, max(self._turns + 1, FIRST_PLAN_TURNS))
            return
        self._tables.clear()
        self._use(0)
        for child in self._children:
            if (peer := self._host.peer(child)) is not None:
                self._host.send(peer, Void(self._number))
        self._plan_at = self._turns + 1
        self._host.note("overlay", "info", table=self._number, state="void", reason=why)

    def _void_up_to(self, number: int) -> None:
        self._void = max(number, self._void)
        self._tables = {newer: planned for newer, planned in self._tables.items() if newer > self._void}
        if self._current <= self._void:
            self._current = 0

    # -- planning -------------------------------------------------------------------------------------------------

    def _begin_turn(self, turn: int) -> None:
        """A turn has been answered in part, for the first time."""
        now, took_s = self._host.now, self._host.now - self._turn_at
        is_next, self._turn, self._turn_at = turn == self._turn + 1 and self._turns > 0, turn, now
        self._turns += 1
        if (rates := self._meter.take()) is not None:
            if self._leads:
                self.on_message(self._host.name, rates)
            else:
                self._tell(self._holders[0], rates)
        if not self._leads:
            return
        if is_next:
            kept = self._with_s if self._current else self._without_s
            kept.append(took_s)
            del kept[:-ROUNDS_COMPARED]
        if self._planner.every_turns and self._is_worse():
            self._leave()
        elif self._turns >= self._plan_at and not self._is_planning and now >= self._may_plan_at:
            self._plan()

    def _is_worse(self) -> bool:
        if not (self._current and self._without_s):
            return False
        without_s = median(self._without_s)
        if len(self._with_s) == ROUNDS_COMPARED and median(self._with_s) <= without_s:
            self._pause = AGAIN_TURNS
        few, many = self._with_s[-ROUNDS_FEW:], self._with_s
        return (len(few) == ROUNDS_FEW and median(few) > FAR_WORSE * without_s) or (
            len(many) == ROUNDS_COMPARED and median(many) > WORSE * without_s
        )

    def _leave(self) -> None:
        with_s, without_s = median(self._with_s), median(self._without_s)
        self._use(0)
        self._plan_at, self._pause = self._turns + self._pause, 2 * self._pause
        why = f"rounds took {with_s:.3g} s by it, and {without_s:.3g} s without"
        self._host.note("overlay", "info", table=self._number, state="left", reason=why)

    def _plan(self) -> None:
        members = self._host.welcomed()
        if self._layout is None or len(members) < 2:
            return
        self._is_planning, self._may_plan_at = True, self._host.now + PLAN_PAUSE_S
        used = {pair for pair, until in self._strayed.items() if until > self._turns}

        def may_send(one: str, other: str) -> bool:
            return frozenset((one, other)) not in used and self._may_send(one, other)

        self._estimate.settle()
        links = self._estimate.links(members, self._holders, may_send)
        layout, number, planner = self._layout, self._number + 1, self._planner
        loads, holders = self._loads(layout), self._holders
        used_now = self._tables.get(self._current)
        is_same = used_now is not None and used_now.table.nodes == (*members, *holders)
        current = self._routes if is_same else None

        def work() -> Routes | str:
            try:
                routes = planner.plan(links, loads, number, current)
                return with_names(routes.fault(links, loads), (*members, *holders)) or routes
            except ConfigError as error:  # such as a fixed table that others than now could take
                return with_names("; ".join(map(str, error.faults)), (*members, *holders))
            except Exception as error:  # a planner's, maybe a user's: it costs time, and no run
                return f"the planner failed with {error!r}"

        def planned(routes: Routes | str) -> None:
            self._is_planning = False
            if isinstance(routes, str):
                self._keep_to_the_star(routes)
            elif members == self._host.welcomed():
                self._publish(layout, number, tuple(members), routes)

        self._host.run_job(work, planned, PLAN_COST_BYTES)

    def _keep_to_the_star(self, why: str) -> None:
        level = "info" if self._current or not self._planner.every_turns else "debug"
        self._use(0)
        again = min((until for until in self._strayed.values() if until > self._turns), default=1 << 62)
        self._plan_at = self._turns + every if (every := self._planner.every_turns) else again
        self._host.note("overlay", level, state="star", reason=why)

    def _loads(self, layout: Layout) -> list[Load]:
        whole, up, down = self._sizes
        shards = layout.shards(len(self._holders))
        return [
            Load(
                shards[slice_.index],
                max(1, slice_.size_bytes * up // whole) if whole else slice_.size_bytes,
                max(1, slice_.size_bytes * down // whole) if whole else slice_.size_bytes,
            )
            for slice_ in layout.slices
            if slice_.role == "weight"
        ]

    def _publish(self, layout: Layout, number: int, members: tuple[str, ...], routes: Routes) -> None:
        """A table has been planned."""
        every = self._planner.every_turns
        self._plan_at = self._turns + every if every else 1 << 62
        if self._current and routes == self._routes:
            return
        places = iter(routes.of)
        of = tuple(next(places) if slice_.role == "weight" else -1 for slice_ in layout.slices)
        ways = tuple(Way(route.up, route.down) for route in routes.routes)
        if all(route.depth == 2 for route in routes.routes):
            self._keep_to_the_star("no table is faster")
            return
        self._number, self._pending, self._routes = number, number, routes
        table = Table(number, members + self._holders, ways, of)
        planned = self._keep(table)
        planned.waits_for = set(members)
        for holder in self._holders[1:]:
            self._tell(holder, table)
        for name in members:
            if (peer := self._host.peer(name)) is not None:
                self._host.send(peer, table)

    def _keep(self, table: Table) -> _Planned:
        members = len(table.nodes) - len(self._holders)
        me = members + self._holders.index(self._host.name)
        others = tuple(child for child in self._children if child not in table.nodes)  # that follow the run
        receivers = tuple(
            (*(table.nodes[member] for member, giver in enumerate(way.down) if giver == me), *others)
            for way in table.ways
        )
        self._recent[table.number] = table
        for number in list(self._recent)[:-RECENT_TABLES]:
            del self._recent[number]
        self._below = {key: names for key, names in self._below.items() if key[0] in self._recent}
        planned = self._tables[table.number] = _Planned(table, receivers)
        self._tables = {
            number: kept for number, kept in self._tables.items() if number in (self._current, table.number)
        }
        return planned

    def _linked(self, member: str, number: int) -> None:
        planned = self._tables.get(number)
        if planned is None or number != self._pending:
            return
        planned.waits_for.discard(member)
        if not planned.waits_for:
            self._use(number)
            nodes, ways = planned.table.nodes, planned.table.ways
            relays = {parent for way in ways for parent in way.up if parent < len(way.up)}
            names = ", ".join(nodes[relay] for relay in sorted(relays))
            self._host.note("overlay", "info", table=number, state="used", ways=len(ways), relays=names)

    def _use(self, number: int) -> None:
        self._pending = 0
        if number == self._current:
            return
        if not (number and self._current):  # one table follows another: what rounds take by tables counts
            self._with_s.clear()
        self._current = number
        for holder in self._holders[1:]:
            self._tell(holder, Use(number))


def _may_be(rate: float) -> bool:
    return LEAST_RATE <= rate <= MOST_RATE
