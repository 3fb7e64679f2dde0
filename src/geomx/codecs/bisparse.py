"""Bi-Sparse: GeoMX's sparsification of both directions, after Deep Gradient Compression (Lin et al., ICLR 2018).

Source: arXiv 1712.01887, and GeoMX's code.

    u ← momentum · u + clip(x);   v ← v + u            (momentum correction)
    send the fraction `ratio` with the largest |v|, by a threshold that a sample estimates
    u, v ← 0 where sent                                 (momentum factor masking)

`v` is the residual. Where we deviate from GeoMX: indices are exact for any size and take 8.1 bits, not 32; what a
rounded value lost stays in v; the sample is drawn by hash, the same on every machine, and where its estimate is far off
the exact threshold is taken; the down direction keeps a residual as well.
"""

from __future__ import annotations

import math

import torch

from geomx.codecs.contract import Codec
from geomx.codecs.dense import Dense
from geomx.codecs.error_feedback import SIZE_LOWER_BOUND
from geomx.codecs.pack.native import Added
from geomx.codecs.pack.noise import RngKey, below
from geomx.codecs.sparse import Sparse
from geomx.codecs.topk import Found, Sample, add_and_find, find, largest, sampled
from geomx.errors import ConfigError, Fault
from geomx.layout import Slice

FIRST_RATIO = 0.25
SAMPLE, LEAST_SAMPLE = 0.01, 2048
TOLERANCE = 1.5  # the estimate may send this many times too much or too little


class BiSparse(Sparse):
    """Sends about the largest entries of each slice, by a sampled threshold (Lin et al., ICLR 2018).

    Args:
        stream: The key of its random numbers.
        ratio: The fraction of the elements that is sent, above 0 and at most 1.
        momentum: Momentum correction, from 0 to below 1. Only with an optimizer without momentum: it would count twice.
        values: The number form of what is sent, such as "float32", "fp16" or "int4".
        warmup_rounds: In round t below this n, the fraction is 0.25^(1 - t/n) · ratio^(t/n), DGC's schedule.
        clip: Clip a slice's mean gradient to this L2 norm before momentum; 0: do not.
        size_lower_bound: Tensors with fewer elements travel dense.

    Raises:
        ConfigError: A parameter is out of range.
    """

    def __init__(
        self,
        stream: RngKey,
        *,
        ratio: float = 0.01,
        momentum: float = 0.0,
        values: str = "fp16",
        warmup_rounds: int = 0,
        clip: float = 0.0,
        size_lower_bound: int = SIZE_LOWER_BOUND,
    ) -> None:
        super().__init__(stream, ratio, values, self.for_tiny(stream), size_lower_bound)
        faults = []
        if not 0.0 <= momentum < 1.0:
            faults.append(Fault("momentum", f"{momentum}", "a number from 0, below 1"))
        faults += [
            Fault(name, f"{value}", "0 or more")
            for name, value in (("warmup_rounds", warmup_rounds), ("clip", clip))
            if not 0 <= value < math.inf
        ]
        if faults:
            raise ConfigError("codec bisparse", faults)
        self.momentum, self._clip, self._warmup_rounds = momentum, clip, warmup_rounds
        self._velocities: dict[int, torch.Tensor] = {}
        self.memory["velocity"] = self._velocities

    @staticmethod
    def for_tiny(stream: RngKey) -> Codec:
        """What slices of tiny tensors go through."""
        return Dense()

    def prepared(self, slice_: Slice, values: torch.Tensor, weight: float) -> torch.Tensor:
        if self._clip:
            norm = float(torch.linalg.vector_norm(values.to(torch.float64)))
            if norm > self._clip * weight:
                values = values * (self._clip * weight / norm)
        velocity = self._velocity(slice_, values)
        return values if velocity is None else velocity.mul_(self.momentum).add_(values)

    def _velocity(self, slice_: Slice, like: torch.Tensor) -> torch.Tensor | None:
        """u; None without momentum."""
        if not self.momentum:
            return None
        velocity = self._velocities.get(slice_.index)
        if velocity is None:
            velocity = self._velocities[slice_.index] = torch.zeros_like(self.residual(slice_, like))
        elif velocity.device != like.device:
            velocity = self._velocities[slice_.index] = velocity.to(like.device)
        return velocity

    def absorb(
        self, slice_: Slice, turn: int, left: torch.Tensor, values: torch.Tensor, weight: float
    ) -> torch.Tensor:
        wanted = self._wanted(slice_, turn)
        sample = self._sample_for(slice_, turn, wanted)
        added = Added(values, self._velocity(slice_, values), self.momentum)
        fast = sample is not None and not self._clip
        found = add_and_find(slice_, left, added, sample, self.room(slice_)) if sample and fast else None
        if found is None:
            return super().absorb(slice_, turn, left, values, weight)
        return self._sent(slice_, _near(left, found, wanted), left)

    def compress(self, slice_: Slice, turn: int, left: torch.Tensor, weight: float) -> torch.Tensor:
        wanted = self._wanted(slice_, turn)
        sample = self._sample_for(slice_, turn, wanted)
        found = _near(left, find(left, sample), wanted) if sample else largest(left, wanted)
        return self._sent(slice_, found, left)

    def _sent(self, slice_: Slice, indices: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        if self.momentum:
            self._velocities[slice_.index][indices] = 0
        return self.write(indices, left)

    def _wanted(self, slice_: Slice, turn: int) -> int:
        return max(1, round(self.ratio_in(turn) * slice_.elements))

    def ratio_in(self, turn: int) -> float:
        """The fraction that round `turn` sends."""
        if turn >= self._warmup_rounds:
            return self.ratio
        done = turn / self._warmup_rounds
        return max(self.ratio, float(FIRST_RATIO ** (1 - done) * self.ratio**done))

    def _sample_for(self, slice_: Slice, turn: int, wanted: int) -> Sample | None:
        """What estimates the threshold; None for a slice that is too small for that."""
        stride = int(slice_.elements / max(LEAST_SAMPLE, SAMPLE * slice_.elements))
        if stride < 2:
            return None
        start = below(self.stream.key(turn, slice_), stride)
        return sampled(slice_.elements, wanted, start, stride, 1, 2 * TOLERANCE * wanted)


def _near(left: torch.Tensor, found: Found, wanted: int) -> torch.Tensor:
    """What was found, if that is nearly as much as was wanted; else exactly so many of the largest."""
    indices, bound = found
    if indices.numel() > TOLERANCE * wanted:
        return indices[largest(left[indices], wanted)]
    if TOLERANCE * indices.numel() < wanted and bound > 0:
        return largest(left, wanted)
    return indices
