"""A codec as a run's description names it: `bisparse ratio=0.01 values=int4`, or a user's own `module:Class rate=3`."""

from __future__ import annotations

from geomx.codecs.base import Codec, codecs
from geomx.codecs.noise import Stream


def make_codec(spec: str, stream: Stream) -> Codec:
    """The codec of a spec. Raises `ConfigError` with every fault, `UnknownName`."""
    made: Codec = codecs.make(spec, stream)
    return made
