"""Top-k: of every slice, the fraction `ratio` with the largest |residual + value|, exactly (Aji, Heafield, EMNLP 2017).

At least one element is sent. Of equal ones those with the lower index go first, so that every machine sends the same.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from geomx.codecs.contract import Room
from geomx.codecs.dense import Dense
from geomx.codecs.error_feedback import SIZE_LOWER_BOUND
from geomx.codecs.pack import native
from geomx.codecs.pack.native import Added
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.sparse import Sparse, gathered
from geomx.errors import ConfigError, Fault
from geomx.layout import Slice

SPARE = 64  # elements that equal the last one, for which there is room
SAMPLE, LEAST_RANK, MARGIN = 8192, 8, 1.5  # of the estimate that narrows the search: so many times too many


class TopK(Sparse):
    """Sends exactly the largest entries of each slice (Aji and Heafield, EMNLP 2017).

    Args:
        stream: The key of its random numbers, which it does not use.
        ratio: The fraction of the elements that is sent, above 0 and at most 1.
        values: The number form of what is sent, such as "float32", "fp16" or "int4".
        decay: The share of the residual that is left when the next values come, from 0 to 1.
        size_lower_bound: Tensors with fewer elements travel dense.

    Raises:
        ConfigError: A parameter is out of range.
    """

    def __init__(
        self,
        stream: RngKey,
        *,
        ratio: float = 0.01,
        values: str = "float32",
        decay: float = 1.0,
        size_lower_bound: int = SIZE_LOWER_BOUND,
    ) -> None:
        super().__init__(stream, ratio, values, Dense(), size_lower_bound)
        if not 0.0 <= decay <= 1.0:
            raise ConfigError("codec topk", [Fault("decay", f"{decay}", "a number from 0 to 1")])
        self.decay = decay

    def compress(self, slice_: Slice, turn: int, left: torch.Tensor, weight: float) -> torch.Tensor:
        return self.write(largest(left, self._wanted(left)), left)

    def absorb(
        self, slice_: Slice, turn: int, left: torch.Tensor, values: torch.Tensor, weight: float
    ) -> torch.Tensor:
        wanted = self._wanted(left)
        sample = _sample_for(left, wanted)
        found = add_and_find(slice_, left, Added(values), sample, self.room(slice_)) if sample else None
        if found is None:
            return super().absorb(slice_, turn, left, values, weight)
        return self.write(_largest_of(left, found, wanted), left)

    def _wanted(self, left: torch.Tensor) -> int:
        return max(1, round(self.ratio * left.numel()))


class Sample(NamedTuple):
    """The `rank`-th largest of |x[start::stride]|: a bound that hardly more than `likely` elements of x reach."""

    start: int
    stride: int
    rank: int
    likely: int


class Found(NamedTuple):
    """The rising indices (int64) of |x| ≥ bound."""

    indices: torch.Tensor
    bound: float


def sampled(elements: int, wanted: float, start: int, stride: int, least: int, likely: float) -> Sample:
    """For a bound that about `wanted` of `elements` elements reach; `least`: a rank that is no accident."""
    rank = round(wanted * -(-(elements - start) // stride) / elements)
    return Sample(start, stride, max(least, rank), int(likely))


def find(x: torch.Tensor, sample: Sample) -> Found:
    """What is at least the bound that a sample gives."""
    bound = kth_largest(x, sample.rank, sample.start, sample.stride)
    return Found(at_least(x, bound, sample.likely), bound)


def add_and_find(slice_: Slice, left: torch.Tensor, added: Added, sample: Sample, room: Room) -> Found | None:
    """Add and then `find`, in one pass over memory. None if there is no kernel for it: nothing is done.

    Raises `NotFinite`.
    """
    some = native.sample_sums(left, added, sample.start, sample.stride)
    if some is None:
        return None
    bound = kth_largest(some, sample.rank)
    indices, most = native.add_at_least(left, added, bound, sample.likely)
    room.check(slice_, most)
    return Found(at_least(left, bound, left.numel()) if indices is None else indices, bound)


def largest(x: torch.Tensor, count: int) -> torch.Tensor:
    """The rising indices (int64) of the `count` largest |x|, of equal ones those that come first; never zeros."""
    sample = _sample_for(x, count)
    return _largest_of(x, find(x, sample), count) if sample else _largest(x, count)


def _sample_for(x: torch.Tensor, count: int) -> Sample | None:
    """A sample that narrows the search for the `count` largest; None where it would be of no use."""
    stride = x.numel() // SAMPLE
    if stride < 2 or MARGIN * count * 2 > x.numel():
        return None
    return sampled(x.numel(), MARGIN * count, 0, stride, LEAST_RANK, 2 * MARGIN * count)


def _largest_of(x: torch.Tensor, found: Found, count: int) -> torch.Tensor:
    """`largest`, sought among what was found if that holds them."""
    few, bound = found
    if bound > 0 and count <= few.numel() <= x.numel() // 2:
        return few.index_select(0, _largest(gathered(x, few), count))
    return _largest(x, count)


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
