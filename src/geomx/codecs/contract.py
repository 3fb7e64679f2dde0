"""What travels: the contract of a codec, and error feedback, which every lossy codec shares.

A codec turns a flat float tensor into a flat uint8 tensor and back. Encoding and decoding run as jobs, outside the
node; a codec object belongs to one node and one direction of one tier's edges.

**Error feedback** (Seide et al., Interspeech 2014; Karimireddy et al., arXiv 1901.09847). What an encoding does not
carry stays in the slice's *residual* and is added to the values of the next:

    left ← residual + values;   payload ← compress(left);   residual ← left − decode(payload)

so over time everything arrives. Residuals are in the unit of contributions, Σ w·x, and belong to (node, slice,
direction).

**Blocks.** A payload can be cut into blocks that decode on their own, for channels that lose some of them: a block is a
payload of a part of the slice. What blocks carry that were not applied goes back into the residual (`settle`).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import NamedTuple

import torch

from geomx.codecs.pack.noise import RngKey
from geomx.codecs.pack.values import peak
from geomx.errors import NotFinite
from geomx.layout import Slice
from geomx.registry import Registry

BLOCK = 1024  # numbers; at its multiples every form has whole scales and whole bytes


class Block(NamedTuple):
    """What a payload carries of elements [start, stop): a payload of `slice_.within(start, stop)`."""

    start: int
    stop: int
    payload: torch.Tensor


class Codec(ABC):
    """One direction of one kind of edge. As it stands, a codec keeps nothing from one encoding to the next."""

    lossless: bool
    feedback: bool  # whether what an encoding does not carry goes with the next; a lossless one carries all
    ratio: float | None = None  # which part of the elements an encoding carries; None: all of them
    momentum: float = 0.0  # of the values, before they meet what is held back

    @abstractmethod
    def encode(self, slice_: Slice, turn: int, values: torch.Tensor, weight: float = 1.0) -> torch.Tensor:
        """`values`: flat, of the slice's dtype and elements, Σ w·x of a total `weight`.

        Returns flat uint8; may share memory with `values`. Raises NotFinite where a lossy codec is given NaN or Inf:
        the run ends then, and what is held back of the slice is lost.
        """

    @abstractmethod
    def decode(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        """The inverse: flat, of the slice's dtype. Raises `ProtocolError` on anything malformed."""

    @abstractmethod
    def accepts(self, slice_: Slice, size: int) -> bool:
        """Whether a payload of `size` bytes is possible for this slice; asked before memory is taken."""

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


class Lossy(Codec):
    """A codec with error feedback. Slices may be encoded in two threads at once, each slice in one.

    `tiny`: what slices of tiny tensors go through in its place (`by_size`); None: they go through this one as well.
    """

    lossless = False

    def __init__(self, stream: RngKey, tiny: Codec | None) -> None:
        self.stream = stream
        self.tiny = tiny
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
        check_finite(slice_, peak(values))
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
            check_finite(slice_, peak(values))
            ready = self.prepared(slice_, values, weight)
            return self.compress(slice_, turn, ready.to(working(values.dtype), copy=True), weight)
        return self.absorb(slice_, turn, self.residual(slice_, values), values, weight)

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


def whole_blocks(numbers: int) -> int:
    """`numbers`, if blocks can have so many. Raises ValueError."""
    if numbers < BLOCK or numbers % BLOCK:
        raise ValueError(f"blocks of {numbers} numbers; possible are multiples of {BLOCK}")
    return numbers


def tiles(count: int, size: int) -> list[tuple[int, int]]:
    """[0, count) in pieces of `size` and a rest."""
    return [(start, min(start + size, count)) for start in range(0, count, size)]


def working(dtype: torch.dtype) -> torch.dtype:
    """What residuals of values of `dtype` are kept in."""
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


def check_finite(slice_: Slice, largest: float) -> None:
    """Raise NotFinite where the largest |value| of a slice is NaN or Inf."""
    if not math.isfinite(largest):
        raise NotFinite(f"slice {slice_.index} holds NaN or Inf")


codecs: Registry[type[Codec]] = Registry(
    "codec",
    {
        "dense": "geomx.codecs.dense:Dense",
        "fp16": "geomx.codecs.whole:FP16",
        "bf16": "geomx.codecs.whole:BF16",
        "int8": "geomx.codecs.whole:Int8",
        "int4": "geomx.codecs.whole:Int4",
        "sign": "geomx.codecs.whole:SignBit",
        "two_bit": "geomx.codecs.two_bit:TwoBit",
        "topk": "geomx.codecs.topk:TopK",
        "bisparse": "geomx.codecs.bisparse:BiSparse",
        "mpq": "geomx.codecs.mpq:MPQ",
    },
)
