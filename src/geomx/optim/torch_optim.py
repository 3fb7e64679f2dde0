"""PyTorch's own optimizers at the root: those whose update treats each element alone, or each row.

    w_i, s_i ← rule(w_i, g_i, s_i; hyper-parameters, numbers of the parameter such as `step`)

Each part of a slice is a parameter of its own, a view into the slice's weights, so that a part without a
gradient is skipped with its state untouched, exactly as torch.optim skips a parameter whose `.grad` is None.
The variant is pinned (`foreach=False, fused=False`).

In float32 and float64 the result is bit-identical to the same rule on the whole tensors, wherever they are
cut. In bfloat16 and float16 it is so only for cuts at multiples of 64 elements, as automatic ones are, and on
one thread: PyTorch's CPU kernels round the last, incomplete vector of a range differently from the others.

A slice whose gradients are rows is a parameter of rows here, and its gradient a sparse one: `ROWWISE` takes it.

Optimizers that look at more than one element (Muon, Adafactor, LBFGS) have no place here.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import torch

from geomx.errors import CheckpointError, ProtocolError, UnknownName, Unsupported
from geomx.layout import Slice
from geomx.optim import ELEMENTWISE, ROWWISE, state
from geomx.optim.contract import SliceState
from geomx.optim.hyper import Rule
from geomx.wire import presence
from geomx.wire.messages import Hyperparameters


def _unchecked() -> AbstractContextManager[None]:
    """Within it sparse tensors are not checked; else torch warns that they are not."""
    make: Any = torch.sparse.check_sparse_tensor_invariants
    found: AbstractContextManager[None] = make(enable=False)
    return found


@dataclass(slots=True)
class _Held:
    """One slice in our charge."""

    slice_: Slice
    parts: list[torch.Tensor]
    shape_only: bool  # in a simulation of shapes there is nothing to compute
    optimizer: torch.optim.Optimizer | None = None  # made at the first step: its state may begin with `hyper`


class TorchOptimizer:
    """One of `ELEMENTWISE` or `ROWWISE`, by name; see `RootOptimizer` for the contract."""

    def __init__(self, name: str) -> None:
        if name not in (*ELEMENTWISE, *ROWWISE):
            raise UnknownName(
                f"{name!r} is none of torch.optim's elementwise rules: {', '.join(ELEMENTWISE)}"
            )
        self._rule = Rule(name)
        self._held: dict[int, _Held] = {}

    def adopt(self, slice_: Slice, weights: torch.Tensor) -> None:
        if slice_.row:
            parts = [weights.view(slice_.rows, slice_.row).detach()]
        else:
            parts = [weights[part.offset : part.offset + part.elements].detach() for part in slice_.parts]
        self._held[slice_.index] = _Held(slice_, parts, weights.is_meta)

    def apply(
        self, index: int, gradient: torch.Tensor, present: bytes | None, hyper: Hyperparameters
    ) -> None:
        held = self._held[index]
        values = self._rule.receive(hyper)
        has_gradient = presence.unpack(present, len(held.parts))
        if gradient.shape != (held.parts[0].shape if held.slice_.row else (held.slice_.elements,)):
            raise ProtocolError(
                f"slice {index}: a gradient of shape {tuple(gradient.shape)}; "
                f"expected {held.slice_.elements} elements"
            )
        if held.shape_only:
            return
        optimizer = held.optimizer = held.optimizer or self._rule.build(held.parts, values)
        optimizer.param_groups[0].update(values)
        for tensor, part, is_present in zip(held.parts, held.slice_.parts, has_gradient, strict=True):
            own = gradient if gradient.is_sparse else gradient[part.offset : part.offset + part.elements]
            tensor.grad = own if is_present else None
        try:
            with _unchecked():
                optimizer.step()
        except RuntimeError as error:
            if not held.slice_.row:
                raise
            raise Unsupported(f"{self._rule.name} of sparse gradients: {error}") from error
        except KeyError as error:
            raise CheckpointError(
                f"slice {index}: the optimizer state has no {error}, which {self._rule.name} needs now; "
                f"it was made by another optimizer, or with other settings"
            ) from error
        for tensor in held.parts:
            tensor.grad = None

    def export(self, index: int) -> SliceState:
        held = self._held[index]
        states: dict[torch.Tensor, dict[str, Any]] = held.optimizer.state if held.optimizer else {}
        return state.pack(held.slice_, [states.get(tensor, {}) for tensor in held.parts])

    def restore(self, index: int, saved: SliceState) -> None:
        held = self._held[index]
        states = state.unpack(held.slice_, saved)
        held.optimizer = None
        if any(states) and not held.shape_only:
            held.optimizer = self._rule.build(held.parts, self._rule.defaults)
            for tensor, part_state in zip(held.parts, states, strict=True):
                held.optimizer.state[tensor] = part_state
