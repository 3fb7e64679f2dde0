"""Codecs, sizes and numbers that tests of codecs share."""

from __future__ import annotations

import torch

from geomx.codecs.by_size import LARGEST_BOUND, BySize
from geomx.codecs.contract import Block, Codec
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.spec import make_codec
from geomx.layout import Part, Slice

SPECS = [
    "fp16", "bf16", "int8", "int8 stochastic=true", "int4", "int4 stochastic=true", "sign", "two_bit threshold=0.01",
    "topk ratio=0.05", "topk ratio=1.0 values=int8", "bisparse", "bisparse ratio=0.1 values=int4",
    "bisparse ratio=0.02 values=int2", "bisparse values=sign", "bisparse values=float32", "mpq ratio=0.03",
]  # fmt: skip
SIZES = [1, 2, 7, 63, 64, 65, 127, 129, 1000, 1023, 1025, 5000, 300_000]
DTYPES = ["float32", "float64"]


def made(spec: str, origin: str = "A") -> Codec:
    return make_codec(spec, RngKey(7, origin))


def of_large(codec: Codec) -> Codec:
    """What slices of large tensors go through."""
    return codec.large if isinstance(codec, BySize) else codec


def slice_of(elements: int, dtype: str = "float32", of_tensor: int = LARGEST_BOUND) -> Slice:
    """So many elements of a tensor that has `of_tensor`: of one that is large, unless said otherwise."""
    return Slice(0, dtype, 0, "weight", of_tensor, (Part(0, 0, elements, 0),))


def drawn(elements: int, dtype: str = "float32", seed: int = 0, scale: float = 1e-2) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (
        torch.randn(elements, generator=generator, dtype=torch.float64).mul(scale).to(getattr(torch, dtype))
    )


def residual(codec: Codec, slice_: Slice) -> torch.Tensor:
    return codec.state(slice_)["residual"]


def shuffled(blocks: list[Block], seed: int = 0) -> list[Block]:
    """Blocks in another order."""
    order = torch.randperm(len(blocks), generator=torch.Generator().manual_seed(seed))
    return [blocks[place] for place in order.tolist()]
