"""`overlap = "forward"`: `step()` returns while weights are still under way, and whoever touches one waits for it.

A parameter with an update under way is given the class `Pending` until the update is in it (torch's own lazy
parameters change their class in the same way). Every PyTorch function that takes it then calls
`Pending.__torch_function__`, which waits for this parameter alone, gives it back its class and goes on. So nobody reads
a stale weight, whichever way it is reached: by its own module, by another one (`nn.MultiheadAttention`), through a
tie, `state_dict`, `torch._foreach_*`. What says nothing about values (shapes, gradients, flags) does not wait.

What PyTorch does not call through Python is not asked: the transforms of `torch.func`, extensions in C++. So while a
parameter is pending its values are hidden, and in their place is NaN, of one element's memory: an error that
shows at once, where a stale weight would not. Compiled and scripted modules, and parameters with a class of their own,
are waited for by `step()` itself; a model in evaluation mode waits for everything as its forward begins.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from geomx.train.calls.collective_client import CollectiveClient
from geomx.train.model.model_slices import ModelSlices
from geomx.train.steps.timeline import Timeline

_GETTERS = (
    "shape", "dtype", "device", "layout", "requires_grad", "is_leaf", "ndim", "grad_fn", "names", "itemsize", "nbytes",
    "is_cuda", "is_cpu", "is_meta", "is_sparse", "is_quantized", "retains_grad", "output_nr", "grad_dtype",
)  # fmt: skip
_METHODS = (
    "size", "dim", "numel", "nelement", "ndimension", "element_size", "is_floating_point", "is_complex", "get_device",
    "requires_grad_", "register_hook", "register_post_accumulate_grad_hook", "__len__", "is_same_size",
)  # fmt: skip
_FUNCTIONS = ("numel", "is_floating_point", "is_complex", "is_same_size")


def _waitless() -> frozenset[Any]:
    """The functions of PyTorch that say nothing about a tensor's values."""
    getters = [getattr(torch.Tensor, name).__get__ for name in _GETTERS if hasattr(torch.Tensor, name)]
    grad: Any = torch.Tensor.grad
    requires_grad: Any = torch.Tensor.requires_grad
    changers = [grad.__get__, grad.__set__, grad.__delete__, requires_grad.__set__]
    methods = [getattr(torch.Tensor, name) for name in _METHODS if hasattr(torch.Tensor, name)]
    return frozenset([*getters, *changers, *methods, *(getattr(torch, name) for name in _FUNCTIONS)])


_WAITLESS = _waitless()


