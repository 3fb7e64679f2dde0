"""The tables of one shard: takes requests of workers, in the order in which they come, and answers them.

    open     once every worker that takes part has opened the table
    push     at once; the rows change in a job, or with staleness 0 when all of the group have pushed as often
    pull     when nobody of the group is too far behind; the rows are read in a job behind what has come before
    scan     in such a job

Where rows come to other servers than before, it waits or is sent back: see `geomx.tables.holding`. Jobs of one table
follow each other. Nothing here sends, waits or computes by itself: see `Host`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch

from geomx.codecs.pack.noise import key_of
from geomx.codecs.pack.values import FORMS
from geomx.errors import ConfigError, Disagreement, ProtocolError, Unsupported
from geomx.tables import table_inits, table_rules
from geomx.tables.hashing import Keys
from geomx.tables.holding import Holding
from geomx.tables.host import Host
from geomx.tables.keys import CameLists, decoded
from geomx.tables.moving import TableAt, moves, read_move, spoken
from geomx.tables.requests import (
    MOST_COLUMNS,
    MOST_ROWS,
    OF_NO_CLOCK,
    Done,
    Holders,
    Open,
    Pull,
    Push,
    Put,
    Scan,
    Sync,
    packed,
    read_answer,
    read_request,
    unpacked,
    written,
)
from geomx.tables.rows import Rows
from geomx.tables.sandblaster.vectors import Answer, VectorAsked, VectorShard
from geomx.tables.table import Came, Given, Table, Waiting, cut, restored, update_together
from geomx.tree import ROW_SERVERS

MOST_TABLES, MOST_NAME, MOST_SCANNED = 256, 256, 1 << 20
VECTORS = -1  # in the place of a table's number: their jobs follow each other, too
MOST_AHEAD = 64  # pushes that one may be ahead of the bound without waiting


class TableShard:
    """See the module's text. `goes_on`: the run does, without those who are lost.

    `trusted`: rules and inits beside the built-in ones that the description names. `place`: its own among those that
    may hold rows, see `Tree.holders`; the first `shards` of them are shards.
    """

    def __init__(
        self,
        host: Host,
        seed: int,
        goes_on: bool,
        trusted: Iterable[str] = (),
        place: int = 0,
        holders: Sequence[str] = ("global/0",),
        shards: int = 1,
    ) -> None:
        self._host, self._seed, self._goes_on = host, seed, goes_on
        self._trusted = frozenset(trusted)
        self.tables: dict[str, Table] = {}
        self._made_so_far, self._place = 0, place
        self._vectors = VectorShard(self)
        self.holding = Holding(host, self, place, holders, shards)

    def begins(self, worker: str) -> None:
        """A worker's script has been started, maybe once more: what its former self had asked is nobody's."""
        self._vectors.begins(worker)
        self.holding.begins(worker)
        for table in self.tables.values():
            table.lists[worker] = CameLists()
            table.opening = [each for each in table.opening if each.worker != worker]
            table.syncing.pop(worker, None)
            table.synced.pop(worker, None)
            table.waiting = [each for each in table.waiting if each.request.worker != worker]
            table.ahead = [each for each in table.ahead if each[0].worker != worker]

    def asked(self, worker: str, number: int, what: bytes, payload: Any, again: bool, now: float) -> None:
        """A request. `again`: it came before, and its answer was lost, or is to come. Raises GeomxError."""
        if worker in ROW_SERVERS:
            self.holding.asked(worker, number, read_move(what), unpacked(payload))
            return
        asked = read_request(what)
        if isinstance(asked, VectorAsked):
            self._vectors_asked(worker, number, asked, payload, again)
            return
        came = Came(worker, number, asked)
        if self.holding.admits(came, payload, again, now):
            self.take(came, payload, again, now)
            self.holding.look()

    def take(self, came: Came, payload: Any, again: bool, now: float) -> None:
        """See `Moving`. Raises GeomxError."""
        worker, number, asked = came
        if isinstance(asked, Open):
            self._open(came, asked, now)
            return
        table = self.tables.get(asked.table)
        if table is None or worker not in table.clocks.groups:
            raise ProtocolError(f"{worker} asks for the table {asked.table!r}, which it has not opened")
        if isinstance(asked, Scan):
            self._scan(table, came, asked)
        elif isinstance(asked, Sync):
            if number <= table.synced.get(worker, 0):
                self._done(table, came)
                return
            table.syncing[worker] = came
            self._look_whether_all_sync(table, table.clocks.groups[worker])
        elif again and isinstance(asked, Push | Put):
            if all(each.number != number or each.worker != worker for each, _ in table.ahead):
                self._done(table, came)
        elif isinstance(asked, Put):
            arrays = unpacked(payload)
            self._put(table, decoded(arrays, table.opened.rows), arrays.get("rows"))
            self._done(table, came)
        elif isinstance(asked, Push | Pull):
            self._keyed(table, came, asked, unpacked(payload), now)

    def _vectors_asked(self, worker: str, number: int, asked: VectorAsked, payload: Any, again: bool) -> None:
        if self._host.keeps_log():
            raise Unsupported(
                "run.minimize() with a store or run.replicas: its vectors are in no log yet; leave these out"
            )
        take = self._vectors.asked_again if again else self._vectors.asked
        take(worker, number, asked, unpacked(payload).get("values"))

    def run(self, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int) -> None:
        """See `VectorHost`."""
        self._host.run(VECTORS, function, then, cost_bytes)

    def answer(
        self, worker: str, number: int, numbers: tuple[float, ...], values: torch.Tensor | None = None
    ) -> None:
        """See `VectorHost`."""
        payload = None if values is None else packed(values=values)
        self._host.respond(worker, number, written(Answer(numbers)), payload)

    def changes(self, worker: str, what: bytes, payload: Any) -> bool:
        """Whether a request belongs in the shard's log. Of a pull, keys that others will name, or a new clock."""
        if worker in ROW_SERVERS:  # which a shard with a log refuses
            return False
        asked = read_request(what)
        if isinstance(asked, Pull):
            table = self.tables.get(asked.table)
            is_known = table is not None and worker in table.clocks.groups
            return payload is not None or (is_known and asked.clock > table.clocks.of(worker))  # type: ignore[union-attr]
        return isinstance(asked, Open | Push | Put | Sync)

    def state(self) -> tuple[bytes, list[torch.Tensor]]:
        """See `geomx.node.requests.Service`."""
        return cut(self.tables.values())

    def put_back(self, what: bytes, pieces: Sequence[torch.Tensor]) -> None:
        """The inverse, where no table was opened."""
        for table in restored(what, pieces, self._made):
            self.tables[table.opened.table] = table

    def changed(self) -> None:
        """Others take part than before."""
        for table in self.tables.values():
            table.clocks.changed(self._host.present())
            if self.holding.moves:
                continue
            self._look_whether_open(table)
            for group in sorted(set(table.clocks.groups.values())):
                self._apply(table, group)
                self._look_whether_all_sync(table, group)
            self._look(table)
        self.holding.look()
        self._vectors.changed(self._host.present())

    # -- rows that move -------------------------------------------------------------------------------------------

    def told(self, what: bytes) -> None:
        """See `Service`."""
        holders = read_answer(what)
        if not isinstance(holders, Holders):
            raise ProtocolError("the first shard tells nothing about who holds rows")
        self.holding.told(holders)

    def standing(self) -> bytes:
        """See `Service`."""
        return written(self.holding.now)

    def elsewhere(self, worker: str, incarnation: int, number: int, place: int, what: bytes) -> bytes | None:
        """See `Service`."""
        asked, holders = read_request(what), self.holding.now
        if isinstance(asked, VectorAsked):
            raise ProtocolError(f"{worker} asks a row server for vectors")
        if isinstance(asked, Push | Put) and self.holding.has_taken(place, worker, incarnation, number):
            table = self.tables.get(asked.table)
            return written(Done(0, 0) if table is None else self._standing(table, worker))
        return None if place in holders.places or asked.epoch > holders.epoch else written(holders)

    def holds(self, place: int) -> bool:
        """See `Service`."""
        return place in self.holding.now.places

    def moves(
        self, comes: bool, leads: int, taken: Callable[[], Mapping[str, tuple[int, int, int, int]]]
    ) -> Generator[list[tuple[int, bytes, torch.Tensor | None]], list[tuple[bytes, Any]], None]:
        """See `geomx.node.rows.row_server.RowService`."""
        return spoken(moves(self._place, comes, leads, lambda: self.holding.taken(taken())))

    def lost(self, server: str) -> None:
        """See `Service`."""
        self.holding.lost(server)

    def opens(self, at: TableAt) -> None:
        """See `Moving`."""
        table = self.tables[at.opened.table] = self._made(at.opened)
        table.clocks.put_back(at.groups, at.clocks, self._host.present())
        table.is_open = True
        table.lists = {worker: CameLists() for worker in at.groups}

    def settle(self, target: Mapping[str, TableAt], keeps: Callable[[Keys], Any]) -> None:
        """See `Moving`."""
        for name, table in list(self.tables.items()):
            pulls = (each.request for each in table.waiting)
            for came in (*table.opening, *table.syncing.values(), *pulls):
                self.holding.send_back(came)
            for came, _ in table.ahead:
                self._done(table, came)
            table.opening, table.syncing, table.waiting, table.ahead = [], {}, [], []
            if name not in target:
                del self.tables[name]
                continue
            for worker, clock in target[name].clocks.items():
                table.clocks.reached(worker, clock)
            table.lists = {worker: CameLists() for worker in table.lists}
            for held in table.held.values():
                for worker, given in held.items():
                    held[worker] = [each.only(keeps(each.keys), table.opened.columns) for each in given]
            self._host.run(table.index, partial(table.rows.keep, keeps), lambda _: None, 0)

    def behind(self, now: float) -> Iterable[tuple[str, str, list[str], float]]:
        """Who waits: in which table, whose pull or opening, for whom, and for how many seconds."""
        for table in self.tables.values():
            for came in table.opening:
                late = [each for each in self._host.present() if each not in table.clocks.groups]
                yield table.opened.table, came.worker, late, now - table.since
            for each in table.waiting:
                worker = each.request.worker
                yield table.opened.table, worker, table.clocks.behind(worker, each.clock), now - each.since

    def _keyed(
        self,
        table: Table,
        request: Came,
        asked: Push | Pull,
        arrays: dict[str, torch.Tensor],
        now: float,
    ) -> None:
        worker, number = request.worker, request.number
        keys = table.lists[worker].named(asked.digest, decoded(arrays, table.opened.rows))
        if asked.form not in FORMS:
            raise ProtocolError(f"rows in a form {asked.form!r}")
        if not table.clocks.can_be(worker, asked.clock):
            raise ProtocolError(
                f"{worker} has a clock of {asked.clock}, where others have {table.clocks.all()}"
            )
        if isinstance(asked, Pull):
            table.clocks.reached(worker, asked.clock)
            table.waiting = [
                each
                for each in table.waiting
                if (each.request.worker, each.request.number) != (worker, number)
            ]
            table.waiting.append(Waiting(request, asked.clock, keys, asked.form, now))
            self._look(table)
        else:
            self._push(table, request, asked, keys, arrays.get("rows"))

    # -- opening --------------------------------------------------------------------------------------------------

    def _open(self, request: Came, opened: Open, now: float) -> None:
        table = self.tables.get(opened.table)
        if table is None:
            table = self.tables[opened.table] = self._made(opened)
            table.since = now
        elif table.opened.terms != opened.terms:
            raise Disagreement(
                f"{request.worker} opens the table {opened.table!r} with {_told(opened)}, others with "
                f"{_told(table.opened)}; every worker must open it alike"
            )
        table.lists.setdefault(request.worker, CameLists())
        table.clocks.opened(request.worker, opened.group, self._host.present())
        table.opening = [each for each in table.opening if each.worker != request.worker] + [request]
        self._look_whether_open(table)

    def _made(self, opened: Open) -> Table:
        fits = 0 < opened.rows <= MOST_ROWS and 0 < opened.columns <= MOST_COLUMNS
        fits = fits and (opened.staleness is None or opened.staleness >= 0) and len(opened.table) <= MOST_NAME
        if not fits or len(self.tables) == MOST_TABLES:
            raise ProtocolError(f"a table of {_told(opened)}")
        for registry, spec in ((table_rules, opened.rule), (table_inits, opened.init)):
            kind = spec.partition(" ")[0]
            if kind not in registry.names and kind not in self._trusted:
                raise Unsupported(
                    f"the {registry.what} {kind!r} is not one of {', '.join(registry.names)}; your own must be named "
                    "in the description: run.table_classes"
                )
        try:
            init = table_inits.make(opened.init, key_of(self._seed, opened.table))
            rule = table_rules.make(opened.rule)
        except ConfigError as error:
            raise Unsupported(f"the table {opened.table!r}: {error}") from error
        self._made_so_far += 1
        return Table(self._made_so_far, opened, Rows(opened.columns, init, rule, opened.table), self._goes_on)

    def _look_whether_open(self, table: Table) -> None:
        """Nobody begins before everybody has opened: else the clocks of some would be unknown."""
        if table.is_open or (
            table.clocks.groups.keys() >= set(self._host.present())
            and self.holding.may_open(table.opened.table)
        ):
            table.is_open = True
            opening, table.opening = table.opening, []
            for request in opening:
                self._done(table, request)

    # -- pushes ---------------------------------------------------------------------------------------------------

    def _push(self, table: Table, request: Came, push: Push, keys: Keys, rows: torch.Tensor | None) -> None:
        worker, columns, clocks = request.worker, table.opened.columns, table.clocks
        size = FORMS[push.form]().size_bytes(len(keys) * columns)
        if (rows is None) != (not len(keys)) or (
            rows is not None and (rows.dtype != torch.uint8 or rows.numel() != size)
        ):
            raise ProtocolError(f"rows that do not fit {len(keys)} keys in {push.form}")
        given, group = Given(worker, keys, push.form, rows), clocks.groups[worker]
        is_late = push.clock < clocks.of(worker)
        clocks.reached(worker, push.clock + 1)
        if is_late and push.clock != OF_NO_CLOCK and not self._goes_on:
            pass  # the script that was started again has made it before
        elif table.opened.staleness == 0 and push.clock >= table.applied.get(group, 0):
            table.held.setdefault((group, push.clock), {}).setdefault(worker, []).append(given)
            self._apply(table, group)
        else:
            self._update(table, [given])
        if push.clock - clocks.slowest(worker) > MOST_AHEAD + (table.opened.staleness or 0):
            table.ahead.append((request, push.clock))
        else:
            self._done(table, request, behind_jobs=table.opened.staleness != 0)
        self._look(table)

    def _apply(self, table: Table, group: str) -> None:
        """Where pushes of one number are applied together: those of which all have come. All, of a group that left."""
        if table.opened.staleness != 0:
            return
        members = [each for each in self._host.present() if table.clocks.groups.get(each) == group]
        slowest = min((table.clocks.of(each) for each in members), default=MOST_ROWS)
        for clock in sorted(clock for of, clock in table.held if of == group and clock < slowest):
            held = table.held.pop((group, clock))
            self._update(table, [given for each in sorted(held) for given in held[each]])
        if members:
            table.applied[group] = max(slowest, table.applied.get(group, 0))

    def _update(self, table: Table, given: list[Given]) -> None:
        columns = table.opened.columns
        cost_bytes = 16 * columns * sum(len(each.keys) for each in given)
        work = partial(update_together, table.rows, given, columns)
        self._host.run(table.index, work, lambda _: None, cost_bytes)

    def _put(self, table: Table, keys: Keys | None, rows: torch.Tensor | None) -> None:
        if keys is None or rows is None or rows.dtype != torch.float32:
            raise ProtocolError("no rows that can be put")
        if rows.shape != (len(keys), table.opened.columns):
            raise ProtocolError(f"rows of shape {list(rows.shape)} for {len(keys)} keys")
        self._host.run(table.index, partial(table.rows.put, keys, rows), lambda _: None, 4 * rows.nbytes)

    def _look_whether_all_sync(self, table: Table, group: str) -> None:
        """All of a group have come to a `Sync`: what is held is applied, and their clocks go on together."""
        members = [each for each in self._host.present() if table.clocks.groups.get(each) == group]
        if not members or not table.syncing.keys() >= set(members):
            return
        table.clocks.level(members[0])
        self._apply(table, group)
        for worker in [each for each in table.syncing if table.clocks.groups[each] == group]:
            request = table.syncing.pop(worker)
            table.synced[worker] = request.number
            self._done(table, request, behind_jobs=True)
        self._look(table)

    # -- pulls ----------------------------------------------------------------------------------------------------

    def _look(self, table: Table) -> None:
        """Answer the pulls that wait for nobody any more."""
        ahead, table.ahead = table.ahead, []
        for request, clock in ahead:
            if clock - table.clocks.slowest(request.worker) > MOST_AHEAD + (table.opened.staleness or 0):
                table.ahead.append((request, clock))
            else:
                self._done(table, request)
        waiting, table.waiting = table.waiting, []
        for each in waiting:
            if table.clocks.behind(each.request.worker, each.clock):
                table.waiting.append(each)
            else:
                self._read(table, each)

    def _read(self, table: Table, pull: Waiting) -> None:
        done, form = self._standing(table, pull.request.worker), FORMS[pull.form]()

        def work() -> torch.Tensor | None:
            return packed(rows=form.pack(table.rows.read(pull.keys).reshape(-1)))

        def then(payload: torch.Tensor | None) -> None:
            self._host.respond(pull.request.worker, pull.request.number, written(done), payload)

        self._host.run(table.index, work, then, 8 * len(pull.keys) * table.opened.columns)

    def _scan(self, table: Table, request: Came, scan: Scan) -> None:
        if scan.start < 0 or not 0 < scan.count <= MOST_SCANNED:
            raise ProtocolError(f"a scan of {scan.count} rows from {scan.start}")
        standing = self._standing(table, request.worker)
        clocks = dict(table.clocks.all())

        def work() -> tuple[int, torch.Tensor | None]:
            keys, rows = table.rows.part(scan.start, scan.count)
            return table.rows.count, packed(keys=torch.from_numpy(keys), rows=rows)

        def then(made: tuple[int, torch.Tensor | None]) -> None:
            count, payload = made
            done = Done(standing.clock, standing.slowest, clocks, count)
            self._host.respond(request.worker, request.number, written(done), payload)

        self._host.run(table.index, work, then, 8 * scan.count * table.opened.columns)

    def _done(self, table: Table, request: Came, behind_jobs: bool = False) -> None:
        done = written(self._standing(table, request.worker))

        def respond(_: object = None) -> None:
            self._host.respond(request.worker, request.number, done, None)

        if behind_jobs:
            self._host.run(table.index, lambda: None, respond, 0)
        else:
            respond()

    def _standing(self, table: Table, worker: str) -> Done:
        return Done(table.clocks.of(worker), table.clocks.slowest(worker))


def _told(opened: Open) -> str:
    staleness = "None" if opened.staleness is None else str(opened.staleness)
    return (
        f"rows={opened.rows}, columns={opened.columns}, init={opened.init!r}, rule={opened.rule!r}, "
        f"staleness={staleness}"
    )
