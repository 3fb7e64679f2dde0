"""The collective calls of a run, beside training: what `LiveRun` has of them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, Literal, overload

from geomx.train.calls.collectives import Collectives, Pending, ReduceOp


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

        Sums are added in the order of the tree: the same bits on all workers, whenever they came. Integers are exact.

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
        return _given(self._calls().reduce(arrays, op), wait)

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
        return _given(calls.broadcast(arrays, self._source() if source is None else source), wait)

    def gather(self, arrays: Any, *, wait: bool = True) -> Any:
        """Give every worker the arrays of all; these may have different shapes, of at most 16 MiB for a worker.

        Args:
            arrays: This worker's.
            wait: As of `reduce`.

        Returns:
            By worker, what it has given.
        """
        return _given(self._calls().gather(arrays), wait)

    def map(self, value: Any, *, wait: bool = True) -> Any:
        """Give every worker a small result of each: numbers, texts, lists and dicts of them.

        Args:
            value: This worker's.
            wait: As of `reduce`.

        Returns:
            By worker, such as "paris/0", what it has given.
        """
        return _given(self._calls().map(value), wait)

    def barrier(self) -> None:
        """Return when every worker has come to this call."""
        self._calls().barrier().result()

    @abstractmethod
    def _source(self) -> str:
        """The run's first worker."""


def _given(pending: Pending[Any], wait: bool) -> Any:
    return pending.result() if wait else pending