class Pending(nn.Parameter):
    """A parameter whose update is under way; see the module's text. Never made, only turned into and back."""

    _geomx_wait: Callable[[], None]

    @classmethod
    def __torch_function__(
        cls, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if function in _WAITLESS:
            with torch._C.DisableTorchFunctionSubclass():
                return function(*args, **given)
        for pending in _pending_in((args, given)):
            pending._geomx_wait()
        return function(*args, **given)

    # Parameter has these of its own, which PyTorch does not route through __torch_function__.

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        self._geomx_wait()
        return nn.Parameter.__deepcopy__(self, memo)  # type: ignore[no-untyped-call]

    def __reduce_ex__(self, protocol: Any) -> Any:
        self._geomx_wait()
        return nn.Parameter.__reduce_ex__(self, protocol)  # type: ignore[no-untyped-call]


class PendingWeights:
    """Which trained parameters wait for which slices."""

    def __init__(
        self,
        models: Sequence[nn.Module],
        model_slices: ModelSlices,
        client: CollectiveClient,
        timeline: Timeline,
    ) -> None:
        self._models = models
        self._model_slices = model_slices
        self._client = client
        self._timeline = timeline
        self._left: dict[int, set[int]] = {}  # parameter -> the slices that it waits for
        self._wait_for: Callable[[int], None] = torch.compiler.disable(self._wait)  # type: ignore[no-untyped-call]
        self._wait_for_all: Callable[[], None] = torch.compiler.disable(client.wait)  # type: ignore[no-untyped-call]
        self._waiting: dict[int, list[int]] = {}  # slice -> the parameters that wait for it
        self._handles: list[RemovableHandle] = []

    def hook(self) -> None:
        """Watch the model's forward from now on."""
        for model in self._models:
            before = model.register_forward_pre_hook(_ForwardHook(partial(self._before_forward, model)))
            after = model.register_forward_hook(_ForwardHook(self._after_forward), always_call=True)
            self._handles += [before, after]

    def unhook(self) -> None:
        """Take the hooks off the models."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def begin(self) -> None:
        """A step has pushed: from now on its parameters are pending; those that cannot be are waited for."""
        opaque = set[int]().union(*map(_opaque, self._models))
        at_once: set[int] = set()
        for number, parameter in self._model_slices.trained.items():
            slices = {
                index for index in self._model_slices.slices_of[number] if index in self._client.outstanding
            }
            if id(parameter) in opaque or type(parameter) is not nn.Parameter:
                at_once |= slices
            elif slices:
                self._left[number] = slices
                for index in slices:
                    self._waiting.setdefault(index, []).append(number)
                self._model_slices.hidden[number] = hide(parameter, partial(self._wait_for, number))
        self._client.wait(at_once)

    def arrived(self, index: int) -> None:
        """A slice's update is in its parameters: those that have all of theirs are parameters like others again."""
        for number in self._waiting.pop(index, ()):
            left = self._left[number]
            left.discard(index)
            if not left:
                del self._left[number]
                show(self._model_slices.trained[number], self._model_slices.hidden.pop(number))

    def _wait(self, number: int) -> None:
        left = self._left.get(number)
        if left:
            with self._timeline.wait(
                f"wait for {self._model_slices.name(number)}", turn=self._client.turn - 1
            ):
                self._client.wait(left)

    def _before_forward(self, model: nn.Module) -> None:
        if (
            torch.compiler.is_compiling()
        ):  # compiled after attach: break the graph if there is something to wait for
            if self._left:
                self._wait_for_all()
            return
        self._timeline.begin("forward")
        if not model.training:
            self._client.wait()

    def _after_forward(self) -> None:
        if not torch.compiler.is_compiling():
            self._timeline.end("forward", turn=self._client.turn)


class Unjoined:
    """Models that have been given to the run, and have not joined it yet: whoever reads a weight has all join first."""

    def __init__(self, join: Callable[[], None]) -> None:
        self._join = join
        self._hidden: list[tuple[nn.Parameter, torch.Tensor]] = []
        self._handles: list[RemovableHandle] = []

    def hide(self, model: nn.Module) -> None:
        """From now on, until `show`."""
        opaque = _opaque(model)
        join: Callable[[], None] = torch.compiler.disable(self._join)  # type: ignore[no-untyped-call]
        for parameter in model.parameters():
            if id(parameter) not in opaque and type(parameter) is nn.Parameter:
                self._hidden.append((parameter, hide(parameter, join)))
        self._handles.append(model.register_forward_pre_hook(_ForwardHook(join)))

    def show(self) -> None:
        """They join now."""
        for handle in self._handles:
            handle.remove()
        for parameter, values in self._hidden:
            show(parameter, values)
        self._hidden, self._handles = [], []


def hide(parameter: nn.Parameter, wait: Callable[[], None]) -> torch.Tensor:
    """Have whoever reads a parameter wait first; returns its values."""
    values = parameter.data
    has_nan = values.is_complex() or (values.is_floating_point() and values.itemsize > 1)
    parameter.data = values.new_full((), math.nan if has_nan else 0).expand(values.shape)
    parameter.__class__ = Pending
    parameter._geomx_wait = wait  # type: ignore[attr-defined]
    return values


def show(parameter: nn.Parameter, values: torch.Tensor) -> None:
    """The inverse of `hide`."""
    del parameter._geomx_wait  # type: ignore[attr-defined]
    parameter.__class__ = nn.Parameter
    parameter.data = values
    torch.autograd.graph.increment_version(parameter)


def _opaque(model: nn.Module) -> set[int]:
    """The parameters (by id) that are read where `__torch_function__` is not asked."""
    modules = (module for module in model.modules() if _is_opaque(module))
    return {id(parameter) for module in modules for parameter in module.parameters()}


def _is_opaque(module: nn.Module) -> bool:
    compiled = (
        isinstance(module, torch._dynamo.eval_frame.OptimizedModule) or module._compiled_call_impl is not None
    )
    return compiled or isinstance(module, torch.jit.ScriptModule)


class _ForwardHook:
    """A hook on this model alone: copies of the model, deep or pickled, come without."""

    def __init__(self, function: Callable[[], None]) -> None:
        self._function = function

    def __call__(self, *_: Any) -> None:
        self._function()

    def __reduce__(self) -> tuple[Any, ...]:
        return _ForwardHook, (_nothing,)


def _nothing() -> None:
    """What the hook of a copy does."""


def _pending_in(value: Any) -> Iterator[Pending]:
    if isinstance(value, Pending):
        yield value
    elif isinstance(value, dict):
        yield from _pending_in(tuple(value.values()))
    elif isinstance(value, tuple | list):
        for each in value:
            yield from _pending_in(each)
