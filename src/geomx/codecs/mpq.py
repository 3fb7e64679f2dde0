"""MPQ, GeoMX's mixed precision: slices of tiny tensors in half precision on both tiers.

mpq          slices of large ones sparse; GeoMX has it on the WAN. See `bisparse`
tiny_fp16    slices of large ones dense; GeoMX has it inside a party, as the other half of its MPQ
"""

from __future__ import annotations

from geomx.codecs.bisparse import BiSparse
from geomx.codecs.by_size import BySize
from geomx.codecs.contract import Codec
from geomx.codecs.dense import Dense
from geomx.codecs.error_feedback import SIZE_LOWER_BOUND
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.whole import FP16


class MPQ(BiSparse):
    """Sends large tensors through `BiSparse`, tiny ones through `FP16`. Parameters as `BiSparse`."""

    @staticmethod
    def for_tiny(stream: RngKey) -> Codec:
        return FP16(stream)


class TinyFP16(BySize):
    """Sends large tensors dense, tiny ones through `FP16`.

    Args:
        stream: The key of its random numbers, which it does not use.
        size_lower_bound: The number of elements from which a tensor is large.
    """

    def __init__(self, stream: RngKey, *, size_lower_bound: int = SIZE_LOWER_BOUND) -> None:
        super().__init__(Dense(), FP16(stream), size_lower_bound)
