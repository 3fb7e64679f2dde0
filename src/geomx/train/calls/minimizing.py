"""Sandblaster L-BFGS: a sum of portions is minimized, which workers compute as they become free.

See `RunCalls.minimize`.

The first worker coordinates beside its own work: it sends operations on vectors, which stay on the shards, and gets
numbers. Every worker reads the point once for each evaluation, and gives each portion's gradient to the shards.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from geomx.errors import NotFinite, Unsupported
from geomx.tables.requests import packed
from geomx.tables.sandblaster.lbfgs import Asks, Do, Evaluate, Outcome
from geomx.tables.sandblaster.vectors import Begin, Give, Next, Over, Read, Run, Write, ranges
from geomx.train.calls.requests import Requests, Token

Vector = npt.NDArray[np.float64]
AHEAD = 2  # portions that a worker has asked for, so that it has the next when it has done one
Evaluation = Callable[[Vector, int], tuple[float, Any]]


class Minimizing:
    """One minimization, on one worker. `of`: by party how many portions; `first_of`: this worker's party's first."""

    def __init__(
        self,
        requests: Requests,
        evaluate: Evaluation,
        start: Vector,
        of: Sequence[tuple[str, int]],
        first_of: int,
    ) -> None:
        self._requests, self._evaluate, self._start = requests, evaluate, start
        self._of, self._first_of = tuple(of), first_of
        self._ranges = ranges(len(start), len(requests.shards))
        requests.minimizations += 1
        self._call = requests.minimizations
        self._at, self._point = -1, start  # of which evaluation this worker has the point
        self._given: deque[list[Token]] = deque()  # what has been given, and is not acknowledged
        self.sent_bytes = 0  # by the coordinator

    # -- the work -------------------------------------------------------------------------------------------------

    def run(self, coordinator: Asks | None) -> Outcome | None:
        """Work until the coordinator has ended; returns what it has come to, on the worker where it is."""
        outcome, waits = (None, []) if coordinator is None else self._begin(coordinator)
        work = deque(self._ask_for_work() for _ in range(AHEAD))
        while work or waits:
            either = [list(work)[:1], waits]
            whom = f"work, or for others to end theirs, in run.minimize() {self._call}"
            self._requests.wait_for_any(list(filter(None, either)), whom)
            if waits and coordinator is not None and self._requests.has(waits):
                outcome, waits = self._go_on(coordinator, waits)
            elif work and self._requests.has([work[0]]):
                (number, portion), _ = self._requests.numbers(work.popleft())
                if number >= 0:
                    work.append(self._ask_for_work())
                    self._worked(int(number), int(portion))
        self._take([token for tokens in self._given for token in tokens])
        return outcome

    def _ask_for_work(self) -> Token:
        return self._requests.ask(0, Next(self._call))

    def _worked(self, number: int, portion: int) -> None:
        """Do what it was told to do. The next request is on its way, so that nobody waits for the network."""
        if number != self._at:
            self._at, self._point = number, self.read()
        value, gradient = self._evaluate(self._point.copy(), portion - self._first_of)
        flat = _flat(gradient)
        if flat.numel() != len(self._start):
            raise Unsupported(
                f"run.minimize(): a gradient of {flat.numel()} numbers for {len(self._start)} parameters"
            )
        if not (np.isfinite(float(value)) and bool(flat.isfinite().all())):
            raise NotFinite(
                f"run.minimize(): portion {portion} gives NaN or Inf, or has a gradient that holds it"
            )
        give = Give(number, portion, float(value))
        self._given.append([
            self._requests.ask(shard, give, packed(values=flat[start:stop]))
            for shard, (start, stop) in enumerate(self._ranges)
        ])  # fmt: skip
        while len(self._given) > AHEAD:
            self._take(self._given.popleft())

    def read(self) -> Vector:
        """The point as it is now."""
        tokens = [self._requests.ask(shard, Read("x")) for shard in range(len(self._ranges))]
        parts = [values for _, values in self._take(tokens) if values is not None]
        found: Vector = torch.cat(parts).numpy()
        return found

    def _take(self, tokens: Sequence[Token]) -> list[tuple[tuple[float, ...], torch.Tensor | None]]:
        self._requests.wait_for_any(
            [tokens], f"{', '.join(self._requests.shards)} to answer in run.minimize()"
        )
        return [self._requests.numbers(token) for token in tokens]

    # -- the coordinator ------------------------------------------------------------------------------------------

    def _begin(self, coordinator: Asks) -> tuple[Outcome | None, list[Token]]:
        values = torch.from_numpy(self._start)
        self._take([
            self._requests.ask(shard, Write("x"), packed(values=values[start:stop]))
            for shard, (start, stop) in enumerate(self._ranges)
        ])  # fmt: skip
        return None, self._send(next(coordinator))

    def _go_on(self, coordinator: Asks, waits: Sequence[Token]) -> tuple[Outcome | None, list[Token]]:
        told = [self._requests.numbers(token)[0] for token in waits]
        numbers = self._combined(told)
        try:
            return None, self._send(coordinator.send(numbers))
        except StopIteration as end:
            self._take([self._requests.ask(0, Over(self._call))])
            outcome: Outcome = end.value
            return outcome, []

    def _send(self, asks: Evaluate | Do) -> list[Token]:
        before = self._requests.sent_bytes
        self._asks = asks
        if isinstance(asks, Evaluate):
            self._requests.evaluations += 1
            # Portions are handed out by the first shard, so all others begin before it.
            tokens = [
                self._requests.ask(
                    shard, Begin(self._requests.evaluations, self._of, asks.into, stop - start)
                )
                for shard, (start, stop) in reversed(list(enumerate(self._ranges)))
            ]
        else:
            tokens = [
                self._requests.ask(shard, Run(stop - start, asks.ops))
                for shard, (start, stop) in enumerate(self._ranges)
            ]
        self.sent_bytes += self._requests.sent_bytes - before
        return tokens

    def _combined(self, told: Sequence[tuple[float, ...]]) -> tuple[float, ...]:
        """What all shards say: of an evaluation each the same value, of operations sums, and the largest."""
        if isinstance(self._asks, Evaluate):
            return told[0]
        kinds = [op.kind for op in self._asks.ops if op.kind in ("dot", "largest")]
        return tuple(
            max(each) if kind == "largest" else sum(each)
            for kind, each in zip(kinds, zip(*told, strict=True), strict=True)
        )


def _flat(gradient: Any) -> torch.Tensor:
    """A gradient as one row of float64. Raises `Unsupported`."""
    try:
        found = torch.as_tensor(
            gradient if isinstance(gradient, torch.Tensor) else np.ascontiguousarray(gradient)
        )
    except (TypeError, ValueError) as error:
        raise Unsupported(f"run.minimize(): a gradient that is none: {error}") from None
    if found.is_complex():
        raise Unsupported("run.minimize(): a gradient of complex numbers")
    return found.detach().to("cpu", torch.float64).reshape(-1).contiguous()


def portions_of(
    portions: int | Mapping[str, int], parties: Sequence[str], party: str
) -> tuple[list[tuple[str, int]], int]:
    """By party how many, and the number of a party's first. Raises `Unsupported`."""
    if isinstance(portions, Mapping):
        fits = all(isinstance(count, int) and count > 0 for count in portions.values())
        if set(portions) != set(parties) or not fits:
            raise Unsupported(
                f"run.minimize(portions={dict(portions)}): one or more for each of {', '.join(parties)}"
            )
        of = [(name, portions[name]) for name in parties]
        return of, sum(count for name, count in of[: parties.index(party)])
    if not isinstance(portions, int) or portions < 1:
        raise Unsupported(f"run.minimize(portions={portions}): 1 or more")
    return [("", portions)], 0
