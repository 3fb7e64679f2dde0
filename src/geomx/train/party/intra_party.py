"""How the workers of a party add up what they contribute: through their local server, or by an all-reduce of their own.

    ThroughServer   each pushes w·x, and the local server adds
    AllReduced      a plain module: Σ w·x is gathered at one worker for each slice, which adds in the order of ranks
    DdpAveraged     DistributedDataParallel has all-reduced the gradients to x̄, the same on each: one pushes Σw · x̄
    FsdpSharded     FSDP2 has, too, and left each its part of x̄: each pushes Σw · its part, with zeros around it

Among themselves, one worker *speaks* for a slice: its push has the weight of them all, and those of the others have
none, so that the party's sum is Σ w·x and Σ w whatever the way. Who speaks goes around, by the slice's index. The
local server knows nothing of it: workers that contribute nothing are nothing new to it.

A contribution that is not finite counts nothing, where the run goes on without (`model/finite.py`). DDP and FSDP have
spread it over the party by then, and the party's contribution counts nothing; whoever pushes a part says so to the
others first.

All of this is collective: every worker of the party makes the same calls, in the same order.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import nn

from geomx.layout import Slice
from geomx.node.slices.accumulate import accumulator
from geomx.rounds.round import weighted_mean
from geomx.train.calls.collective_client import Packed
from geomx.train.model.finite import GRADIENT, FiniteOnly, Source
from geomx.train.model.fsdp import held, is_cut, range_of
from geomx.train.model.model_slices import Gathered, ModelSlices, Plain, nothing
from geomx.train.party.process_group import PartyGroup
from geomx.wire import presence

Contributed = Iterator[tuple[Slice, float, Packed]]  # slice, weight, values
_Made = tuple[Slice, Packed, bool]  # slice, values, whether they may leave as far as is known


class ThroughServer:
    """See the module's text.

    `final_in_backward`: gradients may leave as each is complete. `in_lockstep`: forward and backward are collective
    calls, too, so that the party's workers need equally many batches, and weights that are there when it begins.
    """

    final_in_backward = True
    in_lockstep = False
    what = GRADIENT  # is contributed of a tensor, in words

    def __init__(self, model_slices: ModelSlices, finite: FiniteOnly) -> None:
        self._model_slices, self._finite = model_slices, finite

    def contributions(self, slices: Sequence[Slice], source: Source, weight: float) -> Contributed:
        """What this worker pushes of some slices: Σ w·x as far as it tells, with x from `source` by tensor.

        Raises NotFinite.
        """
        made = (self._made(slice_, source, weight) for slice_ in slices)
        if self._finite.skips_steps:
            every = list(made)
            fine = all(is_fine for *_, is_fine in every)
            made = ((slice_, packed, fine) for slice_, packed, _ in every)
        for slice_, packed, is_fine in made:
            yield slice_, weight if is_fine else 0.0, packed if is_fine else nothing(slice_).packed

    def made(self, slice_: Slice, source: Source, weight: float, what: str = "") -> tuple[Packed, bool]:
        """This worker's w·x, and whether it may leave. `what` it is of each tensor, in words."""
        device = None if self._looks_first else self._model_slices.device_of(slice_)
        if device is not None:
            gathered = self._model_slices.gather(slice_, source, weight, device, measures=False)
            return gathered.queued(self._finite.later(slice_, weight, what or self.what)), True
        gathered = self._model_slices.gather(slice_, source, weight)
        return gathered.packed, self._finite.allows(slice_, gathered, weight, what or self.what, source)

    def _made(self, slice_: Slice, source: Source, weight: float) -> _Made:
        return slice_, *self.made(slice_, source, weight)

    @property
    def _looks_first(self) -> bool:
        """Whether something depends on what may leave, so that a GPU is waited for."""
        return self._finite.skips_steps

    def mean_loss(self, weight: float, loss: float | None) -> float | None:
        """The loss that goes with what this worker pushes."""
        return loss

    def first(self, slice_: Slice, source: Source) -> Plain:
        """A slice as the party's first worker has it, in full there; on the others whatever."""
        return self._model_slices.gather(slice_, source).packed

    def whole(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """A tensor in full; of one that is cut, on the CPU of the party's first worker, and None elsewhere."""
        return tensor

    def trained_sha256(self) -> str | None:
        """See `ModelSlices`; None where this worker does not see the weights in full."""
        return self._model_slices.trained_sha256()

    def rest(self) -> None:
        """No forward is under way: have the model as it was at `attach`."""

    def leave(self, step: int) -> str:
        """Why this worker cannot leave behind `step` with the others of its party; "" where it can."""
        return ""

    def close(self) -> None:
        """Nothing more will be added."""


class _IntraParty(ThroughServer):
    """What the collective ways share."""

    final_in_backward = False

    def __init__(self, model_slices: ModelSlices, finite: FiniteOnly, group: PartyGroup) -> None:
        super().__init__(model_slices, finite)
        self._group = group

    def mean_loss(self, weight: float, loss: float | None) -> float | None:
        """The weighted mean over the party, since one worker speaks for all, and may have had no data itself."""
        mine = torch.tensor([loss is not None, weight, loss or 0.0], dtype=torch.float64)
        told = [each.tolist() for each in self._group.gather_all(mine)]
        return weighted_mean((weight, loss) for is_told, weight, loss in told if is_told)

    def leave(self, step: int) -> str:
        return self._group.leave(step)

    def close(self) -> None:
        self._group.close()

    def _speaks(self, slice_: Slice) -> bool:
        return slice_.index % self._group.ranks == self._group.rank

    def _total(self, weight: float) -> float:
        """Σ w over the party."""
        weights = self._group.gather_all(torch.tensor(weight, dtype=torch.float64))
        return sum(each.item() for each in weights)

    @property
    def _looks_first(self) -> bool:
        return self._finite.skips

    def _pushed(self, made: Iterable[_Made], total: float) -> Contributed:
        """What is left of contributions when all have said which of theirs may leave. `total`: the party's weight."""
        if self._finite.skips:
            every = list(made)
            fine = self._agree([is_fine for *_, is_fine in every])
            made = [
                (slice_, packed, is_fine) for (slice_, packed, _), is_fine in zip(every, fine, strict=True)
            ]
        for slice_, packed, is_fine in made:
            share = total if is_fine and self._speaks(slice_) else 0.0
            yield slice_, share, packed if is_fine else nothing(slice_).packed

    def _agree(self, fine: list[bool]) -> list[bool]:
        """Of each slice whether all workers' contributions may leave; where steps are skipped, of all slices."""
        told = self._group.gather_all(torch.tensor(fine, dtype=torch.uint8))
        agreed = [bool(each) for each in torch.stack(told).amin(0)]
        return [all(agreed)] * len(agreed) if self._finite.skips_steps else agreed


class AllReduced(_IntraParty):
    """See the module's text."""

    def contributions(self, slices: Sequence[Slice], source: Source, weight: float) -> Contributed:
        numbers = sorted({part.tensor for slice_ in slices for part in slice_.parts})
        found = {number: source(number) if weight else None for number in numbers}
        made = {slice_.index: self._made_here(slice_, found.get, weight) for slice_ in slices}
        fine = [is_fine for _, is_fine in made.values()]
        if self._finite.skips_steps:
            fine = [all(fine)] * len(fine)
        there = [found[number] is not None for number in numbers]
        told = self._tell(weight, there, fine)
        under_way = {}
        for place, slice_ in enumerate(slices):
            givers = [each for each in told if each.fine[place]]
            begun = self._begin(slice_, made.pop(slice_.index)[0], numbers, told, place)
            under_way[slice_.index] = sum(each.weight for each in givers), begun
        for slice_ in slices:
            total, finish = under_way.pop(slice_.index)
            packed, is_fine = finish()
            yield slice_, total if is_fine and self._speaks(slice_) else 0.0, packed

    def _made_here(self, slice_: Slice, source: Source, weight: float) -> tuple[Gathered, bool]:
        gathered = self._model_slices.gather(slice_, source, weight, self._group.device)
        return gathered, self._finite.allows(slice_, gathered, weight, self.what, source)

    def _begin(
        self, slice_: Slice, mine: Gathered, numbers: list[int], told: list[_Told], place: int
    ) -> Callable[[], tuple[Packed, bool]]:
        """Begin to gather a slice at its speaker; returns what waits for it, and whether it may leave.

        `told`: by rank, what each has of the tensors `numbers`; `place`: of the slice among those that are pushed.
        """
        inside = {part.tensor for part in slice_.parts}
        present = {
            rank: {n for n, is_there in zip(numbers, each.there, strict=True) if is_there} & inside
            for rank, each in enumerate(told)
            if each.fine[place]
        }
        givers = [rank for rank, has in present.items() if has]
        if not givers:
            return lambda: (nothing(slice_).packed, True)
        dtype = getattr(torch, slice_.dtype)
        values = mine.values
        if values is None:  # whoever has nothing takes part, and is not added
            values = torch.empty(slice_.elements, dtype=dtype, device=self._group.device)
        gathered = self._group.gather(values, slice_.index % self._group.ranks)

        def finish() -> tuple[Packed, bool]:
            given = gathered()
            if not given:
                return nothing(slice_).packed, True
            total = accumulator(dtype).measure([given[rank] for rank in givers])
            assert total is not None  # there are givers
            anywhere = set[int]().union(*present.values())
            there = presence.pack([part.tensor in anywhere for part in slice_.parts])
            added = Gathered(total.values.cpu(), there, total.largest)
            if not self._finite.allows(slice_, added, 1.0, "the sum over the party's workers, for"):
                return nothing(slice_).packed, False
            return added.packed, True

        return finish

    def _tell(self, weight: float, there: list[bool], fine: list[bool]) -> list[_Told]:
        """What everybody has: its weight, of which tensors a gradient, and of which slices something that may leave."""
        mine = struct.pack("<d", weight) + bytes(there) + bytes(fine)
        told = self._group.gather_all(torch.frombuffer(bytearray(mine), dtype=torch.uint8))
        return [_Told.read(bytes(each.numpy()), len(there)) for each in told]


class _Told(NamedTuple):
    """What one worker of a party has to contribute."""

    weight: float
    there: list[bool]
    fine: list[bool]

    @classmethod
    def read(cls, data: bytes, tensors: int) -> _Told:
        head = 8 + tensors
        return cls(
            struct.unpack_from("<d", data)[0],
            [bool(byte) for byte in data[8:head]],
            [bool(byte) for byte in data[head:]],
        )


class DdpAveraged(_IntraParty):
    """See the module's text."""

    in_lockstep = True
    what = "what DistributedDataParallel has made of the party's gradients, for"

    def contributions(self, slices: Sequence[Slice], source: Source, weight: float) -> Contributed:
        total = self._total(weight)
        shares = ((slice_, total if self._speaks(slice_) else 0.0) for slice_ in slices)
        yield from self._pushed((self._made(slice_, source, share) for slice_, share in shares), total)


class FsdpSharded(_IntraParty):
    """See the module's text."""

    in_lockstep = True
    what = "what fully_shard has made of the party's gradients, for"

    def __init__(
        self, model: nn.Module, model_slices: ModelSlices, finite: FiniteOnly, group: PartyGroup
    ) -> None:
        super().__init__(model_slices, finite, group)
        self._model = model

    def contributions(self, slices: Sequence[Slice], source: Source, weight: float) -> Contributed:
        total = self._total(weight)
        yield from self._pushed((self._made(slice_, source, total) for slice_ in slices), total)

    def first(self, slice_: Slice, source: Source) -> Plain:
        found = {part.tensor: source(part.tensor) for part in slice_.parts}
        cut = {
            number: tensor.shape for number, tensor in found.items() if tensor is not None and is_cut(tensor)
        }
        values, present = self._model_slices.gather(slice_, found.get).packed
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
