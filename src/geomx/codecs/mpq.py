"""MPQ, GeoMX's mixed precision: slices of large tensors sparse, slices of tiny ones in half precision.

On the LAN, where GeoMX sends large tensors as they are, `large = "dense"` does the same. See `bisparse` and `whole`.
"""

from __future__ import annotations

from geomx.codecs.bisparse import BiSparse
from geomx.codecs.noise import Stream
from geomx.codecs.whole import FP16


class MPQ(BiSparse):
    """Bi-Sparse for large tensors, FP16 for tiny ones."""

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
        super().__init__(
            stream,
            ratio=ratio,
            momentum=momentum,
            values=values,
            warmup_rounds=warmup_rounds,
            clip=clip,
            tiny=FP16(stream),
        )
