"""Short names for the samples that a worker begins with, by which the run notices parties that have the same data.

A name stands for everything that its sample holds: where a part of it cannot be read there is none, since what can be
read (a label) may be the same in samples that differ.
"""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from geomx.node.same_data import MOST_SAMPLES


class FirstSamples:
    """Reads the first samples of a worker's share.

    `digests`: by each sample's place in the order that the workers of its party share; none where something of them
    cannot be read.

    `of_batch`: how many samples a batch has at most. Where all parts of a batch have one length, no greater than that,
    they are cut into samples along their first dimension. None: nothing is known of batches, and each is read as if it
    were one sample. `place`, `places`: this worker's, and how many workers share the data.
    """

    def __init__(self, of_batch: int | None, place: int, places: int) -> None:
        self._of_batch = of_batch
        self._place, self._places = place, places
        self.digests: dict[int, bytes] = {}

    def read(self, batch: Any) -> bool:
        """Read the next batch: tensors, arrays, text and numbers, nested. Whether that was all there is to read."""
        samples = _samples(batch, self._of_batch)
        try:
            for sample in itertools.islice(samples, MOST_SAMPLES - len(self.digests)):
                if all(isinstance(part, int) for part in sample):
                    raise TypeError("bare integers are places in a data set that we do not see")
                self.digests[self._place + len(self.digests) * self._places] = _digest(sample)
        except Exception:  # of types that we do not know: a hint that cannot be given must not end a training
            self.digests = {}
            return True
        return len(self.digests) == MOST_SAMPLES


def _samples(batch: Any, of_batch: int | None) -> Iterator[list[Any]]:
    """The samples of a batch, each as its parts; or the batch as if it were one."""
    parts = list(_parts(batch))
    lengths = {_length(part) for part in parts}
    length = lengths.pop() if len(lengths) == 1 else 0
    if of_batch is None or not 0 < length <= of_batch:
        yield parts
    else:
        yield from ([part[place] for part in parts] for place in range(length))


def _parts(value: Any) -> Iterator[Any]:
    """The tensors and arrays of a nested batch, its lists of text or numbers, and its single values."""
    if isinstance(value, Mapping):
        value = list(value.values())
    if isinstance(value, tuple | list) and not all(
        isinstance(each, str | bytes | int | float) for each in value
    ):
        for each in value:
            yield from _parts(each)
    else:
        yield value


def _length(part: Any) -> int:
    """How many samples a part may be of; 0: it is no sequence of samples."""
    if isinstance(part, tuple | list):
        return len(part)
    shape = getattr(part, "shape", ())
    return int(shape[0]) if isinstance(shape, tuple) and shape else 0


def _digest(parts: list[Any]) -> bytes:
    digest = hashlib.sha256()
    for part in parts:
        kind, content = _read(part)
        digest.update(f"{kind} {len(content)} ".encode())
        digest.update(content)
    return digest.digest()


def _read(part: Any) -> tuple[str, bytes]:
    """What a part is, and its bytes. Raises `TypeError` where it cannot be read, as PyTorch does of some tensors."""
    if isinstance(part, torch.Tensor):
        flat = part.detach().cpu().contiguous().reshape(-1)
        return f"{part.dtype} {tuple(part.shape)}", flat.view(torch.uint8).numpy().tobytes()
    if part is None or isinstance(part, str | bytes | int | float | tuple | list):
        return type(part).__name__, repr(part).encode()
    dtype = getattr(part, "dtype", None)
    if not hasattr(part, "tobytes") or getattr(dtype, "hasobject", False):
        raise TypeError(f"{type(part).__name__} cannot be read")
    return (
        f"{dtype} {getattr(part, 'shape', getattr(part, 'size', ''))}",
        part.tobytes(),
    )  # an array, or an image
