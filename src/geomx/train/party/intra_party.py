"""How the workers of a party add up what they contribute: through their local server, or by an all-reduce of their own.

    ThroughServer   each pushes w·x, and the local server adds
    AllReduced      a plain module: Σ w·x is gathered at one worker for each slice, which adds in the order of ranks
    DdpAveraged     DistributedDataParallel has all-reduced the gradients to x̄, the same on each: one pushes Σw · x̄
    FsdpSharded     FSDP2 has, too, and left each its part of x̄: each pushes Σw · its part, with zeros around it

Among themselves, one worker *speaks* for a slice: its push has the weight of them all, and those of the others have
none, so that the party's sum is Σ w·x and Σ w whatever the way. Who speaks goes around, by the slice's index. The
local server knows nothing of it: workers that contribute nothing are nothing new to it.

All of this is collective: every worker of the party makes the same calls, in the same order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence

import torch
from torch import nn

from geomx.layout import Slice
from geomx.node.slices.accumulate import accumulator
from geomx.train.calls.collective_client import Packed
from geomx.train.model.fsdp import held, is_cut, range_of
from geomx.train.model.model_slices import ModelSlices, absent
from geomx.train.party.process_group import PartyGroup
from geomx.wire import presence

Source = Callable[[int], torch.Tensor | None]
Contributed = Iterator[tuple[Slice, float, Packed]]  # slice, weight, values


class ThroughServer:
    """See the module's text.

    `final_in_backward`: gradients may leave as each is complete. `in_lockstep`: forward and backward are collective
    calls, too, so that the party's workers need equally many batches, and weights that are there when it begins.
    """

    final_in_backward = True
    in_lockstep = False

    def __init__(self, model_slices: ModelSlices) -> None:
        self._model_slices = model_slices

    def contributions(self, slices: Sequence[Slice], source: Source, weight: float) -> Contributed:
        """What this worker pushes of some slices: Σ w·x as far as it tells, with x from `source` by tensor."""
        for slice_ in slices:
            yield slice_, weight, self._model_slices.gather(slice_, source, weight)

    def first(self, slice_: Slice, source: Source) -> Packed:
        """A slice as the party's first worker has it, in full there; on the others whatever."""
        return self._model_slices.gather(slice_, source)

    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor in full; of one that is cut, on the CPU of the party's first worker, and None elsewhere."""
        return tensor

    def trained_sha256(self) -> str | None:
        """See `ModelSlices`; None where this worker does not see the weights in full."""
        return self._model_slices.trained_sha256()

    def rest(self) -> None:
        """No forward is under way: have the model as it was at `attach`."""

    def close(self) -> None:
        """Nothing more will be added."""


class _IntraParty(ThroughServer):
    """What the collective ways share."""

    final_in_backward = False

    def __init__(self, model_slices: ModelSlices, group: PartyGroup) -> None:
        super().__init__(model_slices)
        self._group = group

    def close(self) -> None:
        self._group.close()

    def _speaks(self, slice_: Slice) -> bool:
        return slice_.index % self._group.ranks == self._group.rank

    def _total(self, weight: float) -> float:
        """Σ w over the party."""
        weights = self._group.gather_all(torch.tensor(weight, dtype=torch.float64))
        return sum(each.item() for each in weights)


