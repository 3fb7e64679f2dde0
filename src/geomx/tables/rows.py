"""The rows of a table that one shard keeps: those that somebody has touched, in the order in which that was.

KeyPlaces    key -> place, by open addressing over arrays: a call of a hundred thousand keys is a few array operations
Rows         place -> the row, and what its rule keeps of it; made when first touched
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from geomx.errors import NotFinite
from geomx.tables.hashing import Keys, hashed
from geomx.tables.inits import Init
from geomx.tables.rules import Rule

FIRST_ROWS = 1024
FULL = 0.7  # of the places of an open-addressing table that are taken at most
_FREE = np.int64(-1)
Places = npt.NDArray[np.int64]


class KeyPlaces:
    """Keys, none negative, and the place of each: 0, 1, 2, ... as they came."""

    def __init__(self) -> None:
        self.count = 0
        self._make(2 * FIRST_ROWS)

    def find(self, keys: Keys) -> Places:
        """The place of each key, -1 where it has none."""
        found = np.full(len(keys), -1, np.int64)
        at, left = self._first(keys), np.arange(len(keys))
        while len(left):
            there = self._keys[at]
            hit = there == keys[left]
            found[left[hit]] = self._places[at[hit]]
            further = ~hit & (there != _FREE)
            at, left = (at[further] + 1) & self._mask, left[further]
        return found

    def touch(self, keys: Keys) -> Places:
        """The same of different keys; those that have none get the next ones."""
        found = self.find(keys)
        new = np.flatnonzero(found < 0)
        if len(new):
            self._reserve(self.count + len(new))
            found[new] = np.arange(self.count, self.count + len(new))
            self._put(keys[new], found[new])
            self.count += len(new)
        return found

    def all(self) -> Keys:
        """All keys, by place."""
        taken = np.flatnonzero(self._keys != _FREE)
        keys = np.empty(self.count, np.int64)
        keys[self._places[taken]] = self._keys[taken]
        return keys

    def _make(self, size: int) -> None:
        self._mask = np.int64(size - 1)
        self._keys, self._places = np.full(size, _FREE, np.int64), np.empty(size, np.int64)

    def _first(self, keys: Keys) -> Places:
        return hashed(keys).astype(np.int64) & self._mask

    def _reserve(self, count: int) -> None:
        size = len(self._keys)
        if count <= FULL * size:
            return
        while count > FULL * size:
            size *= 2
        keys = self.all()
        self._make(size)
        self._put(keys, np.arange(len(keys)))

    def _put(self, keys: Keys, places: Places) -> None:
        """Keys that are not there yet."""
        at, left = self._first(keys), np.arange(len(keys))
        while len(left):
            free = self._keys[at] == _FREE
            self._keys[at[free]] = keys[left[free]]  # of several for one place, one wins
            won = free & (self._keys[at] == keys[left])
            self._places[at[won]] = places[left[won]]
            at, left = (at[~won] + 1) & self._mask, left[~won]


class Rows:
    """`columns`: of each row, float32. `init`: what a row begins with; `rule`: what an update does to it."""

    def __init__(self, columns: int, init: Init, rule: Rule, name: str = "") -> None:
        self._columns, self._init, self._rule, self._name = columns, init, rule, name
        self._places = KeyPlaces()
        self._values = torch.empty(FIRST_ROWS, columns)
        self._state = {name: torch.empty(FIRST_ROWS, columns) for name in rule.state}

    @property
    def count(self) -> int:
        """How many have been touched."""
        return self._places.count

    def read(self, keys: Keys) -> torch.Tensor:
        """The rows of these keys, [keys, columns]; what nobody has updated is as it begins, and stays unmade."""
        places = self._places.find(keys)
        absent = np.flatnonzero(places < 0)
        if not len(absent):
            return self._values.index_select(0, torch.from_numpy(places))
        found = self._values.index_select(0, torch.from_numpy(np.maximum(places, 0)))
        found[torch.from_numpy(absent)] = self._made(keys[absent])
        return found

    def update(self, keys: Keys, gradients: torch.Tensor) -> None:
        """Have the rule update the rows of these keys, all different, by [keys, columns]. Raises NotFinite."""
        before = self.count
        places = torch.from_numpy(self._places.touch(keys))
        if self.count > before:
            new = places >= before
            self._grow()
            self._values[places[new]] = self._made(keys[new.numpy()])
            for name, plane in self._state.items():
                plane[places[new]] = self._rule.state[name]
        values = self._values.index_select(0, places)
        state = {name: plane.index_select(0, places) for name, plane in self._state.items()}
        self._rule.step(values, state, gradients)
        if not bool(values.isfinite().all()):
            key = keys[int((~values.isfinite().all(1)).nonzero()[0])]
            raise NotFinite(
                f"row {key} of the table {self._name!r} is not finite any more: its numbers have grown too large for "
                "float32. Lower the learning rate"
            )
        self._values.index_copy_(0, places, values)
        for name, plane in self._state.items():
            plane.index_copy_(0, places, state[name])

    def put(self, keys: Keys, values: torch.Tensor) -> None:
        """Give these rows, all different, these values; what the rule keeps of them begins anew."""
        places = torch.from_numpy(self._places.touch(keys))
        self._grow()
        self._values.index_copy_(0, places, values)
        for name, plane in self._state.items():
            plane.index_fill_(0, places, self._rule.state[name])

    @property
    def planes(self) -> int:
        """How many numbers a row has in each column: its value, and what the rule keeps of it."""
        return 1 + len(self._state)

    def keys(self) -> Keys:
        """All that have been touched, by place."""
        return self._places.all()

    def some(self, at: Places) -> torch.Tensor:
        """Rows at these places with what the rule keeps of them, [planes, rows, columns]."""
        places = torch.from_numpy(at)
        kept = (self._state[name] for name in sorted(self._state))
        return torch.stack([plane[places] for plane in (self._values, *kept)])

    def take(self, keys: Keys, planes: torch.Tensor) -> None:
        """Rows of these keys, all different, from where they were before, as `some` gives them."""
        places = torch.from_numpy(self._places.touch(keys))
        self._grow()
        self._values[places] = planes[0]
        for name, plane in zip(sorted(self._state), planes[1:], strict=True):
            self._state[name][places] = plane

    def keep(self, keeps: Callable[[Keys], Any]) -> None:
        """Of all rows only those whose keys `keeps` says."""
        keys = self._places.all()
        at = np.flatnonzero(keeps(keys))
        keys, planes = keys[at], self.some(at)
        self._places = KeyPlaces()
        self._values = torch.empty(FIRST_ROWS, self._columns)
        self._state = {name: torch.empty(FIRST_ROWS, self._columns) for name in self._state}
        self.take(keys, planes)

    def part(self, start: int, count: int) -> tuple[Keys, torch.Tensor]:
        """Some of all that have been touched: keys and rows, in the order in which they were."""
        stop = min(start + count, self.count)
        return self._places.all()[start:stop], self._values[start:stop].clone()

    def state(self) -> list[torch.Tensor]:
        """Keys, rows, and what the rule keeps of them, by name; copies."""
        count = self.count
        planes = [self._state[name][:count].clone() for name in sorted(self._state)]
        return [torch.from_numpy(self._places.all()), self._values[:count].clone(), *planes]

    def put_back(self, keys: torch.Tensor, values: torch.Tensor, planes: Sequence[torch.Tensor]) -> None:
        """The inverse, where nothing was touched yet."""
        self._places.touch(keys.numpy())
        self._grow()
        self._values[: self.count] = values
        for name, plane in zip(sorted(self._state), planes, strict=True):
            self._state[name][: self.count] = plane

    def _made(self, keys: Keys) -> torch.Tensor:
        return self._init.rows(keys, self._columns)

    def _grow(self) -> None:
        room = len(self._values)
        if self.count <= room:
            return
        while room < self.count:
            room *= 2
        self._values = _longer(self._values, room)
        self._state = {name: _longer(plane, room) for name, plane in self._state.items()}


def _longer(plane: torch.Tensor, rows: int) -> torch.Tensor:
    longer = torch.empty(rows, plane.shape[1])
    longer[: len(plane)] = plane
    return longer
