"""A shard's whole state at one moment: what stands in the log before that need not be read any more, nor kept.

The moment is one at which nothing is under way: no round closes until the jobs of those that have closed are done, and
the log has them. Then a job of each slice copies what changes in place, behind no other and before any that comes
later; so a cut costs the time of a copy, slice by slice, while everything else goes on. Rounds that have closed and
wait for a word (hyper-parameters, a norm) stand in the cut as they stand in the log.

A cut is the beginning of a log: the model, hyper-parameters, norms, the state, rounds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import accumulate, pairwise
from typing import Any, NamedTuple, Protocol

import msgspec
import torch

from geomx.errors import GeomxError
from geomx.layout import Slice
from geomx.node.contract import Cut, Effect, Mark
from geomx.node.durable.journal import Journal
from geomx.node.durable.records import CutState, Record, SliceCut, encode, handed_in, record_of
from geomx.node.durable.state import Packed, RootSlice, Stateful
from geomx.node.members.attendance import Attendance
from geomx.node.members.reception import Reception
from geomx.node.slices.handed_over import HandedOver
from geomx.node.slices.join_state import SliceStanding
from geomx.node.slices.update_stream import UpdateEncoder
from geomx.optim.contract import SliceState
from geomx.rounds.gathering import Gathering
from geomx.rounds.membership import Members
from geomx.rounds.roster import at_first
from geomx.tree import EVERYONE

HOLDER = "cut"
COMPENSATION = "compensation/"


class CutHost(Protocol):
    """The server around it."""

    journal: Journal
    members: Members
    attendance: Attendance
    reception: Reception
    handed_over: HandedOver

    @property
    def now(self) -> float: ...
    @property
    def has_jobs(self) -> bool: ...
    @property
    def down(self) -> UpdateEncoder: ...
    @property
    def mine(self) -> list[Slice]: ...
    def slice_of(self, index: int) -> Slice: ...
    def emit(self, effect: Effect) -> None: ...
    def note(self, name: str, level: str = "debug", **fields: Any) -> None: ...


class CutTimes(NamedTuple):
    """When cuts are due, where anything was written since the last.

    `every_s`: how often. `keep_bytes`: or once so much was written, and as much as the last cut had.
    """

    every_s: float
    keep_bytes: float


class Cutting:
    """Takes the cuts of one server."""

    def __init__(self, server: CutHost, root: Stateful, gathering: Gathering, times: CutTimes) -> None:
        self._server, self._root, self._gathering, self._times = server, root, gathering, times
        self._next_at: float | None = None
        self._written = self._bytes = 0  # how many records there were at the last, and bytes of them
        self._size = 0  # of the last
        self._is_due = self._is_under_way = False
        self._begun = 0.0

    def tick(self) -> None:
        """Notice that it is time for one."""
        server = self._server
        if self._next_at is None:
            self._next_at = server.now + self._times.every_s
        is_full = server.journal.bytes - self._bytes > max(self._times.keep_bytes, self._size)
        is_time = (is_full or server.now >= self._next_at) and server.journal.written > self._written
        if is_time and not (self._is_due or self._is_under_way) and server.reception.layout is not None:
            self._is_due, self._begun = True, server.now
            self._gathering.hold(HOLDER)
        self.look()

    def at_once(self) -> None:
        """Take one as soon as can be: those before are lost."""
        self._is_under_way, self._next_at, self._written = False, self._server.now, -1
        self.tick()

    def look(self) -> None:
        """Take one that is due, if nothing is under way."""
        server = self._server
        if not self._is_due or server.has_jobs or not server.journal.is_stored:
            return
        self._is_due, self._is_under_way = False, True
        self._written, self._next_at = server.journal.written, server.now + self._times.every_s
        self._bytes = server.journal.bytes
        server.emit(Mark())
        self._take()
        self._gathering.resume(server.now, HOLDER)

    def stored(self, error: GeomxError | None) -> None:
        """It is in the store; or it is not, and the log is what it was."""
        self._is_under_way = False
        if error is not None:
            self._server.note("no_cut", "warning", reason=str(error))
        else:
            self._server.note("cut", "debug", seconds=self._server.now - self._begun)

    def _take(self) -> None:
        server, root = self._server, self._root
        before: list[tuple[Record, list[torch.Tensor]]] = [server.reception.model()]
        before += [(message, []) for message in root.told()]
        behind: list[tuple[Record, list[torch.Tensor]]] = list(server.journal.promises)
        behind += [record_of(index, round_) for index, round_ in root.waiting()]
        behind += [handed_in(*each) for each in server.handed_over.waiting]
        behind.append(root.above.asked.state())
        everybody, members = server.members.order, server.members
        state = CutState(
            members.left(everybody),
            members.begins(everybody),
            {name: dict(turns) for name, turns in server.attendance.departed.items()},
            server.attendance.absences,
            root.above.rosters,
            root.above.settled,
            dict(server.reception.state.steps),
            (),
        )

        def done(slices: list[Packed]) -> None:
            whole = msgspec.structs.replace(state, slices=tuple(each.head for each in slices))
            pieces = [piece for each in slices for piece in each.pieces]
            records = [*before, (whole, pieces), *behind]
            self._size = sum(piece.nbytes for piece in pieces)
            server.emit(Cut([(encode(record), payload) for record, payload in records]))

        self.pack(done)

    def pack(self, then: Callable[[list[Packed]], None]) -> None:
        """All slices as they stand now, each within a job of its own."""
        packed: dict[int, Packed] = {}

        def done(one: Packed) -> None:
            packed[one.head.index] = one
            if len(packed) == len(self._server.mine):
                then([packed[index] for index in sorted(packed)])

        for slice_ in self._server.mine:
            self._root.take(slice_, self._packing(slice_), done)

    def _packing(self, slice_: Slice) -> Callable[[RootSlice], Packed]:
        """As the slice stands now, but for what the root has of it, which comes later."""
        down, standing = self._server.down, self._server.reception.state.kept(slice_.index)
        closed = self._gathering.turns.closed
        turns = {cohort: turn for (index, cohort), turn in closed.items() if index == slice_.index}
        return partial(pack, slice_, standing, down.anchors(slice_), down.versions.all(slice_), turns)


def pack(
    slice_: Slice,
    standing: SliceStanding,
    anchors: Mapping[str, torch.Tensor],
    versions: dict[str, int],
    closed: dict[str, int],
    root: RootSlice,
) -> Packed:
    """A slice, as it stands. What is the same bit for bit is there once."""
    pieces: list[torch.Tensor] = []

    def put(values: torch.Tensor) -> int:
        flat = values.reshape(-1).view(torch.uint8)
        for place, other in enumerate(pieces):
            if other.numel() == flat.numel() and torch.equal(other, flat):
                return place
        pieces.append(flat)
        return len(pieces) - 1

    compensation = {f"{COMPENSATION}{name}": plane for name, plane in root.compensation.items()}
    head = SliceCut(
        slice_.index,
        (),
        None if root.weights is None else put(root.weights),
        {name: put(plane) for name, plane in {**root.state.planes, **compensation}.items()},
        root.state.scalars,
        root.version,
        root.seen,
        {cohort: put(values) for cohort, values in anchors.items()},
        versions,
        {cohort: (put(values), version) for cohort, (values, version) in standing.held.items()},
        {
            cohort: (turn, None, -1) if was is None else (turn, put(was[0]), was[1])
            for cohort, (turn, was) in standing.before.items()
        },
        standing.answered,
        closed,
    )
    sizes = tuple(piece.numel() for piece in pieces)
    return Packed(msgspec.structs.replace(head, pieces=sizes), pieces)


def put_back(server: CutHost, root: Stateful, gathering: Gathering, state: CutState, payload: Any) -> None:
    """The inverse, at a server that has the model and nothing else."""
    members, newest = server.members, state.rosters[-1] if state.rosters else at_first(server.members.tree)
    members.put_back(members.tree.workers_in(newest.out), state.left, state.begins)
    server.attendance.put_back(newest, state.absences, state.departed)
    root.above.put_back(state.rosters, state.settled)
    server.reception.state.learn(state.steps)
    at = 0
    for head in state.slices:
        size = sum(head.pieces)
        _put_back_slice(server, root, gathering, head, payload[at : at + size])
        at += size
    last = max((head.closed.get(EVERYONE, -1) for head in state.slices), default=-1)
    gathering.at_barrier(members.order.keys(), last, server.now)


def _put_back_slice(
    server: CutHost, root: Stateful, gathering: Gathering, head: SliceCut, payload: torch.Tensor
) -> None:
    slice_ = server.slice_of(head.index)
    ends = list(accumulate(head.pieces, initial=0))
    pieces = [payload[start:end].clone() for start, end in pairwise(ends)]
    dtype: torch.dtype = getattr(torch, slice_.dtype)

    def values(place: int) -> torch.Tensor:
        return pieces[place].view(dtype)

    planes = {name: values(place) for name, place in head.planes.items()}
    kept = RootSlice(
        None if head.weights is None else values(head.weights),
        SliceState({n: p for n, p in planes.items() if not n.startswith(COMPENSATION)}, head.scalars),
        {n.removeprefix(COMPENSATION): p for n, p in planes.items() if n.startswith(COMPENSATION)},
        head.version,
        head.seen,
    )
    root.put_back(slice_, kept)
    anchors = {cohort: values(place) for cohort, place in head.anchors.items()}
    server.down.put_back(slice_, anchors, head.versions)
    standing = SliceStanding(
        {cohort: (pieces[place], version) for cohort, (place, version) in head.held.items()},
        {
            cohort: (turn, None if place is None else (pieces[place], version))
            for cohort, (turn, place, version) in head.before.items()
        },
        head.answered,
    )
    server.reception.state.put_back(head.index, standing)
    for cohort, turn in head.closed.items():
        gathering.turns.passed(head.index, cohort, turn)
