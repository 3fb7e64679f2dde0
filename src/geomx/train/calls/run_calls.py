"""The collective calls of a run, beside training: what `LiveRun` has of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, overload

import numpy as np
import numpy.typing as npt
import torch

from geomx.codecs.pack.values import FORMS
from geomx.errors import Disagreement, Unsupported
from geomx.tables.sandblaster.lbfgs import minimize
from geomx.tables.sandblaster.vectors import MOST_HISTORY
from geomx.train.calls.collectives import Collectives, Pending, ReduceOp
from geomx.train.calls.minimizing import Minimizing, portions_of
from geomx.train.calls.requests import Requests
from geomx.train.calls.tables import Table, opened


@dataclass(frozen=True)
class Minimum:
    """What `RunCalls.minimize` has found.

    Attributes:
        point: float64, of shape (parameters,).
        value: The sum of all portions there.
        iterations: How many steps were taken.
        evaluations: How often all portions were summed.
        why: Why it has ended, in words.
        converged: Whether that is at a minimum, as far as the tolerances say.
        values: The value at the start, and behind each step.
        sent_bytes: What the coordinator has sent to the global servers, but for the start; 0 on other workers.
    """

    point: npt.NDArray[np.float64]
    value: float
    iterations: int
    evaluations: int
    why: str
    converged: bool
    values: list[float]
    sent_bytes: int


class RunCalls(ABC):
    """Calls over arrays, in which all workers take part.

    Every worker makes the same calls in the same order, with arrays of the same shapes and types. A call takes tensors,
    NumPy's arrays, numbers, and lists, tuples and dicts of them; results have the form of what was given. One call is
    one round trip, and so are many that were made with `wait=False`.
    """

    @abstractmethod
    def _calls(self) -> Collectives:
        """The calls of the run that this worker has joined."""

    @overload
    def reduce(self, arrays: Any, op: ReduceOp = ..., *, wait: Literal[True] = ...) -> Any: ...
    @overload
    def reduce(self, arrays: Any, op: ReduceOp = ..., *, wait: Literal[False]) -> Pending[Any]: ...
    @overload
    def reduce(self, arrays: Any, op: ReduceOp = ..., *, wait: bool) -> Any: ...

    def reduce(self, arrays: Any, op: ReduceOp = "sum", *, wait: bool = True) -> Any:
        """Add arrays up over all workers, or take their mean, or what is largest or least of each element.

        Sums are added in the order of the tree: the same bits on all workers, whenever they came. Those of integers and
        booleans are exact, in int64.

        Args:
            arrays: This worker's.
            op: "sum", "mean", "max" or "min". A mean of integers is one of float64.
            wait: Return the result. False: return at once; the call leaves with the next one that waits.

        Returns:
            The result, or with `wait=False` what waits for it.

        Raises:
            Disagreement: Another worker has made another call, or has arrays of other shapes or types.
            Unsupported: What was given is no array, or of a type that cannot travel.
        """
        calls = self._calls()
        return _given(calls, calls.reduce(arrays, op), wait)

    def broadcast(self, arrays: Any, source: str | None = None, *, wait: bool = True) -> Any:
        """Give all workers the arrays of one.

        Args:
            arrays: On the source the values; on all others arrays of the same shapes and types, which stay as they are.
            source: The worker that gives; None: the run's first.
            wait: As of `reduce`.

        Returns:
            The source's arrays.

        Raises:
            RunFailed: The source was lost before its arrays had come.
        """
        calls = self._calls()
        source = self._source() if source is None else source
        return _given(calls, calls.broadcast(arrays, source), wait)

    def gather(self, arrays: Any, *, wait: bool = True) -> Any:
        """Give every worker the arrays of all; these may have different shapes, of at most 256 MiB together.

        Args:
            arrays: This worker's.
            wait: As of `reduce`.

        Returns:
            By worker, what it has given.
        """
        calls = self._calls()
        return _given(calls, calls.gather(arrays), wait)

    def map(self, value: Any, *, wait: bool = True) -> Any:
        """Give every worker a small result of each: numbers, texts, lists and dicts of them.

        Args:
            value: This worker's.
            wait: As of `reduce`.

        Returns:
            By worker, such as "paris/0", what it has given.
        """
        calls = self._calls()
        return _given(calls, calls.map(value), wait)

    def barrier(self) -> None:
        """Return when every worker has come to this call."""
        self._calls().barrier().result()

    def table(
        self,
        name: str,
        rows: int,
        columns: int = 1,
        *,
        init: str = "zeros",
        rule: str = "sgd",
        staleness: int | None = 0,
        group: str = "",
        values: str = "float32",
        filters: Sequence[str] = (),
    ) -> Table:
        """Rows by key, on the global servers: made when they are first touched, larger than any worker.

        Returns when every worker of the run has opened the table; all of them must, with the same arguments but
        `group`, `values` and `filters`.

        Args:
            name: The table's.
            rows: How many keys there may be: 0 to `rows` - 1.
            columns: How many numbers a row has.
            init: What a row begins with: "zeros", "uniform low=-0.05 high=0.05", "normal std=0.01", or your own.
            rule: What a push does to rows: "add", "sgd lr=0.01", "adagrad lr=0.01", "ftrl alpha=0.1 l1=1.0", or your
                own as "module:Class" that `run.table_classes` of the description names.
            staleness: How many pushes a worker may be ahead of the slowest of its group. 0: pushes of one number are
                applied together, and every pull sees all of them. None: nobody waits.
            group: Workers of one group wait for each other. One that only reads, such as "serving", has a name of its
                own, and waits for nobody who trains.
            values: The number form in which rows travel: "float32", "bf16", "fp16", "int8" or "int4".
            filters: What is not pushed, in this order: "zeros", "significant threshold=0.001",
                "random-skip probability=0.5". Held back rows are added to what is pushed of them later.

        Raises:
            Unsupported: An argument that cannot be.
            Disagreement: Other workers have opened it with other arguments.
        """
        if values not in FORMS:
            raise Unsupported(f"run.table(values={values!r}): {', '.join(FORMS)}")
        if self.has_table(name):
            raise Unsupported(f"run.table({name!r}): this script has opened it before")
        terms = opened(name, rows, columns, init, rule, staleness, group)
        chain = [filters] if isinstance(filters, str) else filters
        return self._opened(Table(self._requests(), terms, values, chain))

    def minimize(
        self,
        evaluate: Callable[[npt.NDArray[np.float64], int], tuple[float, Any]],
        start: Any,
        portions: int | Mapping[str, int],
        *,
        history: int = 10,
        iterations: int = 1000,
        gradient_tolerance: float = 1e-5,
        value_tolerance: float = 2.2e-9,
    ) -> Minimum:
        """Minimize a sum of portions by L-BFGS (Sandblaster: Dean et al., NIPS 2012).

        Portions are computed by workers as they become free, and near the end of each sum those that are not done by
        two. Vectors stay on the global servers. The first worker coordinates, in a few kB an iteration. Every worker
        must make the call, with the same arguments but `evaluate`.

        Args:
            evaluate: Of a point, float64 of shape (parameters,), and the number of a portion: its value, and its
                gradient of the same shape.
            start: Where to begin; the first worker's counts.
            portions: How many there are, each of which any worker can compute. Or by party, how many are of its own
                data: then its workers are given numbers from 0 of these.
            history: How many steps are remembered.
            iterations: At most so many.
            gradient_tolerance: It ends where no element of the gradient is larger.
            value_tolerance: It ends where the value falls by less, relative to itself.

        Returns:
            The point and what it has come to, the same on all workers.

        Raises:
            NotFinite: A value or a gradient is NaN or Inf.
            Unsupported: Arguments that cannot be, or an exception has left an earlier call, so that workers are apart.
            Disagreement: Workers have given different arguments.
        """
        calls, requests = self._calls(), self._requests()
        point = torch.as_tensor(start).detach().to("cpu", torch.float64).reshape(-1).numpy().copy()
        of, first_of = portions_of(portions, self._parties(), self._party())
        counts = {"history": history, "iterations": iterations}
        tolerances = {"gradient_tolerance": gradient_tolerance, "value_tolerance": value_tolerance}
        for name, given in counts.items():
            most = MOST_HISTORY if name == "history" else None
            if not isinstance(given, int) or given < 1 or (most is not None and given > most):
                bound = "" if most is None else f", {most} at most"
                raise Unsupported(f"run.minimize({name}={given!r}): a whole number, 1 or more{bound}")
        if not (bad := min(tolerances.values())) >= 0.0:
            raise Unsupported(f"run.minimize() with a tolerance of {bad}: 0 or more")
        if requests.is_torn:
            raise Unsupported(
                "run.minimize(): an exception has left an earlier one, so the workers are apart; let the script end"
            )
        _agree(calls.map([len(point), of, counts, tolerances], "minimize").result())
        minimizing = Minimizing(requests, evaluate, point, of, first_of)
        is_first = self._is_first()
        coordinator = minimize(history, iterations, gradient_tolerance, value_tolerance) if is_first else None
        requests.is_torn = True
        outcome = minimizing.run(coordinator)
        requests.is_torn = False
        told = None
        if outcome is not None:
            told = [outcome.value, outcome.iterations, outcome.evaluations, outcome.why, outcome.converged]
            told.append(list(outcome.values))
        found = next(
            each for each in calls.map(told, "the end of minimize").result().values() if each is not None
        )
        value, iterations, evaluations, why, is_at_one, values = found
        sent_bytes = minimizing.sent_bytes
        return Minimum(minimizing.read(), value, iterations, evaluations, why, is_at_one, values, sent_bytes)

    @abstractmethod
    def _parties(self) -> Sequence[str]:
        """All parties."""

    @abstractmethod
    def _party(self) -> str:
        """This worker's."""

    @abstractmethod
    def _is_first(self) -> bool:
        """Whether this is the run's first worker."""

    @abstractmethod
    def _requests(self) -> Requests:
        """What this worker asks the shards by, once it has joined."""

    @abstractmethod
    def has_table(self, name: str) -> bool:
        """Whether this script has opened a table of that name."""

    @abstractmethod
    def _opened(self, table: Table) -> Table:
        """It is the run's, which ends it."""

    @abstractmethod
    def _source(self) -> str:
        """The run's first worker."""


def _given(calls: Collectives, pending: Pending[Any], wait: bool) -> Any:
    if wait:
        return pending.result()
    calls.keep()
    return pending


def _agree(said: Mapping[str, Any]) -> None:
    """Raises `Disagreement` unless all have given the same to `minimize`."""
    (first, expected), *others = said.items()
    for name, given in others:
        if given != expected:
            raise Disagreement(
                f"run.minimize(): {first} has given {_minimized(expected)}, and {name} {_minimized(given)}; every "
                "worker must make the call with the same arguments: run.map(value) gives each the values of all"
            )


def _minimized(said: Any) -> str:
    size, of, counts, tolerances = said
    portions = of[0][1] if of[0][0] == "" else dict(of)
    listed = ", ".join(f"{name}={value}" for name, value in {**counts, **tolerances}.items())
    return f"{size} parameters, portions={portions}, {listed}"
