"""The contract of a codec: what travels over an edge.

A codec turns a flat float tensor into a flat uint8 tensor and back. Encoding and decoding run as jobs, outside the
node; a codec object belongs to one node and one direction of one tier's edges. Those that lose something inherit
`geomx.codecs.error_feedback.Lossy`.

**Blocks.** A payload can be cut into blocks that decode on their own, for channels that lose some of them: a block is a
payload of a part of the slice. What blocks carry that were not applied goes back into the residual (`settle`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from geomx.errors import NotFinite
from geomx.layout import Slice

BLOCK = 1024  # numbers; at its multiples every form has whole scales and whole bytes


class Block(NamedTuple):
    """What a payload carries of elements [start, stop): a payload of `slice_.within(start, stop)`."""

    start: int
    stop: int
    payload: torch.Tensor


class Room(NamedTuple):
    """Which numbers there is room for: up to `most` in size. `form`: what they are written as."""

    most: float
    form: str

    def check(self, slice_: Slice, largest: float) -> None:
        """Raise NotFinite where the largest |value| of a slice is NaN, Inf, or has no room."""
        if not largest <= self.most:
            raise NotFinite(f"slice {slice_.index} holds {self.beyond(largest)}")

    def beyond(self, value: float) -> str:
        """A number that has no room, in words."""
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Inf" if value > 0 else "-Inf"
        return f"{value:.4g}, and {self.form} ends at {self.most:.4g}"


class Codec(ABC):
    """One direction of one kind of edge. As it stands, a codec keeps nothing from one encoding to the next."""

    lossless: bool
    feedback: bool  # whether what an encoding does not carry goes with the next; a lossless one carries all
    ratio: float | None = None  # which part of the elements an encoding carries; None: all of them
    momentum: float = 0.0  # of the values, before they meet what is held back
    decay: float = 1.0  # what is left of what is held back when the next values come
    size_lower_bound: int = (
        1  # tensors of fewer elements are tiny, and go another way; no slice has both kinds
    )

    @abstractmethod
    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        """`values`: flat, of the slice's dtype and elements, Σ w·x of a total `weight`.

        Returns flat uint8; may share memory with `values`. Raises NotFinite where a lossy codec is given NaN, Inf, or
        what it has no `room` for: the run ends then, and what is held back of the slice is lost.
        """

    @abstractmethod
    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        """The inverse: flat, of the slice's dtype. Raises `ProtocolError` on anything malformed."""

    @abstractmethod
    def accepts(self, slice_: Slice, size: int) -> bool:
        """Whether a payload of `size` bytes is possible for this slice; asked before memory is taken."""

    def room(self, slice_: Slice) -> Room:
        """Which of a slice's numbers an encoding carries. A codec that does not answer carries all that are finite."""
        return room_of(slice_)

    def cut(self, slice_: Slice, payload: torch.Tensor, numbers: int) -> list[Block]:
        """An encoding of this slice as blocks of at most `numbers` numbers that are sent, a multiple of `BLOCK`.

        Blocks follow each other without gaps from the slice's first element to its last. Decoded, all of them together
        are what `decode` makes of the whole, bit for bit. A codec that does not answer sends all in one block.
        """
        return [Block(0, slice_.elements, payload)]

    @abstractmethod
    def cost_bytes(self, slice_: Slice) -> int:
        """The memory that one encode or decode touches; 0: it only looks at the same memory anew."""

    def settle(self, slice_: Slice, lost: Iterable[Block]) -> None:
        """Blocks were not applied: what they carried goes with the next encoding. Without feedback it is lost."""
        return

    def state(self, slice_: Slice) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps of a slice, by name: tensors of the slice's elements, as they lie in memory."""
        return {}

    def restore(self, slice_: Slice, state: Mapping[str, torch.Tensor]) -> None:
        """The inverse of `state`; without a name in it, that part begins anew."""
        return


def room_of(slice_: Slice) -> Room:
    """Which numbers a slice has room for by itself: all of its dtype that are finite."""
    dtype = getattr(torch, slice_.dtype)
    return Room(torch.finfo(dtype).max if dtype.is_floating_point else math.inf, slice_.dtype)


def whole_blocks(numbers: int) -> int:
    """`numbers`, if blocks can have so many. Raises ValueError."""
    if numbers < BLOCK or numbers % BLOCK:
        raise ValueError(f"blocks of {numbers} numbers; possible are multiples of {BLOCK}")
    return numbers


def tiles(count: int, size: int) -> list[tuple[int, int]]:
    """[0, count) in pieces of `size` and a rest."""
    return [(start, min(start + size, count)) for start in range(0, count, size)]
