"""The data sets of the examples: grey images of 28×28 in 10 classes, read from this machine alone."""

from __future__ import annotations

import gzip
import math
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch.utils.data import Subset, TensorDataset

from geomx.errors import DataMissing

NAMES = ("digits", "fashion-mnist")
SIDE, CLASSES = 28, 10
DEBIAN_FOLDER = Path("/usr/share/datasets/fashion-mnist")


def load(name: str, folder: Path | None = None) -> tuple[TensorDataset, TensorDataset]:
    """The training and the test split of a data set, as ([n, 1, 28, 28] float32 in [0, 1], [n] int64).

    `folder`: where the files of Fashion-MNIST are; None: where Debian's package puts them. Raises `DataMissing`.
    """
    return digits() if name == "digits" else fashion_mnist(folder or DEBIAN_FOLDER)


def digits() -> tuple[TensorDataset, TensorDataset]:
    """scikit-learn's 1,797 digits of 8×8, enlarged; every fifth of them, drawn once for all, is for the test."""
    try:
        from sklearn.datasets import load_digits  # noqa: PLC0415 - only this data set needs it
    except ImportError as error:
        raise DataMissing(
            'the digits come with scikit-learn, which is not installed: `pip install "geomx[examples]"`'
        ) from error
    bunch = load_digits()
    small = torch.from_numpy(bunch.images).to(torch.float32)[:, None] / 16
    images = F.interpolate(small, size=(SIDE, SIDE), mode="bilinear", align_corners=False)
    labels = torch.from_numpy(bunch.target).to(torch.int64)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    test, train = order[: len(order) // 5], order[len(order) // 5 :]
    return TensorDataset(images[train], labels[train]), TensorDataset(images[test], labels[test])


def fashion_mnist(folder: Path) -> tuple[TensorDataset, TensorDataset]:
    """Zalando's 60,000 and 10,000 pictures of clothes, from the original files."""
    train, test = (_pair(folder, prefix) for prefix in ("train", "t10k"))
    return train, test


def by_class(data: TensorDataset, part: int, parts: int) -> Subset:
    """The samples of every `parts`-th class, from class `part` on: parties that have seen no class in common."""
    if parts > CLASSES:
        raise ValueError(f"{CLASSES} classes cannot be split over {parts} parties")
    _, labels = data.tensors
    return Subset(data, torch.nonzero(labels % parts == part).flatten().tolist())


def _pair(folder: Path, prefix: str) -> TensorDataset:
    images = _idx(folder / f"{prefix}-images-idx3-ubyte.gz", (SIDE, SIDE))
    labels = _idx(folder / f"{prefix}-labels-idx1-ubyte.gz", ())
    return TensorDataset(images[:, None].to(torch.float32) / 255, labels.to(torch.int64))


def _idx(path: Path, shape: tuple[int, ...]) -> torch.Tensor:
    """A file in the IDX format: 0, 0, 8 (bytes), the number of extents, each of them big-endian, the bytes.

    `shape`: all extents but the first.
    """
    try:
        raw = gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise DataMissing(
            f"Fashion-MNIST cannot be read ({error}). On Debian and Ubuntu, "
            f"`apt install dataset-fashion-mnist` installs it; elsewhere, name the folder of the four original "
            f".gz files with --data-folder"
        ) from error
    extents = 1 + len(shape)
    body = np.frombuffer(raw, np.uint8)[4 + 4 * extents :]
    count = int.from_bytes(raw[4:8], "big")
    if raw[:4] != bytes((0, 0, 8, extents)) or body.size != count * math.prod(shape):
        raise DataMissing(f"{path} is not as Fashion-MNIST's authors wrote it; fetch it again")
    return torch.from_numpy(body.reshape(count, *shape).copy())
