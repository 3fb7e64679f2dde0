"""The contract of a codec: what travels over an edge.

A codec turns a flat float tensor into a flat uint8 tensor and back. Encoding and decoding run as jobs, outside the
node. A codec object belongs to one node and one direction of one tier's edges. To write a lossy codec, inherit
`geomx.codecs.error_feedback.Lossy`.

**Blocks.** A payload can be cut into blocks that decode on their own, for channels that lose some of them: a block is a
payload of a part of the slice. What lost blocks carried goes back into the residual (`settle`).
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
    """A part of a payload: the payload of elements [start, stop), that is of `slice_.within(start, stop)`."""

    start: int
    stop: int
    payload: torch.Tensor


class Room(NamedTuple):
    """The range of numbers that a codec can write.

    Attributes:
        most: The largest magnitude.
        form: The name of the number format, for messages.
    """

    most: float
    form: str

    def check(self, slice_: Slice, largest: float) -> None:
        """Raise `NotFinite` if the largest magnitude in a slice is NaN, Inf or out of range."""
        if not largest <= self.most:
            raise NotFinite(f"slice {slice_.index} holds {self.beyond(largest)}")

    def beyond(self, value: float) -> str:
        """Say in words what is wrong with a number that is out of range."""
        if math.isnan(value):
            return "NaN"
        if math.isinf(value):
            return "Inf" if value > 0 else "-Inf"
        return f"{value:.4g}, too large for {self.form} (at most {self.most:.4g})"


class Codec(ABC):
    """Encodes and decodes slices in one direction of one kind of edge.

    This base class keeps nothing from one encoding to the next.

    Attributes:
        lossless: `decode` gives back exactly what `encode` was given.
        feedback: What one encoding does not carry is added to the next.
        ratio: The fraction of elements that an encoding carries; None: all.
        momentum: Momentum that the codec applies to values before it adds the residual; 0: none.
        decay: The share of the residual that is left when the next values come.
        size_lower_bound: Tensors with fewer elements are tiny, and take another codec. No slice has both kinds.
    """

    lossless: bool
    feedback: bool
    ratio: float | None = None
    momentum: float = 0.0
    decay: float = 1.0
    size_lower_bound: int = 1

    @abstractmethod
    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        """Encode the values of a slice.

        Args:
            slice_: The slice.
            turn: The number of the round, for random numbers and schedules.
            values: Σ w·x, of shape (elements,) and the slice's dtype.
            weight: Σ w, the total weight in `values`, such as a number of samples.

        Returns:
            The payload: a flat uint8 tensor, which may share memory with `values`.

        Raises:
            NotFinite: A lossy codec was given NaN, Inf, or a number out of its `room`. The slice's residual may be
                lost.
        """

    @abstractmethod
    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        """Decode a payload; the inverse of `encode`.

        Returns:
            Values of shape (elements,) and the slice's dtype.

        Raises:
            ProtocolError: `encode` cannot have written these bytes.
        """

    @abstractmethod
    def accepts(self, slice_: Slice, size: int) -> bool:
        """Whether a payload of this slice can have `size` bytes. Asked before memory is allocated for it."""

    def room(self, slice_: Slice) -> Room:
        """The range of numbers that an encoding of this slice can carry; by default all that are finite."""
        return room_of(slice_)

    def cut(self, slice_: Slice, payload: torch.Tensor, numbers: int) -> list[Block]:
        """Cut a payload into blocks that can be decoded one by one.

        Args:
            slice_: The slice.
            payload: An encoding of it.
            numbers: The most numbers that a block carries, a multiple of `BLOCK`.

        Returns:
            Blocks without gaps between them, from the slice's first element to its last. Decoded, they give the bits
            that `decode` gives for the whole. By default one block.
        """
        return [Block(0, slice_.elements, payload)]

    @abstractmethod
    def cost_bytes(self, slice_: Slice) -> int:
        """Bytes of memory that one encode or decode touches: large jobs run in a thread. 0: it copies nothing."""

    def settle(self, slice_: Slice, lost: Iterable[Block]) -> None:
        """Add what lost blocks carried to the next encoding. Without `feedback`, it is lost."""
        return

    def state(self, slice_: Slice) -> dict[str, torch.Tensor]:
        """What a checkpoint keeps of a slice, by name: tensors of shape (elements,), not copied."""
        return {}

    def restore(self, slice_: Slice, state: Mapping[str, torch.Tensor]) -> None:
        """Set what `state` returned; what is not in it begins anew."""
        return


def room_of(slice_: Slice) -> Room:
    """The range of a slice's own dtype."""
    dtype = getattr(torch, slice_.dtype)
    return Room(torch.finfo(dtype).max if dtype.is_floating_point else math.inf, slice_.dtype)


def whole_blocks(numbers: int) -> int:
    """Return `numbers` if it is a valid size of blocks, else raise `ValueError`."""
    if numbers < BLOCK or numbers % BLOCK:
        raise ValueError(f"blocks of {numbers} numbers; possible are multiples of {BLOCK}")
    return numbers


def tiles(count: int, size: int) -> list[tuple[int, int]]:
    """Cut [0, count) into ranges of `size`, and a shorter last one."""
    return [(start, min(start + size, count)) for start in range(0, count, size)]
