"""Optimizers on the workers step float32 copies, the *masters*, of what a model trains in half precision.

    step    gradients -> float32; the user's optimizer steps the masters; masters, rounded -> parameters

Steps smaller than half a unit in a parameter's last place would be lost otherwise. While the optimizer steps, its
groups have the masters in place of the parameters, and its state belongs to them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from geomx.train.model.model_slices import HALVES, ModelSlices
from geomx.train.model.rows import strided

MASTER = "master"  # its key in a parameter's state, in checkpoints


class Masters:
    """See the module's text. `optimizer`: the user's. Without half precision it steps as it is."""

    def __init__(self, model_slices: ModelSlices, optimizer: torch.optim.Optimizer) -> None:
        self._model_slices, self._optimizer = model_slices, optimizer
        self._halves = {n: p for n, p in model_slices.trained.items() if n in model_slices.masters}
        self._masters = {number: model_slices.masters[number] for number in self._halves}
        self._places = {id(parameter): self._masters[number] for number, parameter in self._halves.items()}
        self._places_of_masters: dict[int, torch.Tensor] = {
            id(self._masters[number]): parameter for number, parameter in self._halves.items()
        }
        for number, parameter in self._halves.items():
            if parameter in optimizer.state:
                state = optimizer.state.pop(parameter)
                optimizer.state[self._masters[number]] = {
                    key: _widened(value) for key, value in state.items()
                }

    def of(self, number: int) -> torch.Tensor:
        """What the optimizer steps of a parameter."""
        return self._masters.get(number, self._model_slices.trained[number])

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step by the parameters' gradients, or by those that a closure makes as often as the optimizer calls it."""
        if closure is None:
            self._widen()
            return self.step_as_is()

        def evaluated() -> Any:
            self._round()
            with self._in_place(self._places_of_masters):
                loss = closure()
            self._widen()
            return loss

        return self.step_as_is(evaluated)

    def step_as_is(self, closure: Callable[[], Any] | None = None) -> Any:
        """Step by the gradients of what `of` gives."""
        with self.in_place():
            loss = self._optimizer.step(closure) if closure is not None else self._optimizer.step()
        self._round()
        for master in self._masters.values():
            master.grad = None
        return loss

    def _widen(self) -> None:
        for number, parameter in self._halves.items():
            gradient = parameter.grad
            self._masters[number].grad = None if gradient is None else gradient.to(torch.float32)

    def _round(self) -> None:
        with torch.no_grad():
            for number, parameter in self._halves.items():
                parameter.copy_(self._masters[number])

    def in_place(self) -> AbstractContextManager[None]:
        """Within it the optimizer's groups have the masters, to which its state belongs."""
        return self._in_place(self._places)

    @contextmanager
    def _in_place(self, places: Mapping[int, torch.Tensor]) -> Iterator[None]:
        groups = self._optimizer.param_groups if places else []
        before = [group["params"] for group in groups]
        for group in groups:
            group["params"] = [places.get(id(parameter), parameter) for parameter in group["params"]]
        try:
            yield
        finally:
            for group, parameters in zip(self._optimizer.param_groups, before, strict=bool(places)):
                group["params"] = parameters

    def state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """The optimizer's state, by the model's parameters; with the masters."""
        own: dict[torch.Tensor, Mapping[str, Any]] = {
            parameter: strided(state) for parameter, state in self._optimizer.state.items()
        }
        for number, parameter in self._halves.items():
            master = self._masters[number]
            own[parameter] = {**own.pop(master, {}), MASTER: master}
        return own

    def load(self, state_dict: dict[str, Any]) -> None:
        """Have the optimizer load its state, whether it has masters or not; then they are the parameters."""
        with self.in_place():
            self._optimizer.load_state_dict(state_dict)
        with torch.no_grad():
            for number, parameter in self._halves.items():
                master = self._masters[number]
                kept = self._optimizer.state.get(master, {}).pop(MASTER, None)
                if kept is not None:
                    master.copy_(kept)
                elif not torch.equal(master.to(parameter.dtype), parameter):  # else it is what was rounded
                    master.copy_(parameter)


def _widened(value: Any) -> Any:
    is_half = isinstance(value, torch.Tensor) and value.dtype in HALVES
    return value.float() if is_half else value
