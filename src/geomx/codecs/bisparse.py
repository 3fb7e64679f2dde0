"""Bi-Sparse: GeoMX's sparsification of both directions, after Deep Gradient Compression (arXiv 1712.01887).

    u ← momentum · u + clip(x);   v ← v + u            (momentum correction)
    send the fraction `ratio` with the largest |v|, by a threshold that a sample estimates
    u, v ← 0 where sent                                 (momentum factor masking)

`v` is the residual. Defaults: ratio 0.01, momentum 0, values fp16, no warm-up, no clipping. Where we
deviate from GeoMX: indices are exact for any size and take 8.1 bits, not 32; what a rounded value lost stays in v; the
sample is drawn by hash, the same on every machine, and where its estimate is far off the exact threshold is taken; the
down direction keeps a residual as well. `momentum` is for optimizers without
momentum: with any other, momentum would count twice.

`warmup_rounds`: in round t < n the ratio is 0.25^(1 - t/n) · ratio^(t/n), DGC's exponential schedule. `clip`: a
slice's mean gradient is clipped to this L2 norm before it meets u.
"""

from __future__ import annotations

import torch

from geomx.codecs import native
from geomx.codecs.base import Codec, check_finite
from geomx.codecs.noise import Stream, below
from geomx.codecs.sparse import Sparse
from geomx.codecs.topk import at_least, kth_largest, largest
from geomx.errors import ConfigError, Fault
from geomx.layout import Slice

FIRST_RATIO = 0.25
SAMPLE, LEAST_SAMPLE = 0.01, 2048
TOLERANCE = 1.5  # the estimate may send this many times too much or too little


class BiSparse(Sparse):
    """See the module's text."""

    def __init__(
        self,
        stream: Stream,
        *,
        ratio: float = 0.01,
        momentum: float = 0.0,
        values: str = "fp16",
        warmup_rounds: int = 0,
        clip: float = 0.0,
    ) -> None:
        super().__init__(stream, ratio, values, self.for_tiny(stream))
        faults = []
        if not 0.0 <= momentum < 1.0:
            faults.append(Fault("momentum", f"{momentum}", "a number from 0, below 1"))
        faults += [
            Fault(name, f"{value}", "0 or more")
            for name, value in (("warmup_rounds", warmup_rounds), ("clip", clip))
            if value < 0
        ]
        if faults:
            raise ConfigError("codec bisparse", faults)
        self.momentum, self._clip, self._warmup_rounds = momentum, clip, warmup_rounds
        self.prepares = bool(momentum or clip)
        self._velocities: dict[int, torch.Tensor] = {}
        self.memory["velocity"] = self._velocities

    @staticmethod
    def for_tiny(stream: Stream) -> Codec | None:
        """What slices of tiny tensors go through; None: dense."""
        return None

    def prepared(self, piece: Slice, values: torch.Tensor, weight: float) -> torch.Tensor:
        if self._clip:
            norm = float(torch.linalg.vector_norm(values.to(torch.float64)))
            if norm > self._clip * weight:
                values = values * (self._clip * weight / norm)
        if not self.momentum:
            return values
        velocity = self._velocities.get(piece.index)
        if velocity is None:
            velocity = self._velocities[piece.index] = torch.zeros_like(self.residual(piece, values))
        return velocity.mul_(self.momentum).add_(values)

    def encode(self, piece: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        indices = self._add_and_select(piece, turn, values)
        if indices is None:
            return super().encode(piece, turn, values, weight)
        return self.write(indices, self.residual(piece, values))

    def compress(self, piece: Slice, turn: int, left: torch.Tensor, weight: float) -> torch.Tensor:
        wanted = self._wanted(piece, turn)
        indices = self._select(left, wanted, self.stream.key(turn, piece))
        if self.momentum:
            self._velocities[piece.index][indices] = 0
        return self.write(indices, left)

    def _wanted(self, piece: Slice, turn: int) -> int:
        return max(1, round(self.ratio_in(turn) * piece.elements))

    def ratio_in(self, turn: int) -> float:
        """The fraction that round `turn` sends."""
        if turn >= self._warmup_rounds:
            return self.ratio
        done = turn / self._warmup_rounds
        return max(self.ratio, float(FIRST_RATIO ** (1 - done) * self.ratio**done))

    def _select(self, left: torch.Tensor, wanted: int, key: int) -> torch.Tensor:
        """Rising indices of about `wanted` largest |left|; exactly so many where the estimate is far off."""
        stride = self._stride(left)
        if stride < 2:
            return largest(left, wanted)
        start = below(key, stride)
        sampled = -(-(left.numel() - start) // stride)
        threshold = kth_largest(left, max(1, round(wanted * sampled / left.numel())), start, stride)
        return _near(left, at_least(left, threshold, int(2 * TOLERANCE * wanted)), threshold, wanted)

    def _add_and_select(self, piece: Slice, turn: int, values: torch.Tensor) -> torch.Tensor | None:
        """The residual takes up `values`, and `_select` of what comes of it, in one pass over memory.

        None where there is no kernel for it; nothing has been done then.
        """
        stride = self._stride(values)
        if not (self.feedback and piece.large) or self.prepares or stride < 2:
            return None
        left, wanted = self.residual(piece, values), self._wanted(piece, turn)
        sample = native.sample_sums(left, values, below(self.stream.key(turn, piece), stride), stride)
        if sample is None:
            return None
        threshold = kth_largest(sample, max(1, round(wanted * sample.numel() / left.numel())))
        found, most = native.add_at_least(left, values, threshold, int(2 * TOLERANCE * wanted))
        check_finite(piece, most)
        if found is None:
            found = at_least(left, threshold, left.numel())
        return _near(left, found, threshold, wanted)

    @staticmethod
    def _stride(x: torch.Tensor) -> int:
        return int(x.numel() / max(LEAST_SAMPLE, SAMPLE * x.numel()))


def _near(left: torch.Tensor, found: torch.Tensor, threshold: float, wanted: int) -> torch.Tensor:
    """What is at least `threshold`, if there are nearly as many as wanted; else exactly so many of the largest."""
    if found.numel() > TOLERANCE * wanted:
        return found[largest(left[found], wanted)]
    if TOLERANCE * found.numel() < wanted and threshold > 0:
        return largest(left, wanted)
    return found
