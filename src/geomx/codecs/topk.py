"""Top-k: of every slice, the fraction `ratio` with the largest |residual + value|, exactly (Aji, Heafield, EMNLP 2017).

At least one element is sent. Of equal ones those with the lower index go first, so that every machine sends the same.
"""

from __future__ import annotations

import torch

from geomx.codecs import native
from geomx.codecs.noise import Stream
from geomx.codecs.sparse import Sparse, gathered
from geomx.layout import Slice

SPARE = 64  # elements that equal the last one, for which there is room
SAMPLE, LEAST_RANK, MARGIN = 4096, 8, 2.0  # of the estimate that narrows the search: so many times too many


class TopK(Sparse):
    """See the module's text."""

    def __init__(self, stream: Stream, *, ratio: float = 0.01, values: str = "float32") -> None:
        super().__init__(stream, ratio, values)

    def compress(self, piece: Slice, turn: int, left: torch.Tensor, weight: float) -> torch.Tensor:
        return self.write(largest(left, max(1, round(self.ratio * left.numel()))), left)


def largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """The rising indices (int64) of the `count` largest |x|, of equal ones those that come first; never zeros."""
    few = _candidates(x, count)
    return _largest(x, count) if few is None else few[_largest(gathered(x, few), count)]


def _candidates(x: torch.Tensor, count: int) -> torch.Tensor | None:
    """The rising indices of some elements that hold the `count` largest, by a sample's estimate; None: of no use."""
    stride = x.numel() // SAMPLE
    if stride < 2 or MARGIN * count * 2 > x.numel():
        return None
    sampled = -(-x.numel() // stride)
    bound = kth_largest(x, max(LEAST_RANK, round(MARGIN * count * sampled / x.numel())), 0, stride)
    found = at_least(x, bound, int(2 * MARGIN * count))
    return found if bound > 0 and count <= found.numel() <= x.numel() // 2 else None


def _largest(x: torch.Tensor, count: int) -> torch.Tensor:
    bound = kth_largest(x, count)
    found = at_least(x, bound, count + SPARE)
    surplus = found.numel() - count
    if surplus <= 0 or bound == 0:
        return found
    equal = (x[found].abs() == bound).nonzero().view(-1)
    keep = torch.ones(found.numel(), dtype=torch.bool, device=x.device)
    keep[equal[equal.numel() - surplus :]] = False
    return found[keep]


def kth_largest(x: torch.Tensor, rank: int, start: int = 0, stride: int = 1) -> float:
    """The `rank`-th largest of |x[start::stride]|, from 1."""
    found = native.kth_largest(x, rank, start, stride)
    if found is None:
        sizes = x[start::stride].abs()
        found = float(torch.kthvalue(sizes, sizes.numel() - rank + 1).values)
    return found


def at_least(x: torch.Tensor, bound: float, likely: int) -> torch.Tensor:
    """The rising indices (int64) of |x| ≥ bound; of x ≠ 0 where the bound is 0. Fastest for up to `likely` of them."""
    found = native.at_least(x, bound, likely)
    if found is None:
        found = ((x.abs() >= bound) if bound > 0 else (x != 0)).nonzero().view(-1)
    return found
