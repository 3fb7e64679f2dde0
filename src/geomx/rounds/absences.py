"""Who took no part in which turn of everybody's, as rosters tell and those who leave early."""

from __future__ import annotations

from collections import deque

MOST_KEPT = 64  # changes


class Absences:
    """As one node knows. Sets of workers are bitmaps, see `Roster`. `out`: at first."""

    def __init__(self, out: bytes = b"") -> None:
        # From which turn on, who was out: changes alone, the newest last.
        self._out: deque[tuple[int, int]] = deque([(0, _bits(out))], maxlen=MOST_KEPT)
        self._departed: dict[int, int] = {}  # behind which turn, who has left early

    def changes(self, first: int, out: bytes) -> None:
        """From this turn on these are out, and no others."""
        if (workers := _bits(out)) != self._out[-1][1]:
            self._out.append((first, workers))

    def departs(self, workers: bytes, last: int) -> None:
        """These have left early, behind this turn."""
        self._departed[last] = self._departed.get(last, 0) | _bits(workers)

    @property
    def kept(self) -> tuple[tuple[int, bytes], ...]:
        """The changes, for whoever begins with them; who has departed is not among them."""
        return tuple((first, _bytes(out)) for first, out in self._out)

    def put_back(self, kept: tuple[tuple[int, bytes], ...]) -> None:
        """The inverse."""
        self._out = deque(((first, _bits(out)) for first, out in kept), maxlen=MOST_KEPT)

    def in_turn(self, turn: int) -> bytes:
        """Who took no part in a turn. All that hear its answer have heard of them before."""
        oldest = self._out[0][1]  # of turns before, more is not known
        absent = next((out for first, out in reversed(self._out) if first <= turn), oldest)
        for last, workers in self._departed.items():
            absent |= workers if last < turn else 0
        return _bytes(absent)


def _bits(bitmap: bytes) -> int:
    return int.from_bytes(bitmap, "little")


def _bytes(bits: int) -> bytes:
    return bits.to_bytes((bits.bit_length() + 7) // 8, "little")
