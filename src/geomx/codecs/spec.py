"""A codec as a run's description names it: `bisparse ratio=0.01 values=int4`, or a user's own `module:Class rate=3`."""

from __future__ import annotations

import torch

from geomx.codecs import codecs
from geomx.codecs.by_size import LARGEST_BOUND, BySize
from geomx.codecs.contract import Codec
from geomx.codecs.error_feedback import Lossy
from geomx.codecs.pack.noise import RngKey
from geomx.errors import ConfigError, Fault
from geomx.layout import SLICES_WANTED, Part, Slice

SAMPLE_ELEMENTS = 1 << 14
# Of a tensor that every codec takes as large.
SAMPLE = Slice(0, "float32", 0, "weight", LARGEST_BOUND, (Part(0, 0, SAMPLE_ELEMENTS, 0),))


def make_codec(spec: str, stream: RngKey) -> Codec:
    """The codec of a spec. Raises `ConfigError` with every fault."""
    made = codecs.make(spec, stream)
    if not isinstance(made, Codec):
        found = f"an object of {type(made).__name__}"
        fault = Fault(spec.split(maxsplit=1)[0], found, "a subclass of geomx.codecs.contract.Codec")
        raise ConfigError(f"codec `{spec}`", [fault])
    if isinstance(made, Lossy) and made.tiny is not None:
        return BySize(made, made.tiny, made.size_lower_bound)
    return made


def ratio_of(spec: str) -> float:
    """How many times less than dense a codec sends of a large tensor of normally distributed values."""
    with torch.device("cpu"):  # a script may have set defaults of its own
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(SAMPLE_ELEMENTS, generator=generator, dtype=torch.float32)
        dense_bytes = values.nbytes
        return dense_bytes / make_codec(spec, RngKey()).encode(SAMPLE, 1, values).nbytes


def slices_wanted(*specs: str) -> int:
    """Into how many slices a model is best cut that travels through these codecs.

    Slices overlap the ways that they take one after the other; the less a codec sends, the less there is to overlap,
    and the more the messages' own cost counts.
    """
    return max(1, round(SLICES_WANTED / min(ratio_of(spec) for spec in specs)))


def size_bounds_of(*specs: str) -> tuple[int, ...]:
    """The sizes from which these codecs take a tensor as large, as a layout has them."""
    return tuple(sorted({make_codec(spec, RngKey()).size_lower_bound for spec in specs} - {1}))
