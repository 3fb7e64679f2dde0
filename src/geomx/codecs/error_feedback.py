"""Error feedback, which every lossy codec inherits.

What an encoding does not carry stays in the slice's *residual* and is added to the values of the next:

    left ← residual + values;   payload ← compress(left);   residual ← left − decode(payload)

so over time everything arrives. Residuals are in the unit of contributions, Σ w·x, and belong to (node, slice,
direction). Sources: Seide et al., Interspeech 2014; Karimireddy et al., arXiv 1901.09847.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping

import torch

from geomx.codecs.contract import Block, Codec, whole_blocks
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.pack.values import peak
from geomx.layout import Slice

SIZE_LOWER_BOUND = 1000


class Lossy(Codec):
    """A codec with error feedback. Slices may be encoded in two threads at once, each slice in one.

    `tiny`: what slices of tensors with fewer than `size_lower_bound` elements go through in its place (`by_size`);
    None: they go through this one as well.
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
        """The payload of `left`; leaves in `left`, in place, what the payload does not carry."""

    def absorb(
        self, slice_: Slice, turn: int, left: torch.Tensor, values: torch.Tensor, weight: float
    ) -> torch.Tensor:
        """`compress` of left + values; for codecs to answer that do both in one pass over memory. Raises NotFinite."""
        self.room(slice_).check(slice_, peak(values))
        left.add_(self.prepared(slice_, values, weight))
        return self.compress(slice_, turn, left, weight)

    @abstractmethod
    def expand(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        """What a payload carries (flat). Raises ProtocolError where `compress` cannot have written it."""

    @abstractmethod
    def possible(self, elements: int, size: int) -> bool:
        """Whether so many elements can have a payload of `size` bytes."""

    def blocks(self, slice_: Slice, payload: torch.Tensor, numbers: int) -> list[Block]:
        """As `cut`. A codec that does not answer sends all of a slice in one block."""
        return [Block(0, slice_.elements, payload)]

    def prepared(self, slice_: Slice, values: torch.Tensor, weight: float) -> torch.Tensor:
        """What becomes of values before they meet the residual."""
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

    def cut(self, slice_: Slice, payload: torch.Tensor, numbers: int) -> list[Block]:
        return self.blocks(slice_, payload, whole_blocks(numbers))

    def cost_bytes(self, slice_: Slice) -> int:
        return 8 * slice_.size_bytes

    # -- residuals ------------------------------------------------------------------------------------------

    def residual(self, slice_: Slice, like: torch.Tensor) -> torch.Tensor:
        """What is held back of a slice: flat, float32 or float64."""
        held = self._residuals.get(slice_.index)
        if held is None:
            held = torch.zeros(slice_.elements, dtype=working(like.dtype), device=like.device)
            self._residuals[slice_.index] = held
        return held

    def settle(self, slice_: Slice, lost: Iterable[Block]) -> None:
        if self.feedback:
            for start, stop, payload in lost:
                carried = self.expand(slice_.within(start, stop), payload)
                self.residual(slice_, carried)[start:stop].add_(carried)

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
