"""What travels: the contract of a codec.

A codec turns a flat float tensor into a flat uint8 tensor and back. Encoding and decoding run as jobs, outside the
node; a codec object belongs to one node and one direction.
"""

from __future__ import annotations

from typing import Protocol

import torch

from geomx.layout import Slice
from geomx.registry import Registry


class Codec(Protocol):
    """One direction of one kind of edge."""

    def encode(self, piece: Slice, turn: int, values: torch.Tensor) -> torch.Tensor:
        """`values`: flat, of the slice's dtype and elements. Returns flat uint8; may share memory with `values`."""

    def decode(self, piece: Slice, payload: torch.Tensor) -> torch.Tensor:
        """The inverse: flat, of the slice's dtype. Raises `ProtocolError` on anything malformed."""

    def accepts(self, piece: Slice, size: int) -> bool:
        """Whether a payload of `size` bytes is possible for this slice; asked before memory is taken."""

    def cost_bytes(self, piece: Slice) -> int:
        """The memory that one encode or decode touches; 0: it only looks at the same memory anew."""


codecs: Registry[type[Codec]] = Registry("codec", {"dense": "geomx.codecs.dense:Dense"})
