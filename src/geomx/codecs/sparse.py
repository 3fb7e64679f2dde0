"""The form of sparse payloads: which elements, then their values. Shared by `topk` and `bisparse`.

count   uint32   how many elements
unary   uint32   bits of the indices' unary part (see `indices`)
rice    uint8    the Rice parameter, 255 for a bitmap
form    uint8    the values' form (see `values`): its place in FORMS
indices, values

"""

from __future__ import annotations

import struct
from collections.abc import Sequence

import torch

from geomx.codecs.contract import Block, Codec, Room, in_order
from geomx.codecs.error_feedback import Lossy, working
from geomx.codecs.pack import native
from geomx.codecs.pack.indices import choose, pack_indices, size_bytes, unpack_indices
from geomx.codecs.pack.noise import RngKey
from geomx.codecs.pack.runs import runs_of
from geomx.codecs.pack.values import FORMS, ValueForm
from geomx.errors import ConfigError, Fault, ProtocolError
from geomx.layout import Slice

HEAD = struct.Struct("<IIBB")
RICE_AT = 8
NAMES = tuple(FORMS)


def gathered(x: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
    """Some elements."""
    found = native.gather(x, indices)
    return x[indices] if found is None else found


def scatter(x: torch.Tensor, indices: torch.Tensor, values: torch.Tensor) -> None:
    """Put some elements in their places."""
    if not native.scatter(x, indices, values):
        x[indices] = values


def spread(indices: torch.Tensor, values: torch.Tensor, elements: int) -> torch.Tensor:
    """Zeros, but for `values` at rising indices."""
    found = native.spread(indices, values, elements)
    if found is None:
        found = torch.zeros(elements, dtype=values.dtype, device=values.device)
        found[indices] = values
    return found


class Sparse(Lossy):
    """A codec that sends some elements of a large slice, and keeps the rest for later."""

    ratio: float

    def __init__(self, stream: RngKey, ratio: float, values: str, tiny: Codec, size_lower_bound: int) -> None:
        super().__init__(stream, tiny, size_lower_bound)
        faults = []
        if not 0.0 < ratio <= 1.0:
            faults.append(Fault("ratio", f"{ratio}", "a number above 0, at most 1"))
        if values not in FORMS:
            faults.append(Fault("values", repr(values), ", ".join(NAMES)))
        if faults:
            raise ConfigError(f"codec {type(self).__name__.lower()}", faults)
        self.ratio = ratio
        self._place = NAMES.index(values)
        self._form: ValueForm = FORMS[values]()

    def write(self, indices: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
        """The payload of some elements of `left` (rising indices, int64); what it carries is taken out of `left`."""
        values = torch.empty(0, dtype=torch.uint8, device=left.device)
        if indices.numel():
            chosen = gathered(left, indices)
            values = self._form.take(chosen)
            scatter(left, indices, chosen)
        rice, unary = choose(indices, left.numel())
        return self._put_together(indices, left.numel(), values, rice, unary)

    def _put_together(
        self, indices: torch.Tensor, elements: int, values: torch.Tensor, rice: int, unary: int
    ) -> torch.Tensor:
        head = HEAD.pack(indices.numel(), unary, rice, self._place)
        first = torch.frombuffer(bytearray(head), dtype=torch.uint8).to(indices.device)
        return torch.cat((first, pack_indices(indices, elements, rice, unary), values))

    def read(self, elements: int, payload: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Indices (rising, int64) and the bytes of their values. Raises ProtocolError."""
        if not self.possible(elements, payload.numel()):
            raise ProtocolError(f"a sparse payload of {payload.numel()} bytes for {elements} elements")
        count, unary, rice, place = HEAD.unpack_from(payload.cpu().numpy().data)
        if count > elements or place != self._place:
            raise ProtocolError(f"{count} of {elements} elements, in form {place}")
        start = HEAD.size + size_bytes(count, elements, rice, unary)
        if payload.numel() != start + (self._form.size_bytes(count) if count else 0):
            raise ProtocolError(f"a sparse payload of {payload.numel()} bytes for {count} elements")
        return unpack_indices(payload[HEAD.size : start], count, elements, rice, unary), payload[start:]

    def expand(self, slice_: Slice, payload: torch.Tensor) -> torch.Tensor:
        return self._spread(slice_, *self.read(slice_.elements, payload))

    def _spread(self, slice_: Slice, indices: torch.Tensor, packed: torch.Tensor) -> torch.Tensor:
        dtype = working(getattr(torch, slice_.dtype))
        if not indices.numel():
            return torch.zeros(slice_.elements, dtype=dtype, device=indices.device)
        return spread(indices, self._form.unpack(packed, indices.numel(), dtype), slice_.elements)

    def cut(self, slice_: Slice, payload: torch.Tensor, most_bytes: int) -> list[Block]:
        """Runs of entries. A block ends where the next one's first entry lies."""
        indices, packed = self.read(slice_.elements, payload)
        columns, rice = self._form.columns, payload[RICE_AT].item()
        runs = runs_of(indices, slice_.elements, int(rice), columns, most_bytes - HEAD.size)
        if len(runs) < 2:
            return [Block(0, slice_.elements, payload)]
        found = []
        for run in runs:
            values = columns.part(packed, indices.numel(), run.first, run.last)
            some, elements = indices[run.first : run.last] - run.start, run.stop - run.start
            found.append(
                Block(run.start, run.stop, self._put_together(some, elements, values, run.rice, run.unary))
            )
        return found

    def expand_blocks(self, slice_: Slice, blocks: Sequence[Block]) -> torch.Tensor:
        indices, values, grain = [], [], self._form.columns.grain
        for start, stop, payload in in_order(slice_, blocks):
            some, packed = self.read(stop - start, payload)
            if stop != slice_.elements and some.numel() % grain:
                raise ProtocolError(
                    f"slice {slice_.index}: a block of {some.numel()} entries, no multiple of {grain}"
                )
            if some.numel():
                indices.append(some.add_(start))
                values.append(packed)
        if not indices:
            return super().expand_blocks(slice_, ())
        counts = [some.numel() for some in indices]
        return self._spread(slice_, torch.cat(indices), self._form.columns.joined(values, counts))

    def room(self, slice_: Slice) -> Room:
        return Room(self._form.most(working(getattr(torch, slice_.dtype))), NAMES[self._place])

    def possible(self, elements: int, size: int) -> bool:
        most = HEAD.size + size_bytes(elements, elements, 255, 0) + self._form.size_bytes(elements)
        return HEAD.size <= size <= most
