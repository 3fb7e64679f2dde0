"""Whole numbers of 64 bits in as few bytes as they take, and none for zeros: what sums of counts travel as.

marks      a bit for each number, set where it is not 0, up to a whole byte
widths     a byte for each 64 of these: how many bytes the largest of them takes, 1 to 8
numbers    those that are not 0, in their order, in so many bytes: 2 x, or -2 x - 1 of negative x (zigzag)
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from geomx.codecs.pack import native
from geomx.errors import ProtocolError

BLOCK = 64


def pack(values: torch.Tensor) -> torch.Tensor:
    """int64 [elements] as bytes."""
    packed = native.pack_narrow(values)
    if packed is not None:
        return packed
    numbers = values.numpy()
    is_there = numbers != 0
    some = numbers[is_there]
    folded = np.zeros(-(-len(some) // BLOCK) * BLOCK, np.uint64)
    folded[: len(some)] = ((some << 1) ^ (some >> 63)).view(np.uint64)
    largest = np.bitwise_or.reduce(folded.reshape(-1, BLOCK), axis=1)
    steps = np.uint64(1) << np.arange(0, 64, 8, dtype=np.uint64)
    widths = (largest[:, None] >= steps).sum(1).astype(np.uint8)
    numbers_of = folded.view(np.uint8).reshape(-1, 8)[_kept(widths, len(some))]
    return torch.from_numpy(np.concatenate([np.packbits(is_there, bitorder="little"), widths, numbers_of]))


def unpack(packed: torch.Tensor, count: int) -> torch.Tensor:
    """The numbers of bytes. Raises `ProtocolError` for what no numbers are packed as."""
    values = native.unpack_narrow(packed, count)
    if values is not None:
        return values
    data, marks = packed.numpy(), -(-count // 8)
    bits = np.unpackbits(data[:marks], bitorder="little")
    is_there, there = bits[:count].astype(bool), int(bits.sum())
    blocks = -(-there // BLOCK)
    widths = data[marks : marks + blocks]
    fits = len(bits) >= count and not bits[count:].any() and len(widths) == blocks
    fits = fits and bool(np.all((widths >= 1) & (widths <= 8)))
    kept = _kept(widths, there) if fits else np.zeros((0, 8), bool)
    if not fits or len(data) != marks + blocks + int(kept.sum()):
        raise ProtocolError(f"{len(data)} bytes are not {count} whole numbers")
    folded = np.zeros((blocks * BLOCK, 8), np.uint8)
    folded[kept] = data[marks + blocks :]
    some = folded.reshape(-1).view(np.uint64)[:there]
    numbers = np.zeros(count, np.int64)
    numbers[is_there] = (some >> np.uint64(1)).view(np.int64) ^ -(some & np.uint64(1)).view(np.int64)
    return torch.from_numpy(numbers)


def _kept(widths: npt.NDArray[np.uint8], count: int) -> npt.NDArray[np.bool_]:
    """Which bytes of the numbers travel, [blocks x 64, 8]."""
    kept = np.repeat(np.arange(8) < widths[:, None], BLOCK, axis=0)
    kept[count:] = False
    return kept
