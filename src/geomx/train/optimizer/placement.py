"""Where the optimizer runs, and what a worker does with the answer to its gradients.

On the global servers: the answer is the new weights. On the workers: it is the mean gradient, which goes into `.grad`
(None where no worker had one), is clipped, and is handed to the user's own optimizer. Of a parameter that is cut, a
worker keeps its own part of the mean, once the whole has been measured.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import torch

from geomx.layout import Part, Slice
from geomx.node.port import Arrived
from geomx.optim.clip import scale_of, square_sum, total
from geomx.optim.hyper import plain_values, sender_of
from geomx.train.model.model_slices import ModelSlices, overlap, write_flat
from geomx.train.model.rows import check_rows_group, joined
from geomx.train.optimizer.masters import Masters
from geomx.wire import presence
from geomx.wire.messages import Hyperparameters


@dataclass(frozen=True, slots=True)
class _Mean:
    """The mean of one slice. `square`: the sum of its squares; `parts`: what is here of each (None: nobody had one)."""

    square: float
    parts: list[tuple[Part, torch.Tensor | None]]


class OptimizerPlacement(Protocol):
    """What differs between the two places."""

    on_server: bool

    def hyper(self, group: int) -> Hyperparameters:
        """What a parameter group (by its number) says now, as it travels."""

    def idle_hyper(self, group: int) -> Hyperparameters | None:
        """The same for a worker that has come to the end of its data; None: no opinion."""

    def arrived(self, slice_: Slice, arrived: Arrived) -> None:
        """The answer to one slice."""

    def finish(self, idle: bool) -> None:
        """Every answer of the turn has come. `idle`: this worker had no gradients of its own."""


class OnServer:
    """The global servers run `rule`. `first_group`: the number of its first group among those of all models."""

    on_server = True

    def __init__(
        self, model_slices: ModelSlices, optimizer: torch.optim.Optimizer, rule: str, first_group: int = 0
    ) -> None:
        self._model_slices, self._first_group = model_slices, first_group
        self._optimizer = optimizer
        self._sender = sender_of(rule)
        self._of_rows = {slice_.group for slice_ in model_slices.layout.slices if slice_.row}

    @property
    def groups(self) -> list[dict[str, Any]]:
        """The optimizer's parameter groups as they are now."""
        return self._optimizer.param_groups

    def hyper(self, group: int) -> Hyperparameters:
        own = self.groups[group - self._first_group]
        if group in self._of_rows:
            check_rows_group(own)
        return self._sender.send(own)

    def idle_hyper(self, group: int) -> Hyperparameters | None:
        return None

    def arrived(self, slice_: Slice, arrived: Arrived) -> None:
        if arrived.values is not None:
            self._model_slices.scatter(slice_, arrived.values)

    def finish(self, idle: bool) -> None:
        pass


class OnWorkers:
    """Each worker runs the user's `optimizer` on the mean; equal states and equal means keep the replicas equal."""

    on_server = False

    def __init__(
        self,
        model_slices: ModelSlices,
        optimizer: torch.optim.Optimizer,
        masters: Masters,
        clip_norm: float | None,
        first_group: int = 0,
    ) -> None:
        self._model_slices, self._first_group = model_slices, first_group
        self._optimizer, self._masters = optimizer, masters
        self._clip_norm = clip_norm
        self._means: dict[int, _Mean] = {}

    def hyper(self, group: int) -> Hyperparameters:
        """What can be compared of a group: workers that differ get a typed error."""
        return plain_values(self._optimizer.param_groups[group - self._first_group])

    def idle_hyper(self, group: int) -> Hyperparameters | None:
        """Its own optimizer steps in an idle turn, too, so its hyper-parameters must fit those of the others."""
        return self.hyper(group)

    def arrived(self, slice_: Slice, arrived: Arrived) -> None:
        square, values = 0.0, arrived.values
        if self._clip_norm is not None and values is not None:
            square = square_sum(values)
        present = presence.unpack(arrived.update.present, len(slice_.parts))
        parts: list[tuple[Part, torch.Tensor | None]] = []
        for part, is_present in zip(slice_.parts, present, strict=True):
            if is_present and values is not None and values.is_sparse:
                parts.append((part, values))
            elif is_present and values is not None:
                parts.append(self._own(part, values[part.offset : part.offset + part.elements]))
            else:
                parts.append((part, None))
        self._means[slice_.index] = _Mean(square, parts)

    def _own(self, part: Part, values: torch.Tensor) -> tuple[Part, torch.Tensor]:
        """What this worker holds of a part: a copy of its own where that is not all."""
        start, stop = overlap(self._model_slices.trained[part.tensor], part)
        if (start, stop) == (part.start, part.stop):
            return part, values
        return Part(part.tensor, start, stop, 0), values[start - part.start : stop - part.start].clone()

    def finish(self, idle: bool) -> None:
        trained = self._model_slices.trained.values()
        own = [parameter.grad for parameter in trained]
        if idle:  # what was accumulated for a later step stays this worker's
            for parameter in trained:
                parameter.grad = None
        self._write_means(self._scale())
        self._masters.step_as_is()
        if idle:
            for parameter, gradient in zip(trained, own, strict=True):
                parameter.grad = gradient

    def _scale(self) -> float:
        """What `clip_norm` makes of the means, as on the global servers."""
        if self._clip_norm is None:
            return 1.0
        return scale_of(self._clip_norm, total({index: mean.square for index, mean in self._means.items()}))

    def _write_means(self, scale: float) -> None:
        rows: dict[int, list[tuple[Part, torch.Tensor]]] = {}
        for _, mean in sorted(self._means.items()):
            for part, values in mean.parts:
                parameter = self._masters.of(part.tensor)
                if values is not None and values.is_sparse:
                    rows.setdefault(part.tensor, []).append((part, values))
                    continue
                if values is None:
                    parameter.grad = None
                    continue
                if parameter.grad is None:
                    parameter.grad = torch.zeros_like(parameter)
                write_flat(parameter.grad, part, values * scale if scale < 1.0 else values)
        for number, parts in rows.items():
            parameter = self._masters.of(number)
            parameter.grad = joined(parameter, parts)
            if scale < 1.0:
                parameter.grad.mul_(scale)
        self._means = {}
