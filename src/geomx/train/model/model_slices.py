"""Between a model's tensors and the slices of a layout.

Order: the parameters as `model.named_parameters()` gives them (tied ones count once, under their first name), then
the buffers, then the ledger. A parameter is trained (`weight`) if it requires a gradient and the optimizer has it; all
others are `frozen`. Slices address *logical* elements, so a tensor in channels_last has the same slices as any other,
and so has one of which this process holds a part (see `fsdp`): what is gathered and scattered is that part.

A complex tensor is one of reals with another dimension. What is trained in half precision is float32 in the layout,
which says how the model has it (`Tensor.stored`).
"""

from __future__ import annotations

import copy
import hashlib
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import torch
from torch import nn

from geomx.codecs.measure import multiplied, scaled
from geomx.errors import Unsupported
from geomx.layout import SLICES_WANTED, Layout, Part, Role, Slice, Tensor, automatic_slice_elements
from geomx.node.slices.devices import HOST, Check, Queued, queues
from geomx.train.model.fsdp import held, is_cut
from geomx.train.model.rows import gather_rows, write_rows
from geomx.wire import presence

LEDGER, CALLS = "geomx.ledger", "geomx.calls"
AVERAGED = ("float32", "float64")
Plain = tuple[torch.Tensor | None, bytes | None]  # values, and which parts are present
HALVES = (torch.bfloat16, torch.float16)
STATISTICS = (
    1  # the group of buffers that are running statistics is odd, and that of others even; a model has two
)


def plain_name(name: str) -> str:
    """A tensor's name without what `torch.compile` puts before it."""
    return name.replace("_orig_mod.", "")


def dtype_name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


class Gathered(NamedTuple):
    """A slice's values (flat; None where there are none), which parts are present, and the largest |value|.

    `largest` is NaN or Inf where a value is; 0 of dtypes that have no mean.
    """

    values: torch.Tensor | None
    present: bytes | None
    largest: float = 0.0

    @property
    def packed(self) -> Plain:
        """As it is contributed."""
        return self.values, self.present

    def queued(self, check: Check) -> tuple[Queued | None, bytes | None]:
        """The same of values that a device is still to compute, and nobody has looked at."""
        return None if self.values is None else Queued.behind(self.values, check), self.present


