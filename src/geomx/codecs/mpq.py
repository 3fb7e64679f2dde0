"""MPQ, GeoMX's mixed precision: slices of large tensors sparse, slices of tiny ones in half precision.

GeoMX does so on the WAN alone. See `bisparse` and `whole`.
"""

from __future__ import annotations

from geomx.codecs.bisparse import BiSparse
from geomx.codecs.contract import Codec
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.whole import FP16


class MPQ(BiSparse):
    """Bi-Sparse for large tensors, FP16 for tiny ones."""

    @staticmethod
    def for_tiny(stream: RngKey) -> Codec:
        return FP16(stream)
