"""Top-k: of every slice, the fraction `ratio` with the largest |residual + value|, exactly (Aji, Heafield, EMNLP 2017).

At least one element is sent. Of equal ones those with the lower index go first, so that every machine sends the same.
"""

from __future__ import annotations

import torch

from geomx.codecs.noise import Stream
from geomx.codecs.sparse import Sparse
from geomx.layout import Slice


class TopK(Sparse):
    """See the module's text."""

    def __init__(self, stream: Stream, *, ratio: float = 0.01, values: str = "float32") -> None:
        super().__init__(stream, ratio, values)

    def compress(self, piece: Slice, turn: int, left: torch.Tensor, weight: float) -> torch.Tensor:
        return self.write(largest(left, max(1, round(self.ratio * left.numel()))), left)


def largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """The rising indices (int64) of the `count` largest |x|, of equal ones those that come first; never zeros."""
    sizes = x.abs()
    bound = torch.kthvalue(sizes, sizes.numel() - count + 1).values
    above = (sizes > bound).nonzero().view(-1)
    equal = (sizes == bound).nonzero().view(-1) if float(bound) > 0 else above[:0]
    if not equal.numel():
        return above
    return torch.cat((above, equal[: count - above.numel()])).sort().values