class ModelSlices:
    """A model's tensors by their number in the layout. `members`: how many elements the ledger has, 0: none.

    `slice_elements`: 0 cuts the model into about so many `slices`. `models`: the names of several, each a submodule.
    `rows`: see `geomx.train.model.rows.rows_of`. `calls`: how many slices collective calls have.
    """

    def __init__(
        self,
        model: nn.Module,
        groups: list[dict[str, Any]],
        members: int,
        pack_below: int,
        slice_elements: int,
        slices: int = SLICES_WANTED,
        size_bounds: tuple[int, ...] = (),
        models: Sequence[str] = (),
        rows: Mapping[int, int] | None = None,
        calls: int = 0,
    ) -> None:
        self._model = model
        self._own: frozenset[int] | None = None  # of one model, its tensors; see `of_model`
        self._inventory = _inventory(model)
        group_of = {id(p): number for number, group in enumerate(groups) for p in group["params"]}
        self.parameters: list[nn.Parameter] = []
        self.hidden: dict[int, torch.Tensor] = {}  # the values of parameters that are `Pending`
        self.masters: dict[int, torch.Tensor] = {}  # see `Masters`
        self._buffer_names: dict[int, str] = {}
        tensors: list[Tensor] = []
        for name, parameter in model.named_parameters():
            trained = parameter.requires_grad and id(parameter) in group_of
            group = group_of[id(parameter)] if trained else 0
            described = _described(plain_name(name), parameter, "weight" if trained else "frozen", group)
            if rows and trained:
                described = msgspec.structs.replace(described, row=rows.get(id(parameter), 0))
            tensors.append(described)
            self.parameters.append(parameter)
        for name, buffer in model.named_buffers():
            self._buffer_names[len(tensors)] = name
            group = 2 * _place_of(name, models) + (STATISTICS if _is_statistic(model, name) else 0)
            tensors.append(_described(plain_name(name), buffer, "buffer", group))
        if members:
            tensors.append(Tensor(LEDGER, (members,), "int64", role="ledger"))
        largest = slice_elements or automatic_slice_elements(tuple(tensors), slices)
        # One is as large as `pack_below`, so that each is a slice of its own; nothing is ever as large as they say.
        elements = max(largest, pack_below, 1)
        tensors += [
            Tensor(f"{CALLS}.{number}", (elements,), "uint8", group=number, role="call")
            for number in range(calls)
        ]
        self.layout = Layout(tuple(tensors), pack_below, largest, size_bounds)
        self.slices_of: dict[int, tuple[int, ...]] = dict.fromkeys(range(len(tensors)), ())
        for slice_ in self.layout.slices:
            for part in slice_.parts:
                self.slices_of[part.tensor] += (slice_.index,)
        self.trained = {n: p for n, p in enumerate(self.parameters) if tensors[n].role == "weight"}
        self.is_cut = any(is_cut(parameter) for parameter in self.parameters)

    @property
    def trained_elements(self) -> int:
        """How many numbers are trained."""
        return sum(parameter.numel() for parameter in self.trained.values())

    def of_model(self, name: str, groups: range) -> ModelSlices:
        """The same of one model of several: what its optimizer has, in these groups, and its buffers."""
        own = copy.copy(self)
        own._own = frozenset(
            number
            for number, tensor in enumerate(self.layout.tensors)
            if (tensor.role == "weight" and tensor.group in groups)
            or (tensor.role != "weight" and tensor.name.startswith(f"{name}."))
            or tensor.role == "ledger"
        )
        own.trained = {number: parameter for number, parameter in self.trained.items() if number in own._own}
        return own

    def slices(self, *roles: Role) -> list[Slice]:
        """The slices of these roles, in order."""
        return [
            slice_
            for slice_ in self.layout.slices
            if slice_.role in roles and (self._own is None or slice_.parts[0].tensor in self._own)
        ]

    def floating_buffers(self) -> list[Slice]:
        """The slices of buffers that have a mean."""
        return [slice_ for slice_ in self.slices("buffer") if slice_.dtype in AVERAGED]

    def running_statistics(self) -> list[Slice]:
        """The same, of what normalizations keep of what they have seen (BatchNorm) alone."""
        return [slice_ for slice_ in self.floating_buffers() if is_statistic(slice_)]

    def device_of(self, slice_: Slice) -> torch.device | None:
        """Where steps compute what a slice contributes, if that is only queued there when they go on; else None."""
        device = HOST if slice_.row else self.tensor(slice_.parts[0].tensor).device
        return device if queues(device) else None

    def name(self, number: int) -> str:
        return self.layout.tensors[number].name

    def tensor(self, number: int) -> torch.Tensor:
        """The live tensor with this number."""
        if number in self.hidden:
            return self.hidden[number]
        if number < len(self.parameters):
            return self.parameters[number]
        return self._model.get_buffer(self._buffer_names[number])

    def keep_masters(self) -> None:
        """From now on this process has what is trained in half precision in float32 as well."""
        halves = [number for number in self.trained if self.layout.tensors[number].stored]
        self.masters = {number: self.trained[number].detach().float() for number in halves}

    def exact(self, number: int) -> torch.Tensor:
        """Its values as exactly as this process has them."""
        return self.masters[number] if number in self.masters else self.tensor(number)

    def is_persistent(self, number: int) -> bool:
        """Whether a buffer belongs in a checkpoint."""
        path, _, name = self._buffer_names[number].rpartition(".")
        return name not in self._model.get_submodule(path)._non_persistent_buffers_set

    def check_same(self) -> None:
        """Raise `Unsupported` where the model has other tensors than at `attach`."""
        changed = sorted({name for name, *_ in self._inventory ^ _inventory(self._model)})
        if changed:
            raise Unsupported(
                "the model has changed since attach() (added, removed, replaced, or of another shape or dtype): "
                f"{', '.join(changed)}; change a model before you attach it"
            )

    def trained_sha256(
        self, whole: Callable[[torch.Tensor], torch.Tensor | None] = lambda tensor: tensor
    ) -> str | None:
        """64 hex digits that are equal exactly when the trained parameters are, by name and bit for bit.

        `whole` gives a parameter as it is over all processes, or None where this one does not get to see it: then there
        are no digits.
        """
        digest, sees_all = hashlib.sha256(), True
        for name, parameter in sorted((self.name(number), p) for number, p in self.trained.items()):
            values = whole(parameter)
            if values is None:
                sees_all = False
                continue
            digest.update(name.encode())
            flat = values.detach().reshape(-1).cpu()
            digest.update(flat.view(torch.uint8).numpy().data)
        return digest.hexdigest() if sees_all else None

    def gather(
        self,
        slice_: Slice,
        source: Callable[[int], torch.Tensor | None],
        weight: float = 1.0,
        device: torch.device | None = None,
        measures: bool = True,
    ) -> Gathered:
        """weight * (what `source` has for each part), as one new flat tensor, and which parts are present.

        At weight 0 there is none. Of a tensor that is cut, what this process does not hold is zeros. `device`: None
        for the CPU. `measures`: look for the largest; on a GPU that waits for it.
        """
        if not weight:
            return nothing(slice_)
        if slice_.row and (gradient := source(slice_.parts[0].tensor)) is not None and gradient.is_sparse:
            rows, most = gather_rows(slice_, gradient, weight)
            return Gathered(rows, None, most)
        found = [_cut_out(source(part.tensor), part) for part in slice_.parts]
        present = presence.pack([each is not None for each in found])
        if all(each is None for each in found):
            return Gathered(None, present)
        largest = [0.0]
        values = torch.empty(slice_.elements, dtype=getattr(torch, slice_.dtype), device=device)
        with torch.no_grad():
            for part, each in zip(slice_.parts, found, strict=True):
                target = values[part.offset : part.offset + part.elements]
                flat, start = (None, 0) if each is None else each
                if flat is None or flat.numel() < part.elements:
                    target.zero_()
                if flat is None:
                    continue
                target = target[start : start + flat.numel()]
                if dtype_name(target.dtype) in AVERAGED and measures:
                    largest.append(scaled(flat.to(target.dtype), weight, target))
                elif dtype_name(target.dtype) in AVERAGED:
                    multiplied(flat.to(target.dtype), weight, target)
                else:
                    target.copy_(flat)
        return Gathered(values, present, largest_of(largest))

    def scatter(self, slice_: Slice, values: torch.Tensor) -> None:
        """Give the live tensors of a slice its `values` (flat), or those rows of it that come."""
        for part in slice_.parts:
            if values.is_sparse:
                write_rows(self.tensor(part.tensor), part, values)
                continue
            own = values[part.offset : part.offset + part.elements]
            write_flat(self.tensor(part.tensor), part, own)
            if part.tensor in self.masters:
                write_flat(self.masters[part.tensor], part, own)


