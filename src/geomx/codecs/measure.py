"""Arithmetic that says how large its results are, in the pass over memory that makes them.

    scaled      out ← x · weight
    summed      ((x0 + x1) + x2) + ...

`largest` is the largest |result|, and NaN or Inf where one is. So a number that nothing has room for is found where it
first appears, and looking for it takes no pass of its own. As everywhere in this folder, compiled kernels and torch
operations give the same bits.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch

from geomx.codecs.pack import native
from geomx.codecs.pack.values import peak


class Measured(NamedTuple):
    """Values (flat), and the largest |value|: NaN or Inf where one is."""

    values: torch.Tensor
    largest: float


def largest(x: torch.Tensor) -> float:
    """The largest |x| of floating-point numbers (or rows), 0 of none; NaN or Inf where there is one."""
    return 0.0 if x.is_meta else peak(numbers_of(x))  # shapes alone have no numbers


def numbers_of(x: torch.Tensor) -> torch.Tensor:
    """All numbers of a tensor or of rows, flat."""
    return (x.coalesce().values() if x.is_sparse else x).reshape(-1)


def scaled(x: torch.Tensor, weight: float, out: torch.Tensor) -> float:
    """Write x · weight into `out` (flat, of the dtype and size of `x`; it may be `x`); returns the largest |out|."""
    found = native.scale(x, weight, out)
    if found is None:
        multiplied(x, weight, out)
        found = largest(out)
    return found


def multiplied(x: torch.Tensor, weight: float, out: torch.Tensor) -> None:
    """The same, without looking at what it makes."""
    if weight == 1.0:
        out.copy_(x)
    elif x.device == out.device:
        torch.mul(x, weight, out=out)
    else:
        out.copy_(x * weight)


def largest_of_each(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """`largest` of each of some tensors on one device, as a tensor there, in float64: nothing is waited for."""
    found = [numbers_of(x) for x in tensors]
    return torch.stack([(x.abs().amax() if x.numel() else x.new_zeros(())).to(torch.float64) for x in found])


def summed(values: Sequence[torch.Tensor]) -> Measured:
    """The sum from left to right, in memory of its own. `values`: one or more, flat, of one floating dtype and size."""
    first, *others = values
    total = torch.empty_like(first)
    if not others:
        return Measured(total, scaled(first, 1.0, total))
    found, left = None, first
    for other in others:
        found = native.add_up(left, other, total)
        if found is None:
            torch.add(left, other, out=total)
        left = total
    return Measured(total, largest(total) if found is None else found)
