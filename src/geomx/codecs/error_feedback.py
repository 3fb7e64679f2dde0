"""Error feedback, which every lossy codec inherits.

What an encoding does not carry stays in the slice's *residual* and is added to the values of the next:

    left ← residual + values;   payload ← compress(left);   residual ← left − decode(payload)

so over time everything arrives. Residuals are in the unit of contributions, Σ w·x, and belong to (node, slice,
direction). Sources: Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019, arXiv 1901.09847.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch

from geomx.codecs.contract import Block, Codec, in_order, viewable, wrong_size
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.pack.values import peak
from geomx.layout import Slice

SIZE_LOWER_BOUND = 1000


class Lossy(Codec):
    """The base class of codecs with error feedback: `compress`, `expand` and `possible` are to be written.

    Two slices may be encoded at once, in two threads. What a codec remembers of a slice goes into a dict in
    `self.memory`, by the slice's index, so that checkpoints store it.

    Args:
        stream: The key of this object's random numbers, see `stream.key(turn, slice_)`.
        tiny: The codec for tensors with fewer than `size_lower_bound` elements; None: this one.
        size_lower_bound: The number of elements from which a tensor is large.
    """

    lossless = False

    def __init__(self, stream: RngKey, tiny: Codec | None, size_lower_bound: int = SIZE_LOWER_BOUND) -> None:
        self.stream = stream
        self.tiny = tiny
        self.size_lower_bound = 1 if tiny is None else size_lower_bound
        self.feedback = True
        self._residuals: dict[int, torch.Tensor] = {}
        # What one encoding leaves for the next, by name and slice.
        self.memory = {"residual": self._residuals}

    # -- for a codec to answer ------------------------------------------------------------------------------

    @abstractmethod
    def compress(self, slice_: Slice, turn: int, left: torch.Tensor, weight: float) -> torch.Tensor:
        """Encode `left`, and leave in it what the payload does not carry.

        Args:
            slice_: The slice.
            turn: The number of the round.
            left: Residual plus values, of shape (elements,), float32 or float64. Changed in place.
            weight: Σ w, the total weight in the values.

        Returns:
            The payload, a flat uint8 tensor.
        """

    def absorb(
        self, slice_: Slice, turn: int, left: torch.Tensor, values: torch.Tensor, weight: float
    ) -> torch.Tensor:
        """Add `values` to `left`, then `compress` it. Override it to do both in one pass over memory.

        Raises:
            NotFinite: `values` holds NaN, Inf or a number out of `room`.
        """
        self.room(slice_).check(slice_, peak(values))
        left.add_(self.prepared(slice_, values, weight))
        return self.compress(slice_, turn, left, weight)

    @abstractmethod
    def expand(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        """Decode a payload.

        Returns:
            Values of shape (elements,), in any floating-point dtype; zero where the payload carries nothing.

        Raises:
            ProtocolError: `compress` cannot have written these bytes.
        """

    @abstractmethod
    def possible(self, elements: int, size: int) -> bool:
        """Whether a payload of so many `elements` can have `size` bytes. Asked before memory is allocated for it."""

    def expand_blocks(self, slice_: Slice, blocks: Sequence[Block]) -> torch.Tensor:
        """Decode some blocks of one payload, as `decode_blocks` describes, into what `expand` gives.

        By default block by block. Override it together with `cut` if it can be faster.
        """
        left = torch.zeros(slice_.elements, dtype=working(getattr(torch, slice_.dtype)))
        for start, stop, payload in in_order(slice_, blocks):
            if not self.possible(stop - start, payload.numel()):
                raise wrong_size(slice_, start, stop, payload)
            left[start:stop] = self.expand(slice_.within(start, stop), viewable(payload))
        return left

    def prepared(self, slice_: Slice, values: torch.Tensor, weight: float) -> torch.Tensor:
        """Change values before they are added to the residual, such as by clipping or momentum."""
        return values

    # -- the contract ---------------------------------------------------------------------------------------

    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        if not self.feedback:
            self.room(slice_).check(slice_, peak(values))
            ready = self.prepared(slice_, values, weight)
            return self.compress(slice_, turn, ready.to(working(values.dtype), copy=True), weight)
        left = self.residual(slice_, values)
        if self.decay < 1.0:
            left.mul_(self.decay)
        return self.absorb(slice_, turn, left, values, weight)

    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        return self.expand(slice_, payload).to(getattr(torch, slice_.dtype))

    def accepts(self, slice_: Slice, size: int) -> bool:
        return self.possible(slice_.elements, size)

    def decode_blocks(self, slice_: Slice, blocks: Sequence[Block]) -> torch.Tensor:
        return self.expand_blocks(slice_, blocks).to(getattr(torch, slice_.dtype))

    def cost_bytes(self, slice_: Slice) -> int:
        return 8 * slice_.size_bytes

    # -- residuals ------------------------------------------------------------------------------------------

    def residual(self, slice_: Slice, like: torch.Tensor) -> torch.Tensor:
        """A slice's residual, of shape (elements,), float32 or float64; zeros at first."""
        held = self._residuals.get(slice_.index)
        if held is None:
            held = torch.zeros(slice_.elements, dtype=working(like.dtype), device=like.device)
            self._residuals[slice_.index] = held
        elif held.device != like.device:  # it comes out of a checkpoint
            held = self._residuals[slice_.index] = held.to(like.device)
        return held

    def settle(self, slice_: Slice, lost: Sequence[Block]) -> None:
        if self.feedback and lost:
            carried = self.expand_blocks(slice_, lost)
            self.residual(slice_, carried).add_(carried)

    def held(self, slice_: Slice) -> torch.Tensor | None:
        return self._residuals.get(slice_.index) if self.feedback else None

    def state(self, slice_: Slice) -> dict[str, torch.Tensor]:
        return {name: held[slice_.index] for name, held in self.memory.items() if slice_.index in held}

    def restore(self, slice_: Slice, state: Mapping[str, torch.Tensor]) -> None:
        for name, held in self.memory.items():
            held.pop(slice_.index, None)
            if name in state:
                held[slice_.index] = state[name].clone()


def working(dtype: torch.dtype) -> torch.dtype:
    """What residuals of values of `dtype` are kept in."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32
