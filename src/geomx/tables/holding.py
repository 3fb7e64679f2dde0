"""Which servers hold rows, and one server's part when that changes; see `geomx.tables.moving`.

Three things happen to what a worker asks:

    taken     it was cut by those who hold rows now
    waiting   a change is under way, or this server has yet to hear of one: it is looked at again behind that
    back      it was cut by others than those who hold rows now: the worker is told who does, and asks again

So a push counts by the change before or behind it, at all servers alike.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple, Protocol

import msgspec
import numpy as np
import torch

from geomx.codecs.pack.values import FORMS
from geomx.errors import ProtocolError
from geomx.tables.hashing import Keys
from geomx.tables.host import Host
from geomx.tables.moving import (
    LARGEST_PIECE_BYTES,
    Answer,
    Commit,
    Freeze,
    Give,
    Given,
    Keep,
    Move,
    No,
    Reach,
    TableAt,
    Take,
    Turn,
    Yes,
    as_array,
    tables_in,
)
from geomx.tables.requests import OF_NO_CLOCK, Holders, Open, Push, Put, packed
from geomx.tables.ring import Ring
from geomx.tables.table import Came, Table
from geomx.tables.table import Given as Pushed


class Moving(Protocol):
    """The tables whose rows move."""

    tables: dict[str, Table]

    def take(self, came: Came, payload: Any, again: bool, now: float) -> None:
        """A request that is to be taken now."""

    def opens(self, at: TableAt) -> None:
        """A table that others have opened is here, too, without rows."""

    def changed(self) -> None:
        """See `TableShard.changed`."""

    def settle(self, target: Mapping[str, TableAt], keeps: Callable[[Keys], Any]) -> None:
        """A change is over: tables stand as these, others were opened by nobody; `keeps(keys)`: which are here."""


class _Waiting(NamedTuple):
    """A request that waits for a change's end."""

    came: Came
    payload: Any
    since: float


class _Taken(NamedTuple):
    """What a server that is gone has taken of a worker: of which incarnation, from and to which number.

    `back`: what of that it has sent back.
    """

    incarnation: int
    first: int
    last: int
    back: frozenset[int]

    def has(self, incarnation: int, number: int) -> bool:
        """Whether it has taken a push."""
        return (
            incarnation == self.incarnation and self.first <= number <= self.last and number not in self.back
        )


@dataclass
class _Change:
    """That is under way. `target`: what this server is to reach, by table; None: it does not know yet."""

    serial: int
    target: dict[str, TableAt] | None = None
    reached: bool = False
    asker: tuple[str, int] = ("", 0)  # whose `Reach` is to be answered, and its number
    moving: dict[tuple[str, int], Any] = field(default_factory=dict)  # by table and place: places of its rows


