"""How rows move when a server of rows comes or goes: what it says to those who hold rows, one thing after the other.

    Turn     to the first shard, which lets one server come or go at a time, and says who holds rows
    Freeze   to all of those: take no push any more that you have not begun with; say how often each worker has pushed
    Reach    to all: take those pushes of which another has taken its part; so all have parts of the same pushes
    Give     rows, and pushes that wait for others, to whoever is to hold them from now on; who has them keeps them
    Take     these
    Keep     from a server that goes, to the shard that leads to it: what it has counted, for whoever asks once more
    Commit   to the first shard, which tells all: from now on these hold rows; who has others drops them

What workers ask meanwhile waits, and is sent back behind it: they cut it by the new holders, and ask again. Until the
first shard has committed, nothing is lost where the server that comes dies: the others go on as they were.
`geomx.tables.holding` is what each of them does about it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any

import msgspec
import torch

from geomx.errors import ProtocolError, Unsupported
from geomx.tables.requests import Holders, Open, decoded, packed, unpacked

LARGEST_PIECE_BYTES, AT_ONCE = 4 << 20, 4  # of rows in one message; such messages by each way


class TableAt(msgspec.Struct, frozen=True, array_like=True):
    """Where a table stands at one server: who has opened it, in which group, and how often each has pushed."""

    opened: Open
    is_open: bool
    groups: dict[str, str]
    clocks: dict[str, int]


class Turn(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The server wants to come or to go. Answered by `Holders`, once no other does, or by `No`.

    Its `serial` is in all that follows: what comes of a turn that is over is answered by `No`.
    """


class Freeze(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Answered by `Yes`, with `tables` beside it, once the turn before is over here."""

    serial: int


class Reach(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Beside it: `tables`. Answered by `Yes`, when they stand here so, too. Whoever holds no rows yet makes them."""

    serial: int


class Give(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A piece, from 0, of what of a table is to be another's when these hold rows. Answered by `Given`."""

    serial: int
    table: str
    piece: int
    to: int
    places: tuple[int, ...]


class Take(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A piece that was given. Answered by `Yes`."""

    serial: int
    table: str
    held: tuple[str, int, str] | None


class Keep(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """To the shard that leads to it: what the server that goes has taken of each worker, beside it as `taken`.

    What it sends back from then on is not among that.
    """


class Commit(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """These hold rows from now on. Answered by `Yes`, when it is decided, and others are being told."""

    serial: int
    places: tuple[int, ...]


class Yes(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """It is done."""


class No(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """It cannot be."""

    reason: str


class Given(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """A piece, of so many: `keys` and `planes` of rows; or `keys` and `rows` of a push that waits for others.

    `held`: that push's group, clock and worker.
    """

    pieces: int
    held: tuple[str, int, str] | None = None


Move = Turn | Freeze | Reach | Give | Take | Keep | Commit
Answer = Yes | No | Given | Holders
Asks = Generator[
    list[tuple[int, Move, torch.Tensor | None]], list[tuple[Answer, dict[str, torch.Tensor]]], None
]
_moves: msgspec.msgpack.Decoder[Move] = msgspec.msgpack.Decoder(Move)
_answers: msgspec.msgpack.Decoder[Answer] = msgspec.msgpack.Decoder(Answer)
_tables = msgspec.msgpack.Decoder(tuple[TableAt, ...])


def read_move(what: bytes) -> Move:
    """Raises `ProtocolError` for what is none."""
    return decoded(_moves, what, "request of a row server")


def read_move_answer(what: bytes) -> Answer:
    """Raises `ProtocolError` for what is none."""
    return decoded(_answers, what, "answer to a row server")


def as_array(value: Any) -> torch.Tensor:
    """As it goes in a payload, since a message's head is short."""
    return torch.frombuffer(bytearray(msgspec.msgpack.encode(value)), dtype=torch.uint8)


def tables_in(arrays: Mapping[str, torch.Tensor]) -> tuple[TableAt, ...]:
    """The `tables` of a payload. Raises `ProtocolError`."""
    found = arrays.get("tables")
    return () if found is None else decoded(_tables, found.contiguous().numpy().tobytes(), "tables")


def furthest(said: Sequence[tuple[TableAt, ...]]) -> tuple[TableAt, ...]:
    """What all are to reach: each table that is open somewhere, with every worker's clock where it is furthest."""
    found: dict[str, TableAt] = {}
    for each in (table for tables in said for table in tables):
        name = each.opened.table
        before = found.get(name, each)
        clocks = {
            worker: max(of.get(worker, 0) for of in (before.clocks, each.clocks))
            for worker in before.clocks.keys() | each.clocks.keys()
        }
        is_open = before.is_open or each.is_open
        found[name] = TableAt(before.opened, is_open, before.groups | each.groups, clocks)
    return tuple(table for table in found.values() if table.is_open)


def moves(me: int, comes: bool, leads: int, taken: Callable[[], torch.Tensor]) -> Asks:
    """All that a server of that place says to come, or else to go: yields what to ask, by place, and gets the answers.

    `leads`: the place of the shard that leads to it; `taken()`: for `Keep`. Raises `ProtocolError`.
    """
    ((holders, _),) = yield [(0, Turn(), None)]
    if not isinstance(holders, Holders) or (me in holders.places) == comes:
        raise ProtocolError(f"answered by {holders}")
    before = holders.places
    places = tuple(sorted({*before, me})) if comes else tuple(place for place in before if place != me)
    frozen = yield [(place, Freeze(holders.serial), None) for place in before]
    target = furthest([tables_in(arrays) for _, arrays in frozen])
    told = packed(tables=as_array(target))
    serial = holders.serial
    yield [(place, Reach(serial), told) for place in sorted({*before, me})]
    ways = [(place, me) for place in before] if comes else [(me, place) for place in places]
    for table in target:
        yield from _all_rows(serial, ways, table.opened.table, places)
    if not comes:
        yield [(leads, Keep(), packed(taken=taken()))]
    yield [(0, Commit(serial, places), None)]


def spoken(
    asks: Asks,
) -> Generator[list[tuple[int, bytes, torch.Tensor | None]], list[tuple[bytes, Any]], None]:
    """The same as it travels. Raises `Unsupported` where the first shard says that it cannot be."""
    wanted = next(asks)
    while True:
        came = yield [(place, msgspec.msgpack.encode(move), payload) for place, move, payload in wanted]
        answers = [(read_move_answer(what), unpacked(payload)) for what, payload in came]
        for answer, _ in answers:
            if isinstance(answer, No):
                raise Unsupported(answer.reason)
        try:
            wanted = asks.send(answers)
        except StopIteration:
            return


def _all_rows(serial: int, ways: list[tuple[int, int]], table: str, places: tuple[int, ...]) -> Asks:
    """Of a table: by each of these ways, from one place to another, some pieces at a time."""
    left, first = ways, 0
    while left:
        asked = [(way, piece) for way in left for piece in range(first, first + AT_ONCE)]
        gives = [(source, Give(serial, table, piece, to, places), None) for (source, to), piece in asked]
        takes: list[tuple[int, Move, torch.Tensor | None]] = []
        further = []
        for ((source, to), piece), (given, arrays) in zip(asked, (yield list(gives)), strict=True):
            if not isinstance(given, Given):
                raise ProtocolError(f"answered by {given}")
            if arrays:
                takes.append((to, Take(serial, table, given.held), packed(**arrays)))
            if piece == first and given.pieces > first + AT_ONCE:
                further.append((source, to))
        if takes:
            yield takes
        left, first = further, first + AT_ONCE
