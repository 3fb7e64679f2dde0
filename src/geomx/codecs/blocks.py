"""Blocks of payloads that hold every element: all of one size, and joined again before they are decoded.

There can be hundreds for one slice, so nothing but what Python's lists do is done for each.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from geomx.codecs.contract import Block, in_order, wrong_size
from geomx.codecs.pack.columns import Columns
from geomx.layout import Slice


def cut_alike(slice_: Slice, payload: torch.Tensor, columns: Columns, most_bytes: int) -> list[Block]:
    """Cut a payload that holds every element, as `Codec.cut` describes: all blocks but the last have one size."""
    count, numbers = slice_.elements, columns.fitting(most_bytes)
    starts = range(0, count, numbers)
    return list(map(Block, starts, [*starts[1:], count], columns.parts(payload, count, numbers)))


def joined(slice_: Slice, blocks: Sequence[Block], columns: Columns) -> tuple[list[Block], torch.Tensor]:
    """Join some blocks (at least one) that `cut_alike` can have made, whatever their size.

    Returns:
        The blocks in order, and a payload of their elements.

    Raises:
        ProtocolError: See `Codec.decode_blocks`.
    """
    found = in_order(slice_, blocks, columns.grain)
    counts = [stop - start for start, stop, _ in found]
    parts = [payload for _, _, payload in found]
    sizes = {count: columns.size_bytes(count) for count in set(counts)}
    if [part.numel() for part in parts] != [sizes[count] for count in counts]:
        raise next(
            wrong_size(slice_, *block)
            for block, count in zip(found, counts, strict=True)
            if block.payload.numel() != sizes[count]
        )
    return found, columns.joined(parts, counts)


def laid_out(values: torch.Tensor, blocks: Sequence[Block], elements: int) -> torch.Tensor:
    """Put the values of some blocks, which follow one another, in their places; zeros elsewhere.

    Args:
        values: Flat; as many as the blocks have elements.
        blocks: As `in_order` gives them.
        elements: The elements of the slice.

    Returns:
        A tensor of shape (elements,); `values` itself if the blocks have every element.
    """
    missing = elements - values.numel()
    if not missing:
        return values
    runs, gaps, end = [0], [0], 0  # in turn: a gap, a run
    for start, stop, _ in blocks:
        if start > end:
            gaps.append(start - end)
            runs.append(0)
        runs[-1] += stop - start
        end = stop
    gaps.append(elements - end)
    runs.append(0)
    zeros = values.new_zeros(missing).split_with_sizes(gaps)
    pieces = zip(zeros, values.split_with_sizes(runs), strict=True)
    return torch.cat([piece for pair in pieces for piece in pair])