class Holding:
    """See the module's text. `place`: this server's among `names`, of whom the first `shards` begin with all rows."""

    def __init__(self, host: Host, tables: Moving, place: int, names: Sequence[str], shards: int) -> None:
        self._host, self._tables, self._place, self._names = host, tables, place, tuple(names)
        self.now = Holders(0, tuple(range(shards)))
        self._change: _Change | None = None
        self._freezes: list[tuple[str, int, Freeze]] = []  # for a turn behind this one
        self._waiting: dict[str, deque[_Waiting]] = {}  # by worker, in order
        self._back: dict[str, set[int]] = {}  # by worker: pushes and puts that were sent back
        self._gone: dict[int, dict[str, list[_Taken]]] = {}  # by place, of each process that was there
        # At the first shard:
        self._turns: deque[tuple[str, int]] = deque()
        self._turn = ""  # whose it is
        self._serial = 0  # how many there were

    @property
    def moves(self) -> bool:
        """Whether rows are on their way, so that nothing here may change."""
        return self._change is not None and self._change.reached

    def may_open(self, table: str) -> bool:
        """Whether a table may open now."""
        change = self._change
        return change is None or (change.target is not None and table in change.target)

    # -- what workers ask ---------------------------------------------------------------------------------------

    def begins(self, worker: str) -> None:
        """See `TableShard.begins`."""
        self._waiting.pop(worker, None)
        self._back.pop(worker, None)

    def admits(self, came: Came, payload: Any, again: bool, now: float) -> bool:
        """Whether a request is to be taken now; else it waits, or is sent back."""
        worker, asked = came.worker, came.asked
        if again:
            if any(each.came.number == came.number for each in self._waiting.get(worker, ())):
                return False
            if isinstance(asked, Push | Put):
                if is_back := came.number in self._back.get(worker, ()):
                    self.send_back(came)
                return not is_back
        if asked.epoch < self.now.epoch or (
            asked.epoch == self.now.epoch and self._place not in self.now.places
        ):
            self.send_back(came)
            return False
        if asked.epoch == self.now.epoch and self._change is None:
            return True
        self._waiting.setdefault(worker, deque()).append(_Waiting(came, payload, now))
        self._go_on(worker)
        self.look()
        return False

    def send_back(self, came: Came) -> None:
        """Tell a worker who holds rows."""
        if isinstance(came.asked, Push | Put):
            self._back.setdefault(came.worker, set()).add(came.number)
        self._host.respond(came.worker, came.number, msgspec.msgpack.encode(self.now), None)

    def look(self) -> None:
        """Whether this server has reached what it is to reach, now that something has changed."""
        change = self._change
        if change is None or change.target is None or change.reached:
            return
        present = set(self._host.present())
        for at in change.target.values():
            table = self._tables.tables.get(at.opened.table)
            if table is None or not table.is_open:
                return
            there = table.clocks.all()
            if any(there.get(each, 0) < clock for each, clock in at.clocks.items() if each in present):
                return
        change.reached = True
        self._answer(*change.asker, Yes())

    def _go_on(self, worker: str) -> None:
        """Take what of a worker belongs before the change."""
        change, waiting = self._change, self._waiting.get(worker)
        while waiting and change is not None and change.target is not None and not change.reached:
            came = waiting[0].came
            if came.asked.epoch != self.now.epoch:
                return
            if isinstance(came.asked, Open):
                at = change.target.get(came.asked.table)
                if at is None or worker not in at.groups:  # other servers would not know of it
                    return
            if isinstance(came.asked, Push) and came.asked.clock != OF_NO_CLOCK:
                at, table = change.target.get(came.asked.table), self._tables.tables.get(came.asked.table)
                if at is None or table is None:
                    return
                if came.asked.clock >= at.clocks.get(worker, 0):
                    table.clocks.reached(
                        worker, at.clocks.get(worker, 0)
                    )  # the run went on without it so far
                    return
            first = waiting.popleft()
            self._tables.take(first.came, first.payload, False, first.since)

    # -- a change -----------------------------------------------------------------------------------------------

    def asked(self, server: str, number: int, move: Move, arrays: dict[str, torch.Tensor]) -> None:
        """A row server asks. Raises `ProtocolError`."""
        if isinstance(move, Turn):
            self._turns.append((server, number))
            self._next_turn()
        elif isinstance(move, Keep):
            self._keep(server, arrays)
            self._answer(server, number, Yes())
        elif isinstance(move, Freeze) and move.serial > self.now.serial:
            self._freeze(server, number, move)
        elif isinstance(move, Reach) and self._place not in self.now.places:
            self._change = _Change(move.serial)
            for at in (target := tables_in(arrays)):
                self._tables.opens(at)
            self._reach(server, number, self._change, target)
        elif (change := self._change) is None or change.serial != move.serial:
            self._answer(
                server, number, No("its turn is over, since the first shard has heard nothing of it")
            )
        elif isinstance(move, Commit):
            self._commit(server, number, move)
        elif isinstance(move, Reach):
            self._reach(server, number, change, tables_in(arrays))
        elif isinstance(move, Give):
            self._give(server, number, change, move)
        elif isinstance(move, Take):
            self._take(move, arrays)
            self._answer(server, number, Yes())

    def _freeze(self, server: str, number: int, freeze: Freeze) -> None:
        if self._change is not None and self._change.serial < freeze.serial:
            self._freezes.append((server, number, freeze))
            return
        self._change = _Change(freeze.serial)
        standing = tuple(
            TableAt(table.opened, table.is_open, dict(table.clocks.groups), dict(table.clocks.all()))
            for table in self._tables.tables.values()
        )
        self._answer(server, number, Yes(), packed(tables=as_array(standing)))

    def _reach(self, server: str, number: int, change: _Change, target: tuple[TableAt, ...]) -> None:
        change.target = {at.opened.table: at for at in target}
        change.asker = server, number
        for worker in list(self._waiting):
            self._go_on(worker)
        self.look()

    def _give(self, server: str, number: int, change: _Change, give: Give) -> None:
        table = self._tables.tables.get(give.table)
        if table is None or give.piece < 0:
            raise ProtocolError(f"asks for piece {give.piece} of the table {give.table!r}")
        is_its = self._belongs(give.places, give.to)
        held = [
            ((group, clock, worker), each)
            for (group, clock), by_worker in sorted(table.held.items())
            for worker, given in by_worker.items()
            for each in given
        ]
        rows, columns = table.rows, table.opened.columns

        def work() -> tuple[Given, torch.Tensor | None]:
            if (give.table, give.to) not in change.moving:
                keys = rows.keys()
                at = np.flatnonzero(is_its(keys))
                change.moving[give.table, give.to] = at, keys[at]
            at, keys = change.moving[give.table, give.to]
            most = max(1, LARGEST_PIECE_BYTES // (8 + 4 * columns * rows.planes))
            of_rows = -(-len(at) // most)
            if give.piece < of_rows:
                some = slice(give.piece * most, (give.piece + 1) * most)
                return Given(of_rows + len(held)), packed(
                    keys=torch.from_numpy(keys[some]), planes=rows.some(at[some])
                )
            if give.piece - of_rows >= len(held):
                return Given(of_rows + len(held)), None
            whose, pushed = held[give.piece - of_rows]
            its = np.flatnonzero(is_its(pushed.keys))
            keys, values = pushed.keys[its], pushed.read(columns)[torch.from_numpy(its)]
            return Given(of_rows + len(held), whose), packed(keys=torch.from_numpy(keys), rows=values)

        def then(made: tuple[Given, torch.Tensor | None]) -> None:
            self._answer(server, number, *made)

        self._host.run(table.index, work, then, 2 * LARGEST_PIECE_BYTES)

    def _take(self, take: Take, arrays: dict[str, torch.Tensor]) -> None:
        table, keys = self._tables.tables.get(take.table), arrays.get("keys")
        if table is None or keys is None or keys.dtype != torch.int64 or keys.dim() != 1:
            raise ProtocolError(f"rows for the table {take.table!r} that cannot be taken")
        columns, planes, rows = table.opened.columns, arrays.get("planes"), arrays.get("rows")
        if take.held is None:
            shape = (table.rows.planes, len(keys), columns)
            if planes is None or planes.dtype != torch.float32 or planes.shape != shape:
                raise ProtocolError(f"rows for the table {take.table!r} of another shape than {list(shape)}")
            put = partial(table.rows.take, keys.numpy(), planes.clone())
            self._host.run(table.index, put, lambda _: None, 4 * planes.nbytes)
            return
        if rows is None or rows.dtype != torch.float32 or rows.shape != (len(keys), columns):
            raise ProtocolError(
                f"a push for the table {take.table!r} of another shape than {columns} columns"
            )
        group, clock, worker = take.held
        form = FORMS["float32"]().pack(rows.reshape(-1)) if len(keys) else None
        pushed = Pushed(worker, keys.numpy().copy(), "float32", form)
        table.held.setdefault((group, clock), {}).setdefault(worker, []).append(pushed)

    def _commit(self, server: str, number: int, commit: Commit) -> None:
        if self._turn != server or self._change is None:
            self._answer(server, number, No("its turn is over"))
            return
        self._turn = ""
        holders = Holders(self.now.epoch + 1, commit.places, self._change.serial)
        self._host.announce(msgspec.msgpack.encode(holders))
        self._answer(server, number, Yes())
        self.told(holders)
        self._next_turn()

    def told(self, holders: Holders) -> None:
        """These hold rows: others than before, or, where a change came to nothing, those of before."""
        change, is_new = self._change, holders.epoch > self.now.epoch
        if not is_new and (change is None or change.serial > holders.serial):
            self.now = holders  # another's turn has come to nothing
            return
        self.now, self._change = holders, None
        if is_new:
            target = {} if change is None or change.target is None else change.target
            self._tables.settle(target, self._belongs(holders.places, self._place))
            self._host.holders([self._names[place] for place in holders.places])
        self._tables.changed()  # as far as it was held up
        waiting, self._waiting = self._waiting, {}
        for each in (each for of_worker in waiting.values() for each in of_worker):
            if self.admits(each.came, each.payload, False, each.since):
                self._tables.take(each.came, each.payload, False, each.since)
        freezes, self._freezes = self._freezes, []
        for server, number, freeze in freezes:
            self.asked(server, number, freeze, {})

    def _belongs(self, places: tuple[int, ...], to: int) -> Callable[[Keys], Any]:
        """Which keys are those of a place, where these hold rows."""
        if to not in places:
            return lambda keys: np.zeros(len(keys), bool)
        ring = Ring([self._names[place] for place in places])
        return lambda keys: ring.shards_of(keys) == places.index(to)

    # -- the first shard ------------------------------------------------------------------------------------------

    def lost(self, server: str) -> None:
        """A row server that holds no rows is gone: what it had begun has come to nothing."""
        self._turns = deque(each for each in self._turns if each[0] != server)
        if self._turn != server:
            return
        self._turn = ""
        holders = msgspec.structs.replace(self.now, serial=self._serial)
        self._host.announce(msgspec.msgpack.encode(holders))
        self.told(holders)
        self._next_turn()

    def _next_turn(self) -> None:
        if self._turn or not self._turns:
            return
        server, number = self._turns.popleft()
        if self._host.keeps_log():
            reason = "row servers with a store or run.replicas: what moves is in no log yet; leave these out"
            self._answer(server, number, No(reason))
            self._next_turn()
            return
        self._turn, self._serial = server, self._serial + 1
        self._answer(server, number, msgspec.structs.replace(self.now, serial=self._serial))

    # -- those who are gone ---------------------------------------------------------------------------------------

    def taken(self, taken: Mapping[str, tuple[int, int, int, int]]) -> torch.Tensor:
        """What a server that goes has taken, for `Keep`; what waits is to be sent back."""
        told = {}
        for worker, (incarnation, last, before, first) in taken.items():
            waits = {each.came.number for each in self._waiting.get(worker, ())}
            back = waits | self._back.get(worker, set())
            told[worker] = (
                incarnation,
                first,
                last,
                sorted(number - before for number in back if number > before),
            )
        return as_array(told)

    def _keep(self, server: str, arrays: dict[str, torch.Tensor]) -> None:
        try:
            told = msgspec.msgpack.decode(
                arrays["taken"].numpy().tobytes(), type=dict[str, tuple[int, int, int, list[int]]]
            )
        except (msgspec.MsgspecError, ValueError, KeyError, TypeError) as error:
            raise ProtocolError(f"{server} does not say what it has taken: {error}") from error
        gone = self._gone.setdefault(self._names.index(server), {})
        for worker, (incarnation, first, last, back) in told.items():
            gone.setdefault(worker, []).append(_Taken(incarnation, first, last, frozenset(back)))

    def has_taken(self, place: int, worker: str, incarnation: int, number: int) -> bool:
        """Whether a server that is gone has taken a push."""
        return any(taken.has(incarnation, number) for taken in self._gone.get(place, {}).get(worker, ()))

    def _answer(self, server: str, number: int, answer: Answer, payload: torch.Tensor | None = None) -> None:
        self._host.respond(server, number, msgspec.msgpack.encode(answer), payload)
