"""The data of the workloads: Fashion-MNIST as Debian's package installs it, and the text of Python's library.

Needs numpy alone, so that every system's environment reads the same.
"""

import functools
import gzip
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
MEAN, DEVIATION = 0.286, 0.353  # of Fashion-MNIST's pixels, from 0 to 1
TEST_BATCHES = 10
DENSE = {
    "cnn-179k": (256, 128),
    "cnn-1m": (1024, 512),
    "cnn-10m": (4096, 1920),
}  # the CNNs' inner dense layers


class DataMissingError(Exception):
    """A data set is not on this machine; says how to get it."""


@functools.cache
def fashion_mnist(split: str) -> tuple[Any, Any]:
    """Images as [n, 1, 28, 28] uint8 and labels as [n] int64, of the split `train` or `test`."""
    prefix = FASHION_MNIST / {"train": "train", "test": "t10k"}[split]
    try:
        images = gzip.decompress(Path(f"{prefix}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress(Path(f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    except OSError as error:
        reason = f"Fashion-MNIST cannot be read ({error}): apt install dataset-fashion-mnist"
        raise DataMissingError(reason) from None
    pixels = np.frombuffer(images, np.uint8)[16:].reshape(-1, 1, 28, 28)
    return pixels.copy(), np.frombuffer(labels, np.uint8)[8:].astype(np.int64)


def scaled(images: Any) -> Any:
    """As float32 of mean 0 and deviation 1."""
    return (images.astype(np.float32) / 255 - MEAN) / DEVIATION


def accuracy(classes_of: Callable[[Any], Any]) -> float:
    """The share of the 10,000 test images whose class is found, of a thousand at once."""
    images, labels = fashion_mnist("test")
    parts = zip(np.split(images, TEST_BATCHES), np.split(labels, TEST_BATCHES), strict=True)
    return sum(int((classes_of(scaled(some)) == named).sum()) for some, named in parts) / len(labels)


def text() -> Any:
    """English and Python as [n] uint8: the modules of Python's standard library."""
    modules = sorted(Path(os.__file__).parent.glob("*.py"))
    return np.frombuffer(b"".join(module.read_bytes() for module in modules), np.uint8).copy()
