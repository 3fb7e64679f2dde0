"""A log in a store: records, one behind the other, in pieces that are written whole.

A piece is one object, `log-0000000007`; their numbers have no gap, and a piece is written when all before it are. So
what is there after a crash is a beginning of what was written. Nobody writes a piece that there is: of two who believe
that the log is theirs, such as one that was stopped and the one that was started in its place, one is told so at its
next piece. Each record is a header and a payload:

    4 bytes   length of the header, little-endian      8 bytes   length of the payload
    the header, the payload
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence

from geomx.store.contract import Bytes, Store, StoreError

LENGTHS = struct.Struct("<IQ")
PIECE = "log-{:010}"


class Log:
    """One log. `name`: what its pieces' names begin with, such as `my-run/global.0`."""

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self._next = 0

    def read(self) -> Iterator[tuple[int, bytes, memoryview]]:
        """All records that are there: the number of their piece, header, payload. What is written comes behind them.

        Raises `StoreError` where pieces are missing, or are no log.
        """
        for name in self._store.list(f"{self._name}/{PIECE[:4]}"):
            number = int(name.rpartition("-")[2])
            if self._next not in (0, number):
                raise StoreError(f"store: {self._name} has no {PIECE.format(self._next)}, and later ones")
            self._next = number + 1
            content = self._store.get(name)
            if content is None:
                raise StoreError(
                    f"store: {name} has gone while it was read: does another process use this run's store?"
                )
            for header, payload in _records(name, content):
                yield number, header, payload

    def write(self, records: Sequence[tuple[bytes, Sequence[Bytes]]]) -> int:
        """Write a piece with these records: headers and the pieces of payloads; gives its number.

        Raises `StoreError`, also where another process has written it.
        """
        number, parts = self._next, list[Bytes]()
        for header, payload in records:
            parts += [LENGTHS.pack(len(header), sum(map(len, payload))), header, *payload]
        if not self._store.create(f"{self._name}/{PIECE.format(number)}", parts):
            raise StoreError(
                f"store: another process writes {self._name}, and this one ends: it was taken for dead"
            )
        self._next += 1
        return number

    def clear(self) -> None:
        """Remove it: the run has ended."""
        self._store.delete(self._store.list(f"{self._name}/"))

    def forget(self, before: int) -> None:
        """Remove the pieces before this number, the first ones first."""
        names = self._store.list(f"{self._name}/{PIECE[:4]}")
        self._store.delete([name for name in names if int(name.rpartition("-")[2]) < before])


def _records(name: str, content: bytes) -> Iterator[tuple[bytes, memoryview]]:
    view, at = memoryview(content), 0
    while at < len(view):
        if len(view) - at < LENGTHS.size:
            raise StoreError(f"store: {name} is cut off")
        head, body = LENGTHS.unpack_from(view, at)
        at += LENGTHS.size
        if len(view) - at < head + body:
            raise StoreError(f"store: {name} is cut off")
        yield bytes(view[at : at + head]), view[at + head : at + head + body]
        at += head + body