class AllReduced(_IntraParty):
    """See the module's text."""

    def contributions(self, slices: Sequence[Slice], source: Source, weight: float) -> Contributed:
        numbers = sorted({part.tensor for slice_ in slices for part in slice_.parts})
        found = {number: source(number) if weight else None for number in numbers}
        told = self._tell(weight, [found[number] is not None for number in numbers])
        total = sum(each for each, _ in told)
        present = [{n for n, is_there in zip(numbers, there, strict=True) if is_there} for _, there in told]
        under_way = {slice_.index: self._begin(slice_, found.get, weight, present) for slice_ in slices}
        for slice_ in slices:
            yield slice_, total if self._speaks(slice_) else 0.0, under_way.pop(slice_.index)()

    def _begin(
        self, slice_: Slice, source: Source, weight: float, present: Sequence[set[int]]
    ) -> Callable[[], Packed]:
        """Begin to gather a slice at its speaker; returns what waits for it. `present`: by rank, of which tensors."""
        nothing: Packed = (None, absent(slice_))
        numbers = [part.tensor for part in slice_.parts]
        givers = [rank for rank, has in enumerate(present) if not has.isdisjoint(numbers)]
        if not givers:
            return lambda: nothing
        device, dtype = self._group.device, getattr(torch, slice_.dtype)
        values, _ = self._model_slices.gather(slice_, source, weight, device)
        if values is None:  # whoever has nothing takes part, and is not added
            values = torch.empty(slice_.elements, dtype=dtype, device=device)
        gathered = self._group.gather(values, slice_.index % self._group.ranks)

        def finish() -> Packed:
            given = gathered()
            if not given:
                return nothing
            total = accumulator(dtype).add([given[rank] for rank in givers])
            assert total is not None  # there are givers
            anywhere = set[int]().union(*present)
            return total.cpu(), presence.pack([number in anywhere for number in numbers])

        return finish

    def _tell(self, weight: float, there: list[bool]) -> list[tuple[float, list[bool]]]:
        """Everybody's weight, and of which tensors it has a gradient."""
        mine = struct.pack("<d", weight) + bytes(there)
        told = self._group.gather_all(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        heads = [bytes(each.numpy()) for each in told]
        return [(struct.unpack_from("<d", head)[0], [bool(byte) for byte in head[8:]]) for head in heads]


class DdpAveraged(_IntraParty):
    """See the module's text."""

    in_lockstep = True

    def contributions(self, slices: Sequence[Slice], source: Source, weight: float) -> Contributed:
        total = self._total(weight)
        for slice_ in slices:
            share = total if self._speaks(slice_) else 0.0
            yield slice_, share, self._model_slices.gather(slice_, source, share)


class FsdpSharded(_IntraParty):
    """See the module's text."""

    in_lockstep = True

    def __init__(self, model: nn.Module, model_slices: ModelSlices, group: PartyGroup) -> None:
        super().__init__(model_slices, group)
        self._model = model

    def contributions(self, slices: Sequence[Slice], source: Source, weight: float) -> Contributed:
        total = self._total(weight)
        for slice_ in slices:
            yield (
                slice_,
                total if self._speaks(slice_) else 0.0,
                self._model_slices.gather(slice_, source, total),
            )

    def first(self, slice_: Slice, source: Source) -> Packed:
        found = {part.tensor: source(part.tensor) for part in slice_.parts}
        cut = {
            number: tensor.shape for number, tensor in found.items() if tensor is not None and is_cut(tensor)
        }
        values, present = self._model_slices.gather(slice_, found.get)
        if not cut:
            return values, present
        if values is None:
            values = torch.empty(slice_.elements, dtype=getattr(torch, slice_.dtype))
        for rank, given in enumerate(self._group.gather(values.view(torch.uint8), 0)()):
            theirs = given.view(values.dtype)
            for part in slice_.parts:
                if part.tensor in cut:
                    start, stop = range_of(cut[part.tensor], rank, self._group.ranks)
                    start = max(start, part.start)
                    stop = max(start, min(stop, part.stop))
                    there = slice(part.offset + start - part.start, part.offset + stop - part.start)
                    values[there] = theirs[there]
        return values, presence.pack([found[part.tensor] is not None for part in slice_.parts])

    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        if not is_cut(tensor) or not tensor.numel():
            return tensor
        local, _ = held(tensor.detach())
        largest = range_of(tensor.shape, 0, self._group.ranks)[1]
        padded = torch.zeros(largest, dtype=tensor.dtype)
        padded[: local.numel()] = local.reshape(-1)
        given = self._group.gather(padded.view(torch.uint8), 0)()
        if not given:
            return None
        return torch.cat(given).view(tensor.dtype)[: tensor.numel()].view(tensor.shape)

    def trained_sha256(self) -> str | None:
        return self._model_slices.trained_sha256(self.whole) if self._group.is_open else None

    def rest(self) -> None:
        from torch.distributed.fsdp import FSDPModule  # noqa: PLC0415 (whoever has cut a model has imported it)

        for module in self._model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()