def is_statistic(slice_: Slice) -> bool:
    """Whether a slice is of what normalizations keep of what they have seen."""
    return slice_.role == "buffer" and slice_.group % 2 == STATISTICS


def overlap(tensor: torch.Tensor, part: Part) -> tuple[int, int]:
    """Which logical elements [start, stop) of a part this process holds."""
    local, before = _real_held(tensor)
    start = max(part.start, before)
    return start, max(start, min(part.stop, before + local.numel()))


def write_flat(tensor: torch.Tensor, part: Part, values: torch.Tensor) -> None:
    """Write elements [part.start, part.stop) of a tensor, in logical order, in place; of a cut one those held here."""
    local, before = _real_held(tensor)
    start, stop = overlap(tensor, part)
    if start == stop:
        return
    values = values[start - part.start : stop - part.start]
    with torch.no_grad():
        dense = local.is_contiguous()
        flat = local.view(-1) if dense else local.reshape(-1)
        flat[start - before : stop - before].copy_(values)
        if not dense:
            local.copy_(flat.view(local.shape))


def _cut_out(tensor: torch.Tensor | None, part: Part) -> tuple[torch.Tensor, int] | None:
    """What is here of a part (flat), and where in the part it begins; None where nothing is."""
    if tensor is None:
        return None
    local, before = _real_held(tensor.detach())
    start, stop = overlap(tensor, part)
    return (local.reshape(-1)[start - before : stop - before], start - part.start) if start < stop else None


def largest_of(sizes: Iterable[float]) -> float:
    """The largest of some sizes, NaN if one is."""
    sizes = tuple(sizes)
    return next((size for size in sizes if math.isnan(size)), max(sizes, default=0.0))


def nothing(slice_: Slice) -> Gathered:
    """No contribution to a slice."""
    return Gathered(None, absent(slice_))


def absent(slice_: Slice) -> bytes:
    """The bitmap that says: no part of this slice has a value."""
    bitmap = presence.pack([False] * len(slice_.parts))
    assert bitmap is not None
    return bitmap


def _inventory(model: nn.Module) -> set[tuple[Any, ...]]:
    """A model's tensors: name, which one (parameters alone), shape and dtype."""
    parameters = {(plain_name(n), id(p), p.shape, p.dtype) for n, p in model.named_parameters()}
    return parameters | {(plain_name(n), 0, b.shape, b.dtype) for n, b in model.named_buffers()}


def real(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor: of a complex one its pairs, in the same memory."""
    with torch.no_grad():
        return torch.view_as_real(tensor) if tensor.is_complex() else tensor


def _real_held(tensor: torch.Tensor) -> tuple[torch.Tensor, int]:
    local, before = held(tensor)
    return real(local), before


def _place_of(tensor: str, models: Sequence[str]) -> int:
    """The place of the model that a tensor belongs to."""
    return models.index(tensor.partition(".")[0]) if models else 0


def _is_statistic(model: nn.Module, buffer: str) -> bool:
    """Whether a buffer is what a normalization keeps of what it has seen."""
    path, _, name = buffer.rpartition(".")
    return name.startswith("running_") and bool(
        getattr(model.get_submodule(path), "track_running_stats", False)
    )


def _described(name: str, tensor: torch.Tensor, role: Role, group: int = 0) -> Tensor:
    tensor = real(tensor)
    dtype = dtype_name(tensor.dtype)
    is_half = role in ("weight", "buffer") and tensor.dtype in HALVES
    return Tensor(
        name, tuple(tensor.shape), "float32" if is_half else dtype, group, role, dtype if is_half else ""
    )
