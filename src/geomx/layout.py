"""Model -> tensors -> slices -> shards, and the fingerprint that two nodes compare.

A *slice* is what is pushed, scheduled and stored: a run of elements of one dtype, of one parameter
group, and of one size class. Rules:

- A tensor of at least `pack_below` elements is cut into slices of its own, each of at most `slice_elements`, so
  that a part of it can be overtaken (P3, see `geomx.wire.lanes`).
- A tensor of rows, of which few travel, is cut between rows, into slices that are larger; none is packed.
- Smaller tensors are *packed*: those of one dtype, group, role and size class share slices, in model order; a slice
  takes as many as `slice_elements` and `MOST_PARTS` allow. A packed tensor is never cut.
- `size_bounds` are the sizes from which a codec of the run takes a tensor as large. They part the size classes: no
  slice has tensors on both sides of one.
- Cuts depend on the tensors and these numbers alone, never on how many shards there are: that is why
  one shard and two end with the same bits.
- Slices are in the order in which the next forward needs them, which is their priority: 0 is needed first.

Nothing here knows torch: dtypes are names.
"""

from __future__ import annotations

import hashlib
import heapq
from bisect import bisect_right
from collections import Counter
from functools import cached_property
from typing import Literal

import msgspec

from geomx.errors import Unsupported

Role = Literal["weight", "frozen", "buffer", "ledger", "call"]

ITEM_BYTES: dict[str, int] = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint8": 1,
    "bool": 1,
}

PACK_BELOW = 1000
SMALLEST_SLICE, LARGEST_SLICE = 1 << 14, 1 << 17
SLICES_WANTED, FEWEST_SLICES = 64, 16
MOST_TIMES_LARGER = 8  # a slice of which next to nothing is sent, by its codec or since few of its rows are
LARGEST_OF_ROWS = 1 << 20
MOST_PARTS = 1024  # so that what is said of each part fits into a message's header
MOST_SLICES = 1 << 16  # of LARGEST_SLICE float32 elements: 32 GiB; a session's window follows from it
MOST_DIMENSIONS = 64  # as in PyTorch; the product of more, sent by a stranger, would take hours


