"""What can be carried, and what is refused, each with what would work instead."""

from __future__ import annotations

import torch
from torch import nn

from geomx.errors import Unsupported
from geomx.layout import ITEM_BYTES
from geomx.optim.base import ELEMENTWISE
from geomx.torch.settings import Place
from geomx.torch.tensors import dtype_name, plain_name

TRAINED = (torch.float32, torch.float64)
_SERVED = {getattr(torch.optim, name): name for name in ELEMENTWISE}


def served_rule(optimizer: torch.optim.Optimizer, place: Place) -> str | None:
    """The rule that the global servers run for this optimizer; None: it runs on the workers.

    Raises `Unsupported` for an optimizer that can run in neither place, or not where the run wants it.
    """
    kind = type(optimizer)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, torch.optim.LBFGS):
        raise Unsupported(
            f"{name} evaluates the model several times in one step, and each would be a round over the WAN; "
            "use SGD, Adam or another optimizer that needs one gradient a step"
        )
    if issubclass(kind, torch.optim.SparseAdam):
        raise Unsupported(f"{name} needs sparse gradients, which are not carried; use torch.optim.Adam")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise Unsupported("differentiable=True cannot reach through a run; leave it False")
    rule = _SERVED.get(kind)
    if place == "server" and rule is None:
        raise Unsupported(
            f'{name} cannot run on the global servers (optimizer.place = "server"): they hold slices, so an update '
            f"must treat each element alone, and they know {', '.join(ELEMENTWISE)} of torch.optim, not "
            'subclasses of them; set optimizer.place = "auto" or "workers"'
        )
    if rule is not None and place != "workers" and any(g.get("capturable") for g in optimizer.param_groups):
        raise Unsupported(
            f'{name} with capturable=True: leave it False, or set optimizer.place = "workers"; CUDA graphs have no '
            "meaning on a global server"
        )
    return None if place == "workers" else rule


def check_model(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise `Unsupported` for tensors that cannot be carried, naming the first."""
    known = {id(p) for p in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                raise Unsupported(
                    f"parameter {place} of the optimizer's group {number} is not in the model; if it belongs to a "
                    "second model, attach both as one: torch.nn.ModuleDict({'first': ..., 'second': ...})"
                )
    trained = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    for name, parameter in model.named_parameters():
        _check_tensor(plain_name(name), parameter, id(parameter) in trained)
    for name, buffer in model.named_buffers():
        _check_tensor(plain_name(name), torch.view_as_real(buffer) if buffer.is_complex() else buffer, False)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag) and module.sparse:
            raise Unsupported(
                f"{plain_name(name)} has sparse=True: sparse gradients are not carried; set it False"
            )
    if not trained:
        raise Unsupported("nothing is trained: no parameter of the optimizer requires a gradient")


def check_gradient(name: str, gradient: torch.Tensor) -> None:
    """Raise `Unsupported` for a gradient that is not an ordinary tensor."""
    if gradient.layout is not torch.strided:
        raise Unsupported(f"the gradient of {name} is {gradient.layout}: only dense gradients are carried")


def _check_tensor(name: str, tensor: torch.Tensor, trained: bool) -> None:
    if torch.nn.parameter.is_lazy(tensor):
        raise Unsupported(f"{name} has no shape yet: run one forward of the lazy modules before attach()")
    if tensor.is_meta:
        raise Unsupported(f"{name} is on the meta device: materialize the model before attach()")
    if type(tensor).__name__ == "DTensor" or tensor.layout is not torch.strided:
        raise Unsupported(
            f"{name} is a {type(tensor).__name__} ({tensor.layout}); only dense tensors are carried"
        )
    if trained and tensor.dtype not in TRAINED:
        raise Unsupported(
            f"{name} is trained in {dtype_name(tensor.dtype)}; keep the parameters in float32 (or float64) and compute "
            "in half precision with torch.autocast(..., dtype=torch.bfloat16)"
        )
    if dtype_name(tensor.dtype) not in ITEM_BYTES:
        raise Unsupported(f"{name} has dtype {dtype_name(tensor.dtype)}; carried are {', '.join(ITEM_BYTES)}")
