"""How the entries of a sparse payload are cut into runs whose own payloads have at most so many bytes.

A run's indices take the smaller of two forms: the bitmap, or Rice with the parameter of the whole payload. What each
entry adds to either form is added up once for all entries. So a search finds the end of each run, and runs are as long
as they can be, but for two bytes.
"""

from __future__ import annotations

from typing import NamedTuple

import torch

from geomx.codecs.pack.bits import BYTE, packed_bytes
from geomx.codecs.pack.columns import Columns
from geomx.codecs.pack.indices import BITMAP, gaps_of, likely_rice

ROUNDING = 3 * (BYTE - 1)  # bits at most that fill last bytes: of low bits, of the unary part, of values


class IndexRun(NamedTuple):
    """Entries [first, last) of a payload, in elements [start, stop), and the form of their indices."""

    first: int
    last: int
    start: int
    stop: int
    rice: int
    unary: int


def runs_of(
    indices: torch.Tensor, elements: int, rice: int, columns: Columns, most_bytes: int
) -> list[IndexRun]:
    """Cut entries into runs.

    Args:
        indices: Rising indices of shape (entries,), int64.
        elements: The elements that they are some of.
        rice: The Rice parameter of the payload, or BITMAP.
        columns: Those of the entries' values. Runs hold a multiple of their grain, but for the last.
        most_bytes: What indices and values of a run should take at most. A run that has but one grain may take more.

    Returns:
        Runs without gaps between them, both of entries and of elements; none if there are no entries.
    """
    count = indices.numel()
    if not count:
        return []
    if rice == BITMAP:
        rice = likely_rice(count, elements)
    entries = torch.arange(count + 1, device=indices.device)
    codes = entries * columns.width + (entries + columns.grain - 1) // columns.grain * (BYTE * columns.scale)
    skips = torch.cat((gaps_of(indices) >> rice, indices.new_zeros(1)))  # unary zeros before each entry
    zeros = skips.cumsum(0) - skips
    ends = torch.cat((indices, indices.new_tensor([elements])))
    # Bits of all entries before each, in either form.
    by_gaps, by_places = (bits.cpu().numpy() for bits in (zeros + entries * (rice + 1) + codes, ends + codes))
    most_bits = BYTE * (most_bytes - columns.head) - ROUNDING
    runs, first, start = list[IndexRun](), 0, 0
    while first < count:
        skipped = int(skips[first]) if first else 0  # a run but the first begins at its first entry
        last = (
            max(
                int(by_gaps.searchsorted(by_gaps[first] + skipped + most_bits, "right")),
                int(by_places.searchsorted(by_places[first] - int(ends[first]) + start + most_bits, "right")),
            )
            - 1
        )
        if last < count:
            last = first + max(1, (last - first) // columns.grain) * columns.grain
        last = min(last, count)
        stop = int(ends[last]) if last < count else elements
        unary = int(zeros[last]) - int(zeros[first]) - skipped + last - first
        gapped = packed_bytes(last - first, rice) + packed_bytes(unary, 1)
        form = (rice, unary) if gapped < packed_bytes(stop - start, 1) else (BITMAP, 0)
        runs.append(IndexRun(first, last, start, stop, *form))
        first, start = last, stop
    return runs
