"""Vectors of one shard, and the work that is handed out over them: what Sandblaster L-BFGS needs of a server.

    vectors    each shard has a range of every vector, float64; a coordinator sends small operations, and gets numbers
    work       the first shard hands out portions of a sum to whoever is free. When none is left it hands out those that
               are not done once more, to another worker: who is slow holds nobody up
    sums       what a portion gives is added on each shard once, whoever brings it first

Source: Dean et al., NIPS 2012.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec
import numpy as np
import numpy.typing as npt
import torch

from geomx.errors import NodeLost, ProtocolError

Vector = npt.NDArray[np.float64]
MOST_VECTORS, MOST_OPERATIONS, MOST_TOLD, MOST_HISTORY = 256, 4096, 64, 100


class Op(msgspec.Struct, frozen=True, array_like=True):
    """One operation. `set`: into ← Σ factors · of; `dot`: the sum over this shard's range of of[0] · of[1].

    `largest`: the largest |of[0]|; `forget`: there is no vector `into` any more.
    """

    kind: str
    into: str = ""
    of: tuple[str, ...] = ()
    factors: tuple[float, ...] = ()


class Run(msgspec.Struct, frozen=True, array_like=True, tag="Run"):
    """Do these operations, one after the other. Answered with what `dot` and `largest` give, in order."""

    size: int
    ops: tuple[Op, ...]


class Read(msgspec.Struct, frozen=True, array_like=True, tag="Read"):
    """A vector's range of this shard. Beside the answer: `values`."""

    name: str


class Write(msgspec.Struct, frozen=True, array_like=True, tag="Write"):
    """Give a vector its range here. Beside it: `values`."""

    name: str


class Begin(msgspec.Struct, frozen=True, array_like=True, tag="Begin"):
    """Sum the portions of evaluation `number` into the vector `into`. Answered with their values' sum, once all are in.

    `of`: by party how many portions are of its own data, in order; one of "" are anybody's. `size`: of the range here.
    """

    number: int
    of: tuple[tuple[str, int], ...]
    into: str
    size: int

    @property
    def portions(self) -> int:
        return sum(count for _, count in self.of)


class Give(msgspec.Struct, frozen=True, array_like=True, tag="Give"):
    """What a portion of an evaluation has come to. Beside it: `values`, of this shard's range."""

    number: int
    portion: int
    value: float


class Next(msgspec.Struct, frozen=True, array_like=True, tag="Next"):
    """The worker is free: what is it to do? Answered with an evaluation and a portion, or (-1, -1): nothing any more.

    `call`: which minimization it takes part in, from 1.
    """

    call: int


class Over(msgspec.Struct, frozen=True, array_like=True, tag="Over"):
    """This minimization has ended; whoever is free in it goes home."""

    call: int


VectorAsked = Run | Read | Write | Begin | Give | Next | Over


class Answer(msgspec.Struct, frozen=True, array_like=True, tag="Answer"):
    """Numbers."""

    numbers: tuple[float, ...] = ()


class VectorHost(Protocol):
    """The service around it."""

    def run(self, function: Callable[[], Any], then: Callable[[Any], None], cost_bytes: int) -> None:
        """Compute in a job behind those before."""

    def answer(
        self, worker: str, number: int, numbers: tuple[float, ...], values: torch.Tensor | None = None
    ) -> None:
        """Answer a request."""


@dataclass
class _Evaluation:
    """A sum that is being made. `given`: by portion, its value; `handed`: who works on each."""

    number: int
    of: tuple[tuple[str, int], ...]
    portions: int
    into: str
    asker: tuple[str, int]
    coordinator: str
    given: dict[int, float] = field(default_factory=dict)
    handed: dict[int, list[str]] = field(default_factory=dict)


