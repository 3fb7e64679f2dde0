"""One table at one shard: its rows, its clocks, and what of it is not done; and how a cut keeps it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from geomx.codecs.pack.values import FORMS
from geomx.errors import ProtocolError
from geomx.tables.clocks import Clocks
from geomx.tables.hashing import Keys
from geomx.tables.keys import CameLists
from geomx.tables.requests import OfTable, Open, Sync
from geomx.tables.rows import Rows


class Came(NamedTuple):
    """A request that is not answered."""

    worker: str
    number: int
    asked: OfTable


class Given(NamedTuple):
    """What a worker has pushed: rows in a number form, which a job reads."""

    worker: str
    keys: Keys
    form: str
    rows: torch.Tensor | None

    def read(self, columns: int) -> torch.Tensor:
        """[keys, columns]. Raises `ProtocolError`."""
        if self.rows is None:
            return torch.empty(0, columns)
        count = len(self.keys) * columns
        try:
            found = FORMS[self.form]().unpack(self.rows.reshape(-1), count, torch.float32)
        except ProtocolError as error:
            raise ProtocolError(f"what {self.worker} has pushed to a table: {error}") from error
        return found.view(-1, columns)

    def only(self, which: npt.NDArray[np.bool_], columns: int) -> Given:
        """Of its rows these."""
        if which.all():
            return self
        at, rows = np.flatnonzero(which), None
        if len(at):
            rows = FORMS["float32"]().pack(self.read(columns)[torch.from_numpy(at)].reshape(-1))
        return Given(self.worker, self.keys[at], "float32", rows)


class Waiting(NamedTuple):
    """A pull that waits for others."""

    request: Came
    clock: int
    keys: Keys
    form: str
    since: float


class Table:
    """One table at one shard."""

    def __init__(self, index: int, opened: Open, rows: Rows, goes_on: bool) -> None:
        self.index, self.opened, self.rows = index, opened, rows
        self.clocks = Clocks(opened.staleness, goes_on)
        self.lists: dict[str, CameLists] = {}  # by worker
        self.ahead: list[
            tuple[Came, int]
        ] = []  # pushes of those who are far ahead, which are not answered yet
        self.is_open, self.since = False, 0.0  # since when it is being opened
        self.opening: list[Came] = []
        self.syncing: dict[str, Came] = {}  # by worker: its `Sync` that waits for others
        self.synced: dict[str, int] = {}  # by worker: the last that was answered
        self.waiting: list[Waiting] = []
        # By group and clock, of pushes that are applied together.
        self.held: dict[tuple[str, int], dict[str, list[Given]]] = {}
        self.applied: dict[str, int] = {}  # by group: the clocks before this one have been


class TableState(msgspec.Struct, frozen=True, array_like=True):
    """A table in a cut; arrays by their places among its pieces."""

    opened: Open
    groups: dict[str, str]
    clocks: dict[str, int]
    present: list[str]
    is_open: bool
    held: dict[str, dict[str, list[tuple[str, int, str, int]]]]  # by clock and group, as text
    applied: dict[str, int]
    planes: tuple[int, ...]
    syncing: dict[str, int]
    synced: dict[str, int]
    lists: dict[str, list[tuple[bytes, int]]]


def cut(tables: Iterable[Table]) -> tuple[bytes, list[torch.Tensor]]:
    """All that tables are, in bytes and arrays."""
    pieces: list[torch.Tensor] = []

    def put(array: torch.Tensor) -> int:
        flat = array.reshape(-1).clone() if array.numel() else torch.empty(0, dtype=array.dtype)
        pieces.append(flat.view(torch.uint8))
        return len(pieces) - 1

    def kept(given: Given) -> tuple[str, int, str, int]:
        rows = -1 if given.rows is None else put(given.rows)
        return given.worker, put(torch.from_numpy(given.keys)), given.form, rows

    states = tuple(
        TableState(
            table.opened,
            *table.clocks.state(),
            table.is_open,
            {
                f"{clock} {group}": {w: [kept(g) for g in given] for w, given in held.items()}
                for (group, clock), held in table.held.items()
            },
            table.applied,
            tuple(put(plane) for plane in table.rows.state()),
            {worker: came.number for worker, came in table.syncing.items()},
            table.synced,
            {
                worker: [(digest, put(torch.from_numpy(keys))) for digest, keys in came.lists.items()]
                for worker, came in table.lists.items()
            },
        )
        for table in tables
    )
    return msgspec.msgpack.encode(states), pieces


def restored(what: bytes, pieces: Sequence[torch.Tensor], made: Callable[[Open], Table]) -> Iterator[Table]:
    """The inverse; `made`: an empty one."""

    def keys_at(place: int) -> Keys:
        found: Keys = pieces[place].view(torch.int64).numpy()
        return found

    for state in msgspec.msgpack.decode(what, type=tuple[TableState, ...]):
        table = made(state.opened)
        table.clocks.put_back(state.groups, state.clocks, state.present)
        table.is_open, table.applied = state.is_open, dict(state.applied)
        asked = Sync(state.opened.table)
        table.syncing = {worker: Came(worker, number, asked) for worker, number in state.syncing.items()}
        table.synced = dict(state.synced)
        for key, held in state.held.items():
            clock, _, group = key.partition(" ")
            table.held[group, int(clock)] = {
                worker: [
                    Given(whose, keys_at(keys), form, None if rows < 0 else pieces[rows])
                    for whose, keys, form, rows in given
                ]
                for worker, given in held.items()
            }
        keys, *planes = (pieces[place] for place in state.planes)
        values, *kept = (plane.view(torch.float32).view(-1, state.opened.columns) for plane in planes)
        table.rows.put_back(keys.view(torch.int64), values, kept)
        for worker, each in state.lists.items():
            came = table.lists[worker] = CameLists()
            came.lists.update((digest, keys_at(place)) for digest, place in each)
        yield table


def update_together(rows: Rows, given: list[Given], columns: int) -> None:
    """The sum of several, in this order, as one update."""
    if len(given) == 1:
        rows.update(given[0].keys, given[0].read(columns))
        return
    keys, places = np.unique(np.concatenate([each.keys for each in given]), return_inverse=True)
    total, start = torch.zeros(len(keys), columns), 0
    for each in given:
        stop = start + len(each.keys)
        total.index_add_(0, torch.from_numpy(places[start:stop]), each.read(columns))
        start = stop
    rows.update(keys, total)
