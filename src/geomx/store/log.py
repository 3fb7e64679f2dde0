"""A log in a store: records, one behind the other, in pieces that are written whole.

A piece is one object, `log-0000000007`; their numbers have no gap, and a piece is written when all before it are. So
what is there after a crash is a beginning of what was written. A cut, `cut-0000000007`, stands for all pieces before
its number. Those before the cut before it then go: from that one, the pieces between come to the newest, as can be
proved.

Nobody writes a piece that there is. Whoever begins to write has read all pieces, and its first one is empty: its
*fence*. A process that was taken for dead, and was only stopped, would write that one next, and so is told that it has
been replaced before it can say anything more. So fences stay for as long as the log does; a cut lists them.

Each record is a header and a payload:

    4 bytes   length of the header, little-endian      8 bytes   length of the payload
    the header, the payload

One without a header, the first of a cut, is the list of fences: 8 bytes each.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Iterator, Sequence
from itertools import chain
from typing import NamedTuple

from geomx.errors import Fenced
from geomx.store.contract import Bytes, Store, StoreError

LENGTHS = struct.Struct("<IQ")
FENCE = struct.Struct("<Q")
PIECE, CUT = "log-", "cut-"
Records = Sequence[tuple[bytes, Sequence[Bytes]]]


class Past(NamedTuple):
    """A log as it is found. `before`: from the oldest cut on. `cut`: the newest, of several. `behind`: since."""

    before: Iterator[tuple[bytes, memoryview]]
    cut: list[tuple[bytes, memoryview]]
    behind: Iterator[tuple[bytes, memoryview]]


class Log:
    """One log. `name`: what its pieces' names begin with, such as `my-run/global.0`.

    Attributes:
        next: The number of the piece that is written next.
    """

    def __init__(self, store: Store, name: str) -> None:
        self._store, self._name = store, name
        self.next = 0
        self._fences: set[int] = set()
        self._is_unsure = False
        self._ahead: dict[str, bytes] = {}  # the newest cut, by its name

    def look_ahead(self) -> None:
        """Keep what is largest in memory, for whoever is to read the log at once. Raises `StoreError`."""
        if cut := max(self._numbers(CUT), default=0):
            path = self._path(CUT, cut)
            if path not in self._ahead and (content := self._store.get(path)) is not None:
                self._ahead = {path: content}

    def read(self) -> Iterator[tuple[bytes, memoryview]]:
        """All records that are there, headers and payloads; then a fence behind them. What is written comes behind it.

        Raises `StoreError` where pieces are missing, or are no log.
        """
        for kind in (PIECE, CUT):
            self._store.sweep(f"{self._name}/{kind}")
        cut = max(self._numbers(CUT), default=0)
        self.next = cut
        pieces = self._numbers(PIECE)
        if cut:
            path = self._path(CUT, cut)
            for header, payload in _records(path, self._ahead.get(path) or self._get(CUT, cut)):
                if header:
                    yield header, payload
                else:
                    self._fences = {number for (number,) in FENCE.iter_unpack(payload)}
            self._ahead = {}
        while True:
            for number in pieces:
                if number < self.next:
                    continue
                if number > self.next:
                    raise self._gap(self.next)
                content = self._get(PIECE, number)
                if not content:
                    self._fences.add(number)
                self.next = number + 1
                yield from _records(self._path(PIECE, number), content)
            if self._store.create(self._path(PIECE, self.next), []):
                self._fences.add(self.next)
                self.next += 1
                return
            pieces = self._numbers(PIECE)  # whoever was here before has written one more

    def write(self, records: Records) -> None:
        """Write a piece with these records: headers and the pieces of payloads.

        Raises `StoreError`, behind which the same may be tried again, and `Fenced` where another process has written
        it.
        """
        path, content = self._path(PIECE, self.next), _parts(records)
        try:
            is_new = self._store.create(path, content)
        except StoreError:
            self._is_unsure = True  # it may be there all the same
            raise
        if not is_new and not (self._is_unsure and self._store.get(path) == b"".join(content)):
            raise self._fenced()
        self._is_unsure = False
        self.next += 1

    def check(self) -> None:
        """Raise `Fenced` where another process writes this log."""
        path = self._path(PIECE, self.next)
        if path in self._store.list(path):
            raise self._fenced()

    def _gap(self, number: int) -> StoreError:
        return StoreError(f"store: {self._name} has no {PIECE}{number:010}, and later ones")

    def _fenced(self) -> Fenced:
        return Fenced(f"store: another process writes {self._name}: this one was taken for dead, and ends")

    def cut(self, number: int, records: Records) -> None:
        """Write records that stand for all pieces before this number, and remove those before the last cut.

        Raises `StoreError`.
        """
        fences = [FENCE.pack(each) for each in sorted(self._fences)]
        self._store.create(self._path(CUT, number), _parts([(b"", fences), *records]))
        *old, former = [each for each in self._numbers(CUT) if each < number] or [0]
        pieces = [each for each in self._numbers(PIECE) if each < former and each not in self._fences]
        self._store.delete([self._path(CUT, each) for each in old])
        self._store.delete([self._path(PIECE, each) for each in pieces])

    def past(self) -> Past:
        """What is there, for whoever only looks. Raises `StoreError`."""
        *_, former, newest = [0, 0, *self._numbers(CUT)]
        pieces = self._numbers(PIECE)
        if newest and not former and pieces[:1] != [0]:  # what came before it has gone
            former, newest = newest, 0

        def between(start: int, end: float) -> Iterator[tuple[bytes, memoryview]]:
            due = start
            for number in pieces:
                if start <= number < end:
                    if number != due:
                        raise self._gap(due)
                    due += 1
                    yield from _records(self._path(PIECE, number), self._get(PIECE, number))

        before = chain(self._cut(former), between(former, newest)) if newest else self._cut(former)
        return Past(before, list(self._cut(newest)), between(newest or former, math.inf))

    def _cut(self, number: int) -> Iterator[tuple[bytes, memoryview]]:
        if number:
            found = _records(self._path(CUT, number), self._get(CUT, number))
            yield from ((header, payload) for header, payload in found if header)

    def clear(self) -> None:
        """Remove it: the run has ended."""
        self._store.delete(self._store.list(f"{self._name}/"))

    def _path(self, kind: str, number: int) -> str:
        return f"{self._name}/{kind}{number:010}"

    def _numbers(self, kind: str) -> list[int]:
        ends = (name.rpartition("-")[2] for name in self._store.list(f"{self._name}/{kind}"))
        return [int(end) for end in ends if end.isdigit()]

    def _get(self, kind: str, number: int) -> bytes:
        content = self._store.get(self._path(kind, number))
        if content is None:
            raise StoreError(
                f"store: {self._path(kind, number)} has gone while it was read: does another process use this run's "
                "store?"
            )
        return content


def _parts(records: Records) -> list[Bytes]:
    parts = list[Bytes]()
    for header, payload in records:
        parts += [LENGTHS.pack(len(header), sum(map(len, payload))), header, *payload]
    return parts


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
