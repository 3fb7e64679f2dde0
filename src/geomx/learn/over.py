"""What an algorithm asks of a run: sums over all workers, and small things of each. `run=None` is one machine.

    total     arrays, added up: float64 and int64
    each      a small value of every worker, in the order of the run
    joined    rows of every worker, one behind the other in that order

Rows have numbers as if they lay on one machine, in that order: `first` is the number of a worker's first. Random
numbers belong to rows (`uniform`), so they are the same wherever rows lie.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from geomx.errors import Disagreement
from geomx.tables.hashing import hashed
from geomx.tables.hashing import uniform as in_unit_interval

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Over:
    """The workers of a run, or one machine.

    Attributes:
        bytes_sent: What this worker has given to be added up or told so far, in bytes.
    """

    def __init__(self, run: Any) -> None:
        """`run`: of `geomx.join()`, or None."""
        self._run = run
        self.bytes_sent = 0

    def total(self, *arrays: Any) -> list[Any]:
        """The sums of these arrays over all workers, which give arrays of the same shapes."""
        given = [np.asarray(each) for each in arrays]
        self.bytes_sent += sum(each.nbytes for each in given)
        if self._run is None:
            return given
        found: list[Any] = self._run.reduce(given, "sum")
        return found

    def each(self, value: Any) -> list[Any]:
        """What each worker gives: numbers, texts, lists and dicts of them."""
        if self._run is None:
            return [value]
        return list(self._run.map(value).values())

    def joined(self, rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """The rows of all workers, in the order of the run."""
        self.bytes_sent += rows.nbytes
        if self._run is None:
            return rows
        return np.concatenate(list(self._run.gather(rows).values()))

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

    def agree(self, what: str, value: Any) -> None:
        """Raises `Disagreement` where workers have different values, such as numbers of features."""
        said = self.each(value)
        if any(each != said[0] for each in said):
            told = ", ".join(str(each) for each in said)
            raise Disagreement(f"the workers have different {what}: {told}")


def uniform(rows: Ints, seed: int, stream: int) -> Floats:
    """Random numbers in [0, 1) of rows, by their numbers: the same wherever they lie."""
    return in_unit_interval(hashed(rows, int(hashed(np.array([stream]), seed)[0])))


def classes_of(over: Over, labels: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """All labels that some worker has, in order."""
    own: Sequence[Any] = np.unique(labels).tolist()
    return np.unique(np.array([label for each in over.each(own) for label in each]))
