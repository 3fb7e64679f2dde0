"""The contract of a codec: what travels over an edge.

A codec turns a flat float tensor into a flat uint8 tensor and back. Encoding and decoding run as jobs, outside the
node. A codec object belongs to one node and one direction of one tier's edges. To write a lossy codec, inherit
`geomx.codecs.error_feedback.Lossy`.

**Blocks.** For channels that lose data, `cut` makes blocks of a payload. A block is a payload of a part of the slice,
so it decodes on its own. The receiver decodes the blocks that came (`decode_blocks`). The sender's codec takes back
what the others carried (`settle`), and it goes with the next encoding.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from operator import itemgetter
from typing import NamedTuple

import torch

from geomx.errors import NotFinite, ProtocolError
from geomx.layout import Slice

WIDEST = 8  # bytes of the widest dtype


class Block(NamedTuple):
    """A part of a payload: the payload of elements [start, stop), that is of `slice_.within(start, stop)`.

    Attributes:
        start: The first element.
        stop: The element behind the last one.
        payload: A flat uint8 tensor.
    """

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

    def cut(self, slice_: Slice, payload: torch.Tensor, most_bytes: int) -> list[Block]:
        """Cut a payload into blocks that can be decoded one by one.

        Args:
            slice_: The slice.
            payload: An encoding of it.
            most_bytes: The size that a block's payload should have at most, such as what fits into a datagram. Blocks
                are as large as that allows. A codec whose smallest block is larger makes larger ones.

        Returns:
            Blocks without gaps between them, from the slice's first element to its last. Decoded, they give the bits
            that `decode` gives for the whole. If every element is sent, their ranges depend on the slice and
            `most_bytes` alone. By default one block. Payloads may share memory with each other and with `payload`.
        """
        return [Block(0, slice_.elements, payload)]

    def decode_blocks(self, slice_: Slice, blocks: Sequence[Block]) -> torch.Tensor:
        """Decode some of the blocks that `cut` made of one payload, in any order.

        Override it together with `cut` if it can be faster than block by block.

        Returns:
            Values of shape (elements,) and the slice's dtype, zero where no block came. From all blocks, the bits that
            `decode` gives for the whole.

        Raises:
            ProtocolError: Blocks overlap, lie outside the slice, or hold what `encode` cannot have written.
        """
        values = torch.zeros(slice_.elements, dtype=getattr(torch, slice_.dtype))
        for start, stop, payload in in_order(slice_, blocks):
            within = slice_.within(start, stop)
            if not self.accepts(within, payload.numel()):
                raise wrong_size(slice_, start, stop, payload)
            values[start:stop] = self.decode(within, viewable(payload))
        return values

    @abstractmethod
    def cost_bytes(self, slice_: Slice) -> int:
        """Bytes of memory that one encode or decode touches: large jobs run in a thread. 0: it copies nothing."""

    def settle(self, slice_: Slice, lost: Sequence[Block]) -> None:
        """Add what lost blocks of one payload carried to the next encoding.

        Without `feedback`, it is lost for good: `geomx.codecs.returning.for_lossy_channel` makes a codec that keeps it.
        """
        return

    def held(self, slice_: Slice) -> torch.Tensor | None:
        """What of the values so far no encoding has carried, of shape (elements,), not copied; None: nothing.

        Whoever leaves a run gives it up, as one more contribution.
        """
        return None

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


def in_order(slice_: Slice, blocks: Sequence[Block], grain: int = 1) -> list[Block]:
    """Blocks of a slice in the order of their elements.

    Raises:
        ProtocolError: A block lies outside the slice, overlaps another, or does not begin and end at multiples of
            `grain` (the slice's end counts as one).
    """
    elements, end = slice_.elements, 0
    found = sorted(blocks, key=itemgetter(0))
    for start, stop, _ in found:
        if not 0 <= start < stop <= elements:
            raise ProtocolError(f"slice {slice_.index}: a block [{start}, {stop}) of {elements} elements")
        if start < end:
            raise ProtocolError(f"slice {slice_.index}: block [{start}, {stop}) overlaps one up to {end}")
        if start % grain or (stop % grain and stop != elements):
            raise ProtocolError(f"slice {slice_.index}: block [{start}, {stop}), of no multiples of {grain}")
        end = stop
    return found


def viewable(payload: torch.Tensor) -> torch.Tensor:
    """A payload that can be viewed as numbers of any dtype: copied if it begins at an odd place of its memory."""
    whole = not (payload.storage_offset() % WIDEST or payload.data_ptr() % WIDEST)
    return payload if whole else payload.clone()


def wrong_size(slice_: Slice, start: int, stop: int, payload: torch.Tensor) -> ProtocolError:
    """The error of a block with an impossible size."""
    return ProtocolError(
        f"slice {slice_.index}: a block of {payload.numel()} bytes for elements [{start}, {stop})"
    )
