"""A short name for the sample that a worker begins with, by which the run notices parties that have the same data.

What it cannot see: samples that are made anew each time (augmentation by chance) differ though they are of one item.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from geomx.node.same_data import DIGEST_BYTES

MOST_PARTS = 64  # tensors of a batch that are looked at


def first_sample(batch: Any, index: Any = None) -> bytes | None:
    """Name the first sample of a batch.

    Args:
        batch: as a DataLoader gives it: tensors (or arrays, lists) whose first dimension is the samples, nested.
        index: where the sample stands in its data set, if that can be told.

    Returns:
        A digest that is the same wherever that sample is; None where nothing of the batch can be read.
    """
    try:
        place = repr(index).encode()
        parts = list(itertools.islice(_firsts(batch), MOST_PARTS))
    except Exception:  # of types that we do not know: a hint that cannot be given must not end a training
        return None
    digest = hashlib.blake2b(place, digest_size=DIGEST_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest() if parts else None


def _firsts(value: Any) -> Iterator[bytes]:
    """The bytes of the first sample, part by part."""
    if isinstance(value, torch.Tensor):
        if value.dim() and len(value) and value.layout is torch.strided:
            flat = value[0].detach().cpu().contiguous().reshape(-1)
            yield str(flat.dtype).encode() + flat.view(torch.uint8).numpy().tobytes()
    elif isinstance(value, Mapping):
        for key in value:
            yield from _firsts(value[key])
    elif isinstance(value, tuple | list):
        if value and isinstance(value[0], str | bytes | int | float):
            yield repr(value[0]).encode()
        else:
            for each in value:
                yield from _firsts(each)
    elif getattr(value, "shape", ()) and hasattr(value, "tobytes"):  # a NumPy array
        yield value[0].tobytes()
