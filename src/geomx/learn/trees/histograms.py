"""Sums of whole numbers by feature and code: compiled where there is a C compiler, the same bits without."""

from __future__ import annotations

import ctypes
from pathlib import Path

import numpy as np
import numpy.typing as npt

from geomx.learn.over import Ints

Codes = npt.NDArray[np.uint8]
Whole = npt.NDArray[np.int32]
LIBRARY = Path(__file__).with_name("kernels.so")


def _load() -> ctypes.CDLL | None:
    if not LIBRARY.exists():
        return None
    try:
        library = ctypes.CDLL(str(LIBRARY))
        pointer, long = ctypes.c_void_p, ctypes.c_int64
        library.add_histograms.argtypes = [pointer, pointer, pointer, long, long, long, long, pointer]
        library.add_histograms.restype = None
    except (OSError, AttributeError):
        return None
    return library


_library = _load()


def histograms(codes: Codes, values: Whole, rows: Ints, bins: int) -> Ints:
    """Of some rows.

    Args:
        codes: [all rows, features].
        values: [all rows, channels].
        rows: Which of them.
        bins: How many codes there are.

    Returns:
        int64 [features, bins, channels].
    """
    features, channels = codes.shape[1], values.shape[1]
    sums = np.zeros((features, bins, channels), np.int64)
    if _library is not None and codes.flags.c_contiguous and values.flags.c_contiguous:
        own = np.ascontiguousarray(rows, np.int64)
        _library.add_histograms(
            codes.ctypes.data,
            values.ctypes.data,
            own.ctypes.data,
            len(own),
            features,
            bins,
            channels,
            sums.ctypes.data,
        )
        return sums
    for feature in range(features):
        at = codes[rows, feature]
        for channel in range(channels):
            np.add.at(sums[feature, :, channel], at, values[rows, channel].astype(np.int64))
    return sums