class Tensor(msgspec.Struct, frozen=True, array_like=True):
    """One tensor of the model, by name.

    `role`: `weight` is trained; `frozen` and `buffer` are given to all once, at the start; `ledger`
    counts contributions (see `docs/architecture.md`); `call` has no values: collective calls travel as such slices.
    `stored`: the dtype that the model has it in, where that is
    another: half precision is added up in float32, and travels as it is. `row`: its gradients are sparse, rows of so
    many elements; 0: they are dense.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    group: int = 0
    role: Role = "weight"
    stored: str = ""
    row: int = 0

    @property
    def elements(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count


class Part(msgspec.Struct, frozen=True, array_like=True):
    """Elements [start, stop) of flattened tensor number `tensor`, lying at `offset` in the slice."""

    tensor: int
    start: int
    stop: int
    offset: int

    @property
    def elements(self) -> int:
        return self.stop - self.start


class Slice(msgspec.Struct, frozen=True, array_like=True):
    """A contiguous range of the flat model; see the module's rules.

    `smallest_tensor`: how many elements the smallest tensor has of which a part is inside. `stored`, `row`: as of its
    tensors.
    """

    index: int
    dtype: str
    group: int
    role: Role
    smallest_tensor: int
    parts: tuple[Part, ...]
    stored: str = ""
    row: int = 0

    @property
    def elements(self) -> int:
        return self.parts[-1].offset + self.parts[-1].elements

    @property
    def rows(self) -> int:
        """How many rows it has; see `Tensor.row`."""
        return self.elements // self.row

    @property
    def size_bytes(self) -> int:
        return self.elements * ITEM_BYTES[self.dtype]

    def within(self, start: int, stop: int) -> Slice:
        """Its elements [start, stop), as a slice of the same index."""
        parts = tuple(
            Part(
                part.tensor,
                part.start + max(start - part.offset, 0),
                min(part.stop, part.start + stop - part.offset),
                max(part.offset - start, 0),
            )
            for part in self.parts
            if part.offset < stop and start < part.offset + part.elements
        )
        return msgspec.structs.replace(self, parts=parts)


class Layout(msgspec.Struct, frozen=True, dict=True):
    """The tensors of a model and how they are cut. Two nodes work together only if theirs are equal."""

    tensors: tuple[Tensor, ...]
    pack_below: int = PACK_BELOW
    slice_elements: int = 0  # 0: chosen from the model's size, see `automatic_slice_elements`
    size_bounds: tuple[int, ...] = ()  # rising

    def __post_init__(self) -> None:
        twice = sorted(name for name, count in Counter(t.name for t in self.tensors).items() if count > 1)
        if twice:
            raise Unsupported(f"tensor names must be unique; found twice: {', '.join(twice)}")
        for tensor in self.tensors:
            for dtype in (tensor.dtype, tensor.stored or tensor.dtype):
                if dtype not in ITEM_BYTES:
                    raise Unsupported(
                        f"tensor {tensor.name} has dtype {dtype}; allowed: {', '.join(ITEM_BYTES)}"
                    )
            if len(tensor.shape) > MOST_DIMENSIONS:
                raise Unsupported(
                    f"tensor {tensor.name} has {len(tensor.shape)} dimensions; at most {MOST_DIMENSIONS}"
                )
            if any(extent < 0 for extent in tensor.shape):
                raise Unsupported(f"tensor {tensor.name} has a negative extent: {tensor.shape}")
            if tensor.row and not (
                tensor.role == "weight" and tensor.row > 0 and tensor.elements % tensor.row == 0
            ):
                raise Unsupported(f"tensor {tensor.name} of {tensor.shape} has no rows of {tensor.row}")
        if self.slice_elements < 0:
            raise Unsupported(f"slice_elements is {self.slice_elements}; allowed: 0 (automatic) or more")
        if list(self.size_bounds) != sorted(set(self.size_bounds)):
            raise Unsupported(f"size_bounds are {self.size_bounds}; allowed: numbers that rise")

    @cached_property
    def slices(self) -> tuple[Slice, ...]:
        """Every slice, in the order of first use: index equals position."""
        largest = self.slice_elements or automatic_slice_elements(self.tensors)
        alone = [tensor for tensor in self.tensors if tensor.row or tensor.elements >= self.pack_below]
        self._check_count(sum(-(-each.elements // self._cut_of(each, largest)) for each in alone), largest)
        drafts: list[list[Part]] = []
        open_packs: dict[tuple[str, str, int, Role, int], list[Part]] = {}
        for number, tensor in enumerate(self.tensors):
            count = tensor.elements
            if count >= self.pack_below or (tensor.row and count):
                most = self._cut_of(tensor, largest)
                starts = range(0, count, most)
                drafts += [[Part(number, start, min(start + most, count), 0)] for start in starts]
            elif count:
                size_class = bisect_right(self.size_bounds, count)
                kind = (tensor.dtype, tensor.stored, tensor.group, tensor.role, size_class)
                parts = open_packs.get(kind)
                if parts is None or _end(parts) + count > largest or len(parts) == MOST_PARTS:
                    parts = open_packs[kind] = []
                    drafts.append(parts)
                parts.append(Part(number, 0, count, _end(parts)))
        self._check_count(len(drafts), largest)
        return tuple(self._slice(index, tuple(parts)) for index, parts in enumerate(drafts))

    @cached_property
    def fingerprint(self) -> str:
        """32 hex digits that are equal exactly when the tensors and their cuts are."""
        return hashlib.blake2b(msgspec.msgpack.encode(self), digest_size=16).hexdigest()

    def shards(self, count: int) -> tuple[int, ...]:
        """For each slice, the global shard that holds it: the heaviest first, to the lightest shard.

        Deterministic in (layout, count), so that every node computes the same table.
        """
        loads = [(0, shard) for shard in range(count)]
        table = [0] * len(self.slices)
        for slice_ in sorted(self.slices, key=lambda s: (-s.size_bytes, s.index)):
            load, shard = heapq.heappop(loads)
            table[slice_.index] = shard
            heapq.heappush(loads, (load + slice_.size_bytes, shard))
        return tuple(table)

    def _slice(self, index: int, parts: tuple[Part, ...]) -> Slice:
        first = self.tensors[parts[0].tensor]
        smallest = min(self.tensors[part.tensor].elements for part in parts)
        return Slice(index, first.dtype, first.group, first.role, smallest, parts, first.stored, first.row)

    @staticmethod
    def _cut_of(tensor: Tensor, largest: int) -> int:
        """The most elements of a slice of this tensor alone."""
        if not tensor.row:
            return largest
        return max(1, min(MOST_TIMES_LARGER * largest, LARGEST_OF_ROWS) // tensor.row) * tensor.row

    def _check_count(self, count: int, largest: int) -> None:
        if count > MOST_SLICES:
            raise Unsupported(
                f"slices of {largest} elements cut this model into {count}, more than {MOST_SLICES}; "
                f"raise slice_elements, or pack_below"
            )


def _end(parts: list[Part]) -> int:
    return parts[-1].offset + parts[-1].elements if parts else 0


def automatic_slice_elements(tensors: tuple[Tensor, ...], slices: int = SLICES_WANTED) -> int:
    """The cut that gives a model about so many `slices`, or 16 if that is more; a power of two.

    A round's floor is one round trip plus the bytes; a slice must be received whole before it is
    answered, which costs one slice's time more. 64 slices keep that near 2 %. Smaller than 2^14
    elements, the cost of a message outweighs it; larger than 2^17, a slice holds up what is more urgent. Where a codec
    sends less, so that fewer slices are wanted, they may be larger by as much, 2^20 at most.
    """
    total = sum(tensor.elements for tensor in tensors if tensor.role == "weight")
    wanted = max(1, total // max(slices, FEWEST_SLICES))
    larger = min(max(1, SLICES_WANTED // slices), MOST_TIMES_LARGER)
    largest = LARGEST_SLICE << (larger.bit_length() - 1)
    return min(max(1 << (wanted - 1).bit_length(), SMALLEST_SLICE), largest)
