"""What an algorithm asks of a run: sums over all workers, and small things of each. `run=None` is one machine.

    total     arrays, added up: float64 and int64
    each      a small value of every worker, in the order of the run
    joined    rows of every worker, one behind the other in that order

Rows have numbers as if they lay on one machine, in that order: `first` is the number of a worker's first. Random
numbers belong to rows (`uniform`), so they are the same wherever rows lie.

Where the run goes on without a worker that is lost, an algorithm whose sums are of use each by itself (`goes_on`) ends
with the model of the rows that are left; another ends with an error, since its sums would be of different rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from geomx.errors import Disagreement, RunFailed
from geomx.tables.hashing import hashed
from geomx.tables.hashing import uniform as in_unit_interval

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Over:
    """The workers of a run, or one machine. What they decide by has to be the same bits on all: sums, or the first's.

    Attributes:
        is_first: Whether this is the run's first worker.
    """

    def __init__(self, run: Any, goes_on: bool = False) -> None:
        """`run`: of `geomx.join()`, or None; `goes_on`: with the rows that are left where a worker is lost."""
        self._run, self._goes_on = run, goes_on
        self._taking_part = 0  # workers; 0: it is not known yet
        self.is_first: bool = run is None or run.is_first

    def total(self, *arrays: Any) -> list[Any]:
        """The sums of these arrays over all workers, which give arrays of the same shapes."""
        given = [np.asarray(each) for each in arrays]
        if self._run is None:
            return given
        found: list[Any] = self._run.reduce([*given, np.ones(1, np.int64)], "sum")
        self._check_all(int(found.pop()[0]))
        return found

    def each(self, value: Any) -> list[Any]:
        """What each worker gives: numbers, texts, lists and dicts of them."""
        return list(self.by_worker(value).values())

    def by_worker(self, value: Any) -> dict[str, Any]:
        """The same, by the workers' names."""
        if self._run is None:
            return {"here": value}
        found: dict[str, Any] = self._run.map(value)
        self._check_all(len(found))
        return found

    def joined(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The rows of all workers, in the order of the run."""
        if self._run is None:
            return rows
        found: dict[str, Any] = self._run.gather(rows)
        self._check_all(len(found))
        return np.concatenate(list(found.values()))

    def most(self, value: float) -> float:
        """The largest of the workers' numbers."""
        return float(max(self.each(value)))

    def firsts(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The first worker's array; all others give one of the same shape and type."""
        found: npt.NDArray[Any] = array if self._run is None else self._run.broadcast(array)
        return found

    def place(self, rows: int) -> tuple[int, int]:
        """The number of this worker's first row, and how many all have."""
        if self._run is None:
            return 0, rows
        counts: dict[str, int] = self._run.map(rows)
        names, own = list(counts), self._run.name
        return sum(counts[name] for name in names[: names.index(own)]), sum(counts.values())

    def _check_all(self, count: int) -> None:
        """As many have taken part in this call as in the first."""
        if not self._goes_on and 0 < self._taking_part != count:
            here = self._run.map(None)
            lost = [name for name in self._run.workers if name not in here] or [self._run.name]
            raise RunFailed(
                lost[0],
                "it was lost in the middle of a fit, whose sums would be of other rows from here on; begin anew",
            )
        self._taking_part = count


def uniform(rows: Ints, seed: int, stream: int) -> Floats:
    """Random numbers in [0, 1) of rows, by their numbers: the same wherever they lie."""
    return in_unit_interval(hashed(rows, int(hashed(np.array([stream]), seed)[0])))


def classes_of(over: Over, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """All labels that some worker has, in order. Raises `Disagreement` where some are texts and others numbers."""
    every = over.by_worker(np.unique(labels).tolist())
    kinds = {name: "texts" if isinstance(own[0], str) else "numbers" for name, own in every.items() if own}
    if len(set(kinds.values())) > 1:
        raise Disagreement(f"labels are {', '.join(f'{kind} at {name}' for name, kind in kinds.items())}")
    return np.unique(np.array([label for own in every.values() for label in own]))
