"""What a worker asks a shard about a table, and what the shard answers. Arrays go beside it, in a bundle."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
import torch

from geomx.codecs.bundle import Bundle, Bundles, Entry
from geomx.errors import ProtocolError
from geomx.layout import Slice
from geomx.tables.sandblaster.vectors import Answer, VectorAsked

MOST_ROWS, MOST_COLUMNS = 1 << 62, 1 << 20
OF_NO_CLOCK = -1  # of a push that is applied as it comes, and counts in no clock
NO_SLICE = Slice(0, "uint8", 0, "call", 0, ())  # bundles know nothing of one
_BUNDLES = Bundles()
Said = TypeVar("Said")


class Open(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """The worker uses a table. All but `group` is the same on all workers. Answered by `Done`, once all have.

    `epoch`, here and below: by which `Holders` of rows the worker has cut what it asks; others answer by theirs.
    """

    table: str
    rows: int
    columns: int
    init: str
    rule: str
    staleness: int | None
    group: str = ""
    epoch: int = 0

    @property
    def terms(self) -> tuple[object, ...]:
        """In what all workers agree."""
        return self.rows, self.columns, self.init, self.rule, self.staleness


class Push(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Update rows. `clock`: how often the worker has pushed before, or `OF_NO_CLOCK`; `digest`: of the keys.

    Beside it: `keys`, unless they are known, and `rows`, in the number form `form`. Answered by `Done`.
    """

    table: str
    clock: int
    digest: bytes
    form: str
    epoch: int = 0


class Pull(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Read rows, when all are far enough for a worker with this clock. Beside it: `keys`, likewise.

    Answered by `Done` with `rows` beside it.
    """

    table: str
    clock: int
    digest: bytes
    form: str
    epoch: int = 0


class Scan(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Read `count` of all rows that have been touched, from `start`. Answered by `Done` with `keys` and `rows`."""

    table: str
    start: int
    count: int
    epoch: int = 0


class Put(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Give rows these values; what their rule keeps of them begins anew. Beside it: `keys`, and `rows` as float32.

    Answered by `Done`.
    """

    table: str
    epoch: int = 0


class Sync(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """Apply every push of the worker's group. Answered by `Done`, once all of the group have asked for it."""

    table: str
    epoch: int = 0


class Done(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An answer. `clock`: where the asker's stands; `slowest`: of its group.

    To `Scan` also `clocks`, of all workers, and `rows`: how many have been touched.
    """

    clock: int
    slowest: int
    clocks: dict[str, int] = {}
    rows: int = 0


class Holders(msgspec.Struct, frozen=True, array_like=True, tag=True):
    """An answer: who holds rows, by place, since so many changes; cut it by these, and ask again.

    `serial`: among servers, of the last turn to come or go that is over, or of the one that is answered.
    """

    epoch: int
    places: tuple[int, ...]
    serial: int = 0


OfTable = Open | Push | Pull | Scan | Put | Sync
Asked = OfTable | VectorAsked
_asked: msgspec.msgpack.Decoder[Asked] = msgspec.msgpack.Decoder(Asked)
_answered: msgspec.msgpack.Decoder[Done | Holders | Answer] = msgspec.msgpack.Decoder(Done | Holders | Answer)


def decoded(decoder: msgspec.msgpack.Decoder[Said], what: bytes, told: str) -> Said:
    """What was said. Raises `ProtocolError` for what is no `told`."""
    try:
        return decoder.decode(what)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"no {told}: {error}") from error


def read_request(what: bytes) -> Asked:
    """Raises `ProtocolError` for what is none."""
    return decoded(_asked, what, "request about a table")


def read_answer(what: bytes) -> Done | Holders | Answer:
    """Raises `ProtocolError` for what is none."""
    return decoded(_answered, what, "answer about a table")


def written(message: Asked | Done | Holders | Answer) -> bytes:
    """As it travels."""
    return msgspec.msgpack.encode(message)


def packed(**arrays: torch.Tensor) -> torch.Tensor | None:
    """A payload of arrays by name; None of none."""
    if not arrays:
        return None
    entries = tuple(
        Entry(name, "first", str(array.dtype).removeprefix("torch."), tuple(array.shape))
        for name, array in arrays.items()
    )
    return _BUNDLES.encode(NO_SLICE, 0, Bundle(entries, tuple(each.reshape(-1) for each in arrays.values())))


def unpacked(payload: Any) -> dict[str, torch.Tensor]:
    """The inverse. Raises `ProtocolError`."""
    if payload is None:
        return {}
    bundle = _BUNDLES.decode(NO_SLICE, payload)
    return {entry.name: array.view(entry.shape) for entry, array in zip(*bundle, strict=True)}
