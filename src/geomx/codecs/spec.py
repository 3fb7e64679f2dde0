"""A codec as a run's description names it: `bisparse ratio=0.01 values=int4`, or a user's own `module:Class rate=3`."""

from __future__ import annotations

import torch

from geomx.codecs import codecs
from geomx.codecs.by_size import BySize
from geomx.codecs.contract import Codec
from geomx.codecs.error_feedback import Lossy
from geomx.codecs.pack.noise import RngKey
from geomx.errors import ConfigError, Fault
from geomx.layout import SLICES_WANTED, Layout, Tensor

SAMPLE_ELEMENTS = 1 << 14


def make_codec(spec: str, stream: RngKey) -> Codec:
    """The codec of a spec. Raises `ConfigError` with every fault."""
    made = codecs.make(spec, stream)
    if not isinstance(made, Codec):
        found = f"an object of {type(made).__name__}"
        fault = Fault(spec.split(maxsplit=1)[0], found, "a subclass of geomx.codecs.contract.Codec")
        raise ConfigError(f"codec `{spec}`", [fault])
    return BySize(made, made.tiny) if isinstance(made, Lossy) and made.tiny is not None else made


def ratio_of(spec: str) -> float:
    """How many times less than dense a codec sends of normally distributed values."""
    (slice_,) = Layout((Tensor("sample", (SAMPLE_ELEMENTS,), "float32"),), 1, SAMPLE_ELEMENTS).slices
    with torch.device("cpu"):  # a script may have set defaults of its own
        generator = torch.Generator().manual_seed(0)
        values = torch.randn(SAMPLE_ELEMENTS, generator=generator, dtype=torch.float32)
        dense_bytes = values.nbytes
        return dense_bytes / make_codec(spec, RngKey()).encode(slice_, 1, values).nbytes


def slices_wanted(*specs: str) -> int:
    """Into how many slices a model is best cut that travels through these codecs.

    Slices overlap the ways that they take one after the other; the less a codec sends, the less there is to overlap,
    and the more the messages' own cost counts.
    """
    return max(1, round(SLICES_WANTED / min(ratio_of(spec) for spec in specs)))
