"""Noise on sums, so that they hardly tell whether a row is one or another (differential privacy).

    before sums leave, each worker adds normal noise of deviation  noise * reach
    reach      how far one row, replaced by another, moves a worker's sums, as the root of a sum of squares
    spent      rho = 1 / (2 noise^2) for each release;     epsilon = rho + 2 sqrt(rho ln(1 / delta))

Each worker's sums are private by themselves: neither servers nor other workers need to be trusted. Which classes there
are, and how many rows a worker has, are no secrets. Noise is made of the operating system's random bits, and nothing
of it is kept. It is another for each worker and run, so noisy models are no more those of one machine. What leaves is
rounded to 1/1024 of the noise, so that the last bits of a float tell nothing (Mironov, CCS 2012). Source: Bun and
Steinke, TCC 2016.
"""

from __future__ import annotations

import math
import os
from typing import Any

import numpy as np
import numpy.typing as npt

from geomx.learn.over import Floats, Ints

GRID = 1024


class Noise:
    """The noise that one worker adds, and what it has spent.

    Attributes:
        rho: Of all releases so far.
    """

    def __init__(self, noise: float) -> None:
        """`noise`: its deviation, as a multiple of what one row moves; above 0. Raises `ValueError`."""
        if not (noise > 0.0 and math.isfinite(noise)):
            raise ValueError(f"noise={noise}: a number above 0, or 0 for none")
        self._noise = noise
        self.rho = 0.0

    def release(self, *parts: tuple[npt.NDArray[Any], float]) -> list[Floats]:
        """Noisy sums that leave together: each with its reach, by itself."""
        self.rho += 0.5 / self._noise**2
        found = []
        for sums, reach in parts:
            deviation = self.deviation(reach, len(parts))
            grid = deviation / GRID
            found.append(np.rint((sums + deviation * _normal(sums.shape)) / grid) * grid)
        return found

    def deviation(self, reach: float, parts: int) -> float:
        """Of what is added to each of so many parts that leave together."""
        return self._noise * math.sqrt(parts) * reach

    def epsilon(self, delta: float = 1e-6) -> float:
        """With chance 1 - `delta`, what has left is at most e^epsilon times as likely with one row as with another.

        Raises:
            ValueError: `delta` is not between 0 and 1.
        """
        if not 0.0 < delta < 1.0:
            raise ValueError(f"delta={delta}: between 0 and 1, and far below 1 / rows")
        return self.rho + 2.0 * math.sqrt(self.rho * math.log(1.0 / delta))


def _normal(shape: tuple[int, ...]) -> Floats:
    """Independent normal numbers of the operating system's random bits, by Box and Muller."""
    count = math.prod(shape)
    bits = np.frombuffer(os.urandom(16 * count), np.uint64).reshape(2, count)
    first, second = (bits >> np.uint64(11)).astype(np.float64) * 2.0**-53
    found: Floats = np.sqrt(-2.0 * np.log1p(-first)) * np.cos(2.0 * np.pi * second)
    return found.reshape(shape)


def reach_of(features: int) -> float:
    """Of histograms of numbers that are at most 1."""
    return 2.0 * math.sqrt(features)


def histograms_of(noise: Noise, own: list[Ints], bounds: Ints) -> list[Ints]:
    """Noisy histograms [features, bins, channels] of nodes that share no row, of numbers at most `bounds`: one release.

    A row has one bin of each feature in one node, so replaced by another it moves a channel by 2 sqrt(features) bounds.
    """
    if not own:
        return own
    sums = np.stack(own)
    root = reach_of(sums.shape[1])
    channels = noise.release(*((sums[..., at], root * float(bound)) for at, bound in enumerate(bounds)))
    return list(np.rint(np.stack(channels, axis=-1)).astype(np.int64))
