"""How lists of numbers lie in bytes, so that they can be cut into parts that are lists of their own, and joined again.

    head     the same bytes in every part, such as a scale for all of a slice
    scales   some bytes for each `grain` numbers
    codes    `width` bits for each number, packed

A part begins at a multiple of the grain, and so has whole scales and whole bytes; only the last one may end elsewhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple

import torch

from geomx.codecs.pack.bits import packed_bytes
from geomx.errors import ProtocolError


class Columns(NamedTuple):
    """The columns of a list of numbers, in their order.

    Attributes:
        head: Bytes that all parts repeat.
        grain: The fewest numbers that can stand alone; their codes take whole bytes.
        scale: Bytes for each `grain` numbers, or fewer at the end.
        width: Bits for each number.
    """

    head: int = 0
    grain: int = 1
    scale: int = 0
    width: int = 8

    def size_bytes(self, count: int) -> int:
        """The bytes that `count` numbers take."""
        return self.head + self._scales(count) + packed_bytes(count, self.width)

    def fitting(self, most_bytes: int) -> int:
        """How many numbers the largest part of at most `most_bytes` has; one grain where not even that fits."""
        each = self.scale + packed_bytes(self.grain, self.width)
        return self.grain * max(1, (most_bytes - self.head) // each)

    def part(self, packed: torch.Tensor, count: int, start: int, stop: int) -> torch.Tensor:
        """Numbers [start, stop) of `count`. `start` is a multiple of the grain; `stop` as well, or it is `count`."""
        head, scales, codes = self._columns(packed, count)
        first, last = packed_bytes(start, self.width), packed_bytes(stop, self.width)
        if not self.head and not self.scale:
            return codes[first:last]
        return torch.cat((head, scales[self._scales(start) : self._scales(stop)], codes[first:last]))

    def parts(self, packed: torch.Tensor, count: int, numbers: int) -> list[torch.Tensor]:
        """So many `numbers` each, a multiple of the grain, and fewer in the last. They may share memory."""
        many = count // numbers
        whole = many * numbers
        each = packed_bytes(numbers, self.width)
        if not self.head and not self.scale:
            rest = packed.numel() - many * each
            return list(packed.split_with_sizes([each] * many + [rest] * (rest > 0)))
        head, scales, codes = self._columns(packed, count)
        found: list[torch.Tensor] = []
        if many:
            columns = (
                head.expand(many, self.head),
                scales[: self._scales(whole)].view(many, -1),
                codes[: many * each].view(many, each),
            )
            found += torch.cat(columns, 1).unbind(0)
        return found if whole == count else [*found, self.part(packed, count, whole, count)]

    def joined(self, parts: Sequence[torch.Tensor], counts: Sequence[int]) -> torch.Tensor:
        """The list of all numbers of some parts, in their order. Part i has `size_bytes(counts[i])` bytes.

        Raises:
            ProtocolError: They cannot be parts of one list.
        """
        if len(parts) == 1:
            return parts[0]
        if self.grain > 1 and any(count % self.grain for count in counts[:-1]):
            raise ProtocolError(f"a part whose numbers are no multiple of {self.grain}")
        if not self.head and not self.scale:
            return torch.cat(tuple(parts))
        out = torch.empty(self.size_bytes(sum(counts)), dtype=torch.uint8, device=parts[0].device)
        head, scales, codes = self._columns(out, sum(counts))
        head.copy_(parts[0][: self.head])
        place = 0
        for count, group in groupby(range(len(parts)), counts.__getitem__):
            some = [parts[number] for number in group]
            rows = torch.cat(some).view(len(some), -1)
            heads, some_scales, some_codes = rows.tensor_split(
                (self.head, self.head + self._scales(count)), dim=1
            )
            if self.head and not torch.equal(heads, head.expand_as(heads)):
                raise ProtocolError("parts of one list whose heads differ")
            scales[self._scales(place) :][: some_scales.numel()].view_as(some_scales).copy_(some_scales)
            codes[packed_bytes(place, self.width) :][: some_codes.numel()].view_as(some_codes).copy_(
                some_codes
            )
            place += len(some) * count
        return out

    def _scales(self, count: int) -> int:
        return self.scale * -(-count // self.grain)

    def _columns(self, packed: torch.Tensor, count: int) -> tuple[torch.Tensor, ...]:
        return packed.tensor_split((self.head, self.head + self._scales(count)))
