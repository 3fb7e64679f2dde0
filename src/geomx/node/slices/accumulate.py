"""How contributions are added: one accumulator for each domain.

Floating-point sums depend on the order of their terms, so an accumulator adds in the order it is given and
never in another: the same contributions give the same bits, in whatever order they arrived. Integers form a
ring (int64: modulo 2^64), where any order gives the same sum: counts stay exact however long the run is.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from geomx.codecs.measure import Measured, largest, summed
from geomx.codecs.rows import summed as rows_summed
from geomx.errors import Unsupported


@dataclass(frozen=True, slots=True)
class Accumulator:
    """Adds within one domain. A pure function over tensors: it may run as a job."""

    domain: str
    dtypes: frozenset[torch.dtype]

    def add(self, values: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The sum alone, see `measure`."""
        found = self.measure(values)
        return None if found is None else found.values

    def measure(self, values: Sequence[torch.Tensor]) -> Measured | None:
        """((v0 + v1) + v2) + ..., in memory of its own: a term may be a received payload, which stays as it is.

        Args:
            values: flat, of one length and dtype, or rows of one tensor; ordered by lowest origin.

        Returns:
            The sum, which is the caller's to change, and the largest |element| of it, NaN or Inf where one is; 0 of
            integers. None where there are no values.

        Raises:
            Unsupported: a value is of another domain.
        """
        if not values:
            return None
        if any(value.dtype not in self.dtypes for value in values):
            raise Unsupported(f"{self.domain} does not add {', '.join(str(value.dtype) for value in values)}")
        if values[0].is_sparse:
            rows = rows_summed(values)
            return Measured(rows, largest(rows))
        if values[0].dtype.is_floating_point:
            return summed(values)
        total = values[0].clone()
        for other in values[1:]:
            total.add_(other)
        return Measured(total, 0.0)


float_ordered = Accumulator(
    "float_ordered", frozenset({torch.float64, torch.float32, torch.bfloat16, torch.float16})
)
int_ring = Accumulator("int_ring", frozenset({torch.int64}))


def accumulator(dtype: torch.dtype) -> Accumulator:
    """The accumulator whose domain holds values of `dtype`."""
    for candidate in (float_ordered, int_ring):
        if dtype in candidate.dtypes:
            return candidate
    raise Unsupported(
        f"{dtype} cannot be added; float_ordered and int_ring add floating-point values and int64"
    )
