"""Bundles: arrays by name, each with what becomes of it on its way up; what collective calls carry.

    sum, max, min    element by element, in the order of origins
    first            the value of the first origin that gives one
    gather           all values, each under its origin
    same             the value, which all must give: what each says of itself, see `say`

A bundle takes the place of a slice's values. As a payload:

    head        the number of bytes of the entries, int64, in 16 bytes
    entries     msgpack, see `Entry`, and padding up to 16 bytes
    arrays      one after the other, each padded to 16 bytes, so that they can be read where they lie

Whole numbers of 64 bits are packed where that is shorter, as `pack/narrow.py` says.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import msgspec
import torch

from geomx.codecs.contract import Codec
from geomx.codecs.pack import narrow
from geomx.errors import Disagreement, ProtocolError
from geomx.layout import Slice

Op = Literal["sum", "max", "min", "first", "gather", "same"]
HEAD_BYTES, ALIGNED_BYTES, LARGEST_BYTES = 16, 16, 1 << 28
MOST_ENTRIES, MOST_DIMENSIONS, TOLD_BYTES = 1 << 16, 64, 1024
PACKED_FROM_BYTES = 512
DTYPES = frozenset(
    {"bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64"}
)
DTYPES |= {"complex64", "complex128"}
_REDUCE: dict[str, Callable[..., torch.Tensor]] = {
    "sum": torch.add,
    "max": torch.maximum,
    "min": torch.minimum,
}


class Entry(msgspec.Struct, frozen=True, array_like=True):
    """One array of a bundle. `origin`: of `gather`, whose it is. `count`: how many have given to it.

    `packed_bytes`: how many bytes it takes in a payload where it is packed, else 0.
    """

    name: str
    op: Op
    dtype: str
    shape: tuple[int, ...]
    origin: str = ""
    count: int = 1
    packed_bytes: int = 0

    @property
    def stored_bytes(self) -> int:
        return self.packed_bytes or self.size_bytes

    @property
    def size_bytes(self) -> int:
        item: int = getattr(torch, self.dtype).itemsize
        return item * math.prod(self.shape)

    @property
    def key(self) -> tuple[str, str]:
        return self.name, self.origin


class Bundle(NamedTuple):
    """Entries, and for each its array (flat)."""

    entries: tuple[Entry, ...] = ()
    arrays: tuple[torch.Tensor, ...] = ()

    @property
    def device(self) -> torch.device:
        """Where they lie."""
        return torch.device("cpu")


class Bundles(Codec):
    """Sends bundles as they are."""

    lossless = True
    feedback = False

    def encode(  # type: ignore[override]
        self, slice_: Slice, turn: int, values: Bundle, weight: float = 1.0
    ) -> torch.Tensor:
        stored = [_stored(*each) for each in zip(*values, strict=True)]
        head = msgspec.msgpack.encode([entry for entry, _ in stored])
        size = HEAD_BYTES + padded(len(head)) + sum(padded(entry.stored_bytes) for entry, _ in stored)
        payload = torch.empty(size, dtype=torch.uint8)
        payload[: HEAD_BYTES + padded(len(head))] = 0
        payload[:HEAD_BYTES].view(torch.int64)[0] = len(head)
        payload[HEAD_BYTES : HEAD_BYTES + len(head)] = torch.frombuffer(bytearray(head), dtype=torch.uint8)
        start = HEAD_BYTES + padded(len(head))
        for entry, array in stored:
            size = entry.stored_bytes
            stop, start = start + size, start + padded(size)
            if stop < start:
                payload[stop:start] = 0
            if array.numel():
                payload[stop - size : stop] = array.reshape(-1).view(torch.uint8)
        return payload

    def decode(self, slice_: Slice, payload: torch.Tensor) -> Bundle:  # type: ignore[override]
        stored, start = _entries(payload)
        entries, arrays = [], []
        for entry in stored:
            data = payload[start : start + entry.stored_bytes]
            start += padded(entry.stored_bytes)
            if entry.packed_bytes:
                arrays.append(narrow.unpack(data, math.prod(entry.shape)))
                entries.append(msgspec.structs.replace(entry, packed_bytes=0))
            else:
                arrays.append(_aligned(data, getattr(torch, entry.dtype)))
                entries.append(entry)
        return Bundle(tuple(entries), tuple(arrays))

    def accepts(self, slice_: Slice, size: int) -> bool:
        return HEAD_BYTES < size <= LARGEST_BYTES

    def cost_bytes(self, slice_: Slice) -> int:
        return 0


def _stored(entry: Entry, array: torch.Tensor) -> tuple[Entry, torch.Tensor]:
    """As it travels."""
    if entry.dtype != "int64" or entry.size_bytes < PACKED_FROM_BYTES:
        return entry, array
    packed = narrow.pack(array.reshape(-1))
    if packed.numel() >= entry.size_bytes:
        return entry, array
    return msgspec.structs.replace(entry, packed_bytes=packed.numel()), packed


def say(lines: Sequence[str]) -> torch.Tensor:
    """The array of an entry `same`: a digest of all lines, and the first of them, as far as there is room."""
    digest = hashlib.blake2b("\n".join(lines).encode(errors="replace"), digest_size=16).digest()
    told, room = list[str](), TOLD_BYTES
    for line in lines:
        room -= len(line)
        if room < 0:
            break
        told.append(line)
    return torch.frombuffer(bytearray(msgspec.msgpack.encode((digest, len(lines), told))), dtype=torch.uint8)


def _said(array: torch.Tensor) -> tuple[bytes, int, list[str]]:
    try:
        return msgspec.msgpack.decode(bytes(array.numpy()), type=tuple[bytes, int, list[str]])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"a bundle that says nothing of itself: {error}") from error


def _differences(one: torch.Tensor, other: torch.Tensor) -> tuple[str, str]:
    """Where what two say differs: the first line of each that the other has not."""
    (_, here, mine), (_, there, theirs) = _said(one), _said(other)
    for first, second in zip(mine, theirs, strict=False):
        if first != second:
            return first, second
    return (f"{here} calls", f"{there} calls") if here != there else ("other calls", "others")


def combined(bundles: Sequence[Bundle], whose: Sequence[str] = ()) -> Bundle:
    """What several make together, in the order in which they are given. `whose` they are, for messages.

    Raises `Disagreement`.
    """
    first, *others = bundles
    names = {entry.name for entry in first.entries if entry.op in _REDUCE}
    found = dict(zip((entry.key for entry in first.entries), zip(*first, strict=True), strict=True))
    owned = set[tuple[str, str]]()
    for place, other in enumerate(others, 1):
        for entry, array in zip(*other, strict=True):
            if entry.key not in found:
                found[entry.key] = entry, array
                continue
            known, total = found[entry.key]
            if entry.op == known.op == "same":
                if entry.dtype != "uint8":
                    raise ProtocolError(f"{_told(entry)}, which says nothing")
                if not torch.equal(total, array):
                    here, there = _differences(total, array)
                    first_of, second_of = (whose[0], whose[place]) if whose else ("one", "another")
                    raise Disagreement(
                        f"{first_of} called {here} where {second_of} called {there}; {SAME_CALLS}"
                    )
                found[entry.key] = msgspec.structs.replace(known, count=known.count + entry.count), total
                continue
            if (known.op, known.dtype, known.shape) != (entry.op, entry.dtype, entry.shape):
                raise Disagreement(f"{_told(known)} and {_told(entry)} meet in one call; {SAME_CALLS}")
            if entry.op not in _REDUCE:
                continue
            target = total if entry.key in owned else torch.empty_like(total)
            try:
                _REDUCE[entry.op](total, array, out=target)
            except (RuntimeError, TypeError) as error:
                raise ProtocolError(f"{_told(entry)}: {error}") from error
            owned.add(entry.key)
            found[entry.key] = msgspec.structs.replace(known, count=known.count + entry.count), target
        if {entry.name for entry in other.entries if entry.op in _REDUCE} != names:
            raise Disagreement(f"some reduce {_listed(names)}, and others do not; {SAME_CALLS}")
    return Bundle(tuple(entry for entry, _ in found.values()), tuple(array for _, array in found.values()))


SAME_CALLS = (
    "every worker must make the same calls in the same order, with arrays of the same shapes and types"
)


def padded(size: int) -> int:
    """So many bytes, and up to 16."""
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES


def _told(entry: Entry) -> str:
    return f"{entry.op} of {entry.dtype} {list(entry.shape)}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(sorted(names)) or "nothing"


def _entries(payload: torch.Tensor) -> tuple[tuple[Entry, ...], int]:
    """The entries of a payload, and where its arrays begin. Raises `ProtocolError` for what is no bundle."""
    told = (
        payload[:HEAD_BYTES].clone().view(torch.int64).tolist() if payload.numel() > HEAD_BYTES else [-1, 0]
    )
    length = told[0] if not told[1] else -1
    if not 0 < length <= payload.numel() - HEAD_BYTES:
        raise ProtocolError(f"{payload.numel()} bytes are no bundle of arrays")
    try:
        head = bytes(payload[HEAD_BYTES : HEAD_BYTES + length].numpy())
        entries = msgspec.msgpack.decode(head, type=tuple[Entry, ...])
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"no bundle of arrays: {error}") from error
    start, left, room = HEAD_BYTES + padded(length), payload.numel(), LARGEST_BYTES
    fits = len(entries) <= MOST_ENTRIES and len({entry.key for entry in entries}) == len(entries)
    for entry in entries if fits else ():
        fits = entry.dtype in DTYPES and len(entry.shape) <= MOST_DIMENSIONS and entry.count > 0
        fits = fits and all(0 <= extent <= LARGEST_BYTES for extent in entry.shape)
        fits = fits and math.prod(extent or 1 for extent in entry.shape) <= LARGEST_BYTES
        fits = fits and (not entry.packed_bytes or (entry.dtype == "int64" and entry.packed_bytes > 0))
        if not fits or entry.stored_bytes > left or entry.size_bytes > room:
            fits = False
            break
        left, room = left - entry.stored_bytes, room - entry.size_bytes
    if not fits or start + sum(padded(entry.stored_bytes) for entry in entries) != payload.numel():
        raise ProtocolError(f"{payload.numel()} bytes do not fit the arrays that they name")
    return entries, start


def _aligned(data: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    if data.data_ptr() % ALIGNED_BYTES or data.storage_offset() % dtype.itemsize:
        data = data.clone()
    return data.view(dtype)