class VectorShard:
    """See the module's text."""

    def __init__(self, host: VectorHost) -> None:
        self._host = host
        self._vectors: dict[str, Vector] = {}
        self._current: _Evaluation | None = None
        self._early: dict[int, list[tuple[int, float, Vector]]] = {}  # by evaluation that has not begun here
        self._free: dict[tuple[str, int], int] = {}  # by worker and request: of which call it wants work
        self._over = 0  # calls that have ended
        self._told: dict[
            str, dict[int, tuple[float, ...]]
        ] = {}  # by worker and request: what it was answered

    def begins(self, worker: str) -> None:
        """A script was started again: what it had in hand goes to others."""
        self._free = {key: call for key, call in self._free.items() if key[0] != worker}
        self._told.pop(worker, None)
        for handed in () if self._current is None else self._current.handed.values():
            handed[:] = [each for each in handed if each != worker]
        self._hand_out()

    def changed(self, present: Iterable[str]) -> None:
        """These take part. Raises `NodeLost` where nobody else can do what somebody was to do."""
        there, current = set(present), self._current
        if current is None or not (current.asker[0] or self._free):  # nobody waits
            return
        if current.coordinator not in there:
            raise NodeLost(current.coordinator, "it coordinates run.minimize(), and nobody else can")
        start = 0
        for party, count in current.of:
            left = set(range(start, start + count)) - current.given.keys()
            if left and party and not any(each.rpartition("/")[0] == party for each in there):
                raise NodeLost(
                    party, "run.minimize() has portions of its data, and none of its workers is left"
                )
            start += count

    def asked_again(self, worker: str, number: int, asked: VectorAsked, values: torch.Tensor | None) -> None:
        """A request that has come before: what changes something is not done twice."""
        told = self._told.get(worker, {})
        if number in told:
            self._host.answer(worker, number, told[number])
        elif not isinstance(asked, Run | Begin):  # those are under way
            self.asked(worker, number, asked, values)

    def asked(self, worker: str, number: int, asked: VectorAsked, values: torch.Tensor | None) -> None:
        """A request, which has not come before. Raises `ProtocolError`."""
        reply = (worker, number)
        if isinstance(asked, Run):
            if len(asked.ops) > MOST_OPERATIONS:
                raise ProtocolError(f"{len(asked.ops)} operations on vectors at once")
            self._host.run(
                lambda: self._ran(asked),
                lambda numbers: self._answer_once(*reply, numbers),
                16 * len(asked.ops) * asked.size,
            )
        elif isinstance(asked, Read):
            self._host.run(
                lambda: torch.from_numpy(self._vector(asked.name).copy()),
                lambda found: self._host.answer(*reply, (), found),
                0,
            )
        elif isinstance(asked, Write):
            self._put(asked.name, _as_vector(values))
            self._host.answer(*reply, ())
        elif isinstance(asked, Begin):
            self._begin(reply, asked)
        elif isinstance(asked, Give):
            self._give(asked, _as_vector(values))
            self._host.answer(*reply, ())
        elif isinstance(asked, Next):
            self._free[worker, number] = asked.call
            self._hand_out()
        else:
            self._over, self._current = asked.call, None
            self._host.answer(*reply, ())
            self._hand_out()

    def _answer_once(self, worker: str, number: int, numbers: tuple[float, ...]) -> None:
        told = self._told.setdefault(worker, {})
        told[number] = numbers
        if len(told) > MOST_TOLD:
            del told[next(iter(told))]
        self._host.answer(worker, number, numbers)

    # -- vectors --------------------------------------------------------------------------------------------------

    def _vector(self, name: str) -> Vector:
        if name not in self._vectors:
            raise ProtocolError(f"there is no vector {name!r}")
        return self._vectors[name]

    def _put(self, name: str, values: Vector) -> None:
        if name not in self._vectors and len(self._vectors) == MOST_VECTORS:
            raise ProtocolError(f"more than {MOST_VECTORS} vectors")
        self._vectors[name] = values

    def _ran(self, run: Run) -> tuple[float, ...]:
        numbers = []
        for op in run.ops:
            if op.kind == "set":
                total = np.zeros(run.size)
                for name, factor in zip(op.of, op.factors, strict=True):
                    total += factor * self._vector(name)
                self._put(op.into, total)
            elif op.kind == "dot":
                numbers.append(float(self._vector(op.of[0]) @ self._vector(op.of[1])))
            elif op.kind == "largest":
                numbers.append(float(np.abs(self._vector(op.of[0])).max(initial=0.0)))
            elif op.kind == "forget":
                self._vectors.pop(op.into, None)
            else:
                raise ProtocolError(f"an operation {op.kind!r} on vectors")
        return tuple(numbers)

    # -- work -----------------------------------------------------------------------------------------------------

    def _begin(self, reply: tuple[str, int], begin: Begin) -> None:
        self._current = _Evaluation(begin.number, begin.of, begin.portions, begin.into, reply, reply[0])
        self._put(begin.into, np.zeros(begin.size))
        for portion, value, values in self._early.pop(begin.number, []):
            self._add(self._current, portion, value, values)
        self._early = {number: each for number, each in self._early.items() if number > begin.number}
        self._hand_out()
        self._look()

    def _give(self, give: Give, values: Vector) -> None:
        current = self._current
        if current is None or give.number > current.number:
            self._early.setdefault(give.number, []).append((give.portion, give.value, values))
        elif give.number == current.number:
            self._add(current, give.portion, give.value, values)
            self._look()

    def _add(self, current: _Evaluation, portion: int, value: float, values: Vector) -> None:
        if portion in current.given:
            return  # another worker was faster
        total = self._vector(current.into)
        if values.shape != total.shape or not 0 <= portion < current.portions:
            raise ProtocolError(f"portion {portion} of {current.portions} gives {values.shape[0]} numbers")
        current.given[portion] = value
        total += values

    def _look(self) -> None:
        current = self._current
        if current is not None and len(current.given) == current.portions and current.asker[0]:
            asker, current.asker = current.asker, ("", 0)
            self._answer_once(*asker, (sum(current.given[each] for each in sorted(current.given)),))

    def _hand_out(self) -> None:
        for (worker, number), call in list(self._free.items()):
            if call <= self._over:
                del self._free[worker, number]
                self._host.answer(worker, number, (-1.0, -1.0))
                continue
            portion = self._portion_for(worker)
            if portion is not None:
                assert self._current is not None
                del self._free[worker, number]
                self._current.handed.setdefault(portion, []).append(worker)
                self._answer_once(worker, number, (float(self._current.number), float(portion)))

    def _portion_for(self, worker: str) -> int | None:
        """One that nobody works on, else one that is not done and has the fewest who do, of others."""
        current = self._current
        if current is None:
            return None
        party, start, left = worker.rpartition("/")[0], 0, list[tuple[int, int]]()
        for owner, count in current.of:
            if owner in ("", party):
                for each in range(start, start + count):
                    handed = current.handed.get(each, ())
                    if not handed and each not in current.given:
                        return each
                    if each not in current.given and worker not in handed:
                        left.append((len(handed), each))
            start += count
        return min(left)[1] if left else None


def _as_vector(values: torch.Tensor | None) -> Vector:
    if values is None or values.dtype != torch.float64 or values.dim() != 1:
        raise ProtocolError("no values of a vector")
    found: Vector = values.numpy().copy()
    return found


def ranges(size: int, shards: int) -> list[tuple[int, int]]:
    """Which elements of a vector each shard has."""
    ends: Iterable[int] = [size * (shard + 1) // shards for shard in range(shards)]
    starts = [size * shard // shards for shard in range(shards)]
    return list(zip(starts, ends, strict=True))
