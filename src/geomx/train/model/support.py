"""What can be carried, and what is refused, each with what would work instead."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from geomx.config.compatibility.script import Keeps, Script
from geomx.errors import Unsupported
from geomx.layout import ITEM_BYTES, Tensor
from geomx.optim import ELEMENTWISE, ROWWISE
from geomx.train.model.fsdp import check_cut, held, is_cut
from geomx.train.model.model_slices import HALVES, dtype_name, plain_name, real
from geomx.train.model.rows import check_rows_group, rows_of

TRAINED = (torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64, torch.complex128)
_SERVED = {getattr(torch.optim, name): name for name in (*ELEMENTWISE, *ROWWISE)}
_BY_ROWS = tuple(getattr(torch.optim, name) for name in ROWWISE)


def script_of(
    optimizer: torch.optim.Optimizer, clip_norm: float | None, model: nn.Module | None = None
) -> Script:
    """What a script's optimizer and its bound for gradients say of it. `model`: where its gradients may be sparse."""
    is_sparse = model is not None and bool(rows_of(model))
    moves_all = is_sparse and isinstance(optimizer, torch.optim.SGD) and has_momentum(optimizer)
    return Script(
        optimizer=type(optimizer).__name__,
        keeps=kept_by(optimizer),
        momentum=has_momentum(optimizer),
        elementwise=rule_of(optimizer) is not None
        and not moves_all,  # rows without a gradient would move, too
        clips=clip_norm is not None,
    )


def rule_of(optimizer: torch.optim.Optimizer) -> str | None:
    """What the global servers know as this optimizer; None: they cannot run it."""
    return _SERVED.get(type(optimizer))


def check_optimizer(optimizer: torch.optim.Optimizer, on_server: bool, is_local: bool) -> None:
    """Raise `Unsupported` for an optimizer that can run in neither place, or not where it would."""
    kind = type(optimizer)
    name = f"{kind.__module__}.{kind.__qualname__}"
    if issubclass(kind, torch.optim.LBFGS) and not is_local:
        raise Unsupported(
            f"{name} evaluates the model several times in a step, and each would be a round over the WAN; use SGD, "
            'Adam or another that needs one gradient a step, or a policy of local steps, such as "diloco"'
        )
    if issubclass(kind, torch.optim.LBFGS) and any(
        p.dtype in HALVES for g in optimizer.param_groups for p in g["params"]
    ):
        raise Unsupported(f"{name} in half precision: keep the parameters in float32")
    for group in optimizer.param_groups:
        if group.get("differentiable"):
            raise Unsupported("differentiable=True cannot reach through a run; leave it False")
        if on_server and group.get("capturable"):
            raise Unsupported(
                f'{name} with capturable=True: leave it False, or set optimizer.place = "workers"; CUDA graphs have no '
                "meaning on a global server"
            )


def check_rows(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Raise `Unsupported` for an optimizer of torch that cannot do with the gradients of this model.

    It would say so itself, but on a global server, and in the middle of a step.
    """
    rows, kind = rows_of(model), type(optimizer)
    is_torchs = kind.__module__.startswith("torch.optim")
    for group in optimizer.param_groups:
        of_rows = [p for p in group["params"] if p.requires_grad and id(p) in rows]
        if of_rows and is_torchs and kind not in _BY_ROWS:
            raise Unsupported(
                f"{kind.__name__} cannot step by sparse gradients, which the model's embeddings have (sparse=True); "
                "take SparseAdam, SGD or Adagrad for them, or set sparse=False"
            )
        if of_rows and is_torchs:
            check_rows_group({"weight_decay": group.get("weight_decay")})
        if kind is torch.optim.SparseAdam and len(of_rows) < sum(p.requires_grad for p in group["params"]):
            raise Unsupported(
                "SparseAdam steps by sparse gradients alone; give the other parameters an optimizer of their own, and "
                'attach the model with each, by name: run.attach(model, sparse_adam, name="tables"), run.attach(model, '
                'adam, name="rest")'
            )


def kept_by(optimizer: torch.optim.Optimizer) -> Keeps:
    """What an optimizer keeps of gradients from step to step, as its parameter groups tell."""
    keys = {key for group in optimizer.param_groups for key in group}
    if keys & {"betas", "lr_decay", "rho", "beta2_decay"} or ("alpha" in keys and "lambd" not in keys):
        return "squares"
    if has_momentum(optimizer):
        return "momentum"
    return "nothing" if type(optimizer).__module__.startswith("torch.optim") else "unknown"


def has_momentum(optimizer: torch.optim.Optimizer) -> bool:
    """Whether it keeps a mean of gradients, which a codec's momentum would double."""
    return any(group.get("momentum") or "betas" in group for group in optimizer.param_groups)


def unwrapped(model: nn.Module) -> nn.Module:
    """The module within `DistributedDataParallel`, compiled or not; any other model is itself."""
    inner = getattr(model, "_orig_mod", model)
    return inner.module if isinstance(inner, DistributedDataParallel) else model


def check_model(model: nn.Module, optimizer: torch.optim.Optimizer, ranks: int) -> None:
    """Raise `Unsupported` for tensors that cannot be carried, naming the first.

    `ranks`: how many workers reduce among themselves; 0: the party's local server adds.
    """
    _check_wrappers(model, ranks)
    _check_groups(model, optimizer)
    trained = {id(p) for group in optimizer.param_groups for p in group["params"] if p.requires_grad}
    model = unwrapped(model)
    cut = any(is_cut(parameter) for parameter in model.parameters())
    for full_name, parameter in model.named_parameters():
        name = plain_name(full_name)
        if is_cut(parameter):
            _check_collective(f"{name} is a DTensor", ranks)
            check_cut(name, parameter, ranks)
        elif cut and id(parameter) in trained:
            raise Unsupported(
                f"{name} is trained, but not sharded as others are: nobody would reduce its gradient; call "
                "fully_shard on the root module, too, or freeze it"
            )
        _check_tensor(name, held(parameter)[0], id(parameter) in trained, is_cut(parameter))
    for name, buffer in model.named_buffers():
        _check_tensor(plain_name(name), buffer, False)
    for name, module in model.named_modules():
        if isinstance(module, nn.Embedding | nn.EmbeddingBag):
            _check_embedding(plain_name(name) or "the embedding", module)
    _check_memory(model)
    if not trained:
        raise Unsupported("nothing is trained: no parameter of the optimizer requires a gradient")


def check_gradient(tensor: Tensor, gradient: torch.Tensor) -> None:
    """Raise `Unsupported` for a gradient that is unexpectedly sparse, or of a parameter that is not as at `attach`."""
    if gradient.layout is not torch.strided and not (tensor.row and gradient.is_sparse):
        raise Unsupported(
            f"the gradient of {tensor.name} is {gradient.layout}: sparse gradients are those of nn.Embedding and "
            "nn.EmbeddingBag with sparse=True, which must be so at attach()"
        )
    gradient = real(gradient)
    dtype, shape = dtype_name(gradient.dtype), tuple(gradient.shape)
    if (dtype, shape) != (tensor.stored or tensor.dtype, tensor.shape):
        raise Unsupported(
            f"{tensor.name} was {tensor.stored or tensor.dtype} {tensor.shape} at attach(), and its gradient is "
            f"{dtype} {shape}; change a model before attach(), and compute in half precision with "
            "torch.autocast(..., dtype=torch.bfloat16)"
        )


def _check_wrappers(model: nn.Module, ranks: int) -> None:
    for name, module in model.named_modules():
        kind = type(module).__name__
        if kind == "FullyShardedDataParallel":
            raise Unsupported(
                f"{plain_name(name) or 'the model'} is a {kind} (FSDP1), whose flat parameters are not supported; use "
                "torch.distributed.fsdp.fully_shard"
            )
        if isinstance(module, DistributedDataParallel):
            _check_collective(f"{plain_name(name) or 'the model'} is a {kind}", ranks)
            if unwrapped(model) is model:
                raise Unsupported(
                    f"{plain_name(name)} is a {kind} inside another module; wrap the whole model"
                )
            if module.process_group.size() != ranks:
                raise Unsupported(
                    f"a {kind} over {module.process_group.size()} of the party's {ranks} workers; take all of them"
                )


def _check_collective(what: str, ranks: int) -> None:
    if not ranks:
        raise Unsupported(
            f"{what}, which reduces gradients among the workers of a party by itself; tell geomx so, with "
            'party.inside = "collective" in the run\'s description'
        )


def _check_groups(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    known = {id(p) for p in model.parameters()}
    for number, group in enumerate(optimizer.param_groups):
        for place, parameter in enumerate(group["params"]):
            if id(parameter) not in known:
                raise Unsupported(
                    f"parameter {place} of the optimizer's group {number} is not in the model; if it belongs to a "
                    "second model, attach each with an optimizer of its own and a name, or both as one "
                    "torch.nn.ModuleDict"
                )


def _check_embedding(name: str, module: nn.Embedding | nn.EmbeddingBag) -> None:
    if module.sparse and module.weight.is_complex():
        raise Unsupported(f"{name} has sparse=True and is complex: set sparse=False")
    if module.max_norm is not None:
        raise Unsupported(
            f"{name} has max_norm: its forward changes weights, and each worker would change others; leave it None, "
            "and normalize what the embedding returns"
        )


def _check_memory(model: nn.Module) -> None:
    """Raise `Unsupported` for parameters that share memory without being one: each would overwrite the other."""
    spans = sorted(
        (str(p.device), p.data_ptr(), p.data_ptr() + _extent(p) * p.element_size(), plain_name(name))
        for name, p in ((name, held(parameter)[0]) for name, parameter in model.named_parameters())
        if p.numel()
    )
    for (device, _, stop, name), (other_device, start, _, other) in pairwise(spans):
        if device == other_device and start < stop:
            raise Unsupported(
                f"{name} and {other} share memory, but are not one parameter; tie them by giving both modules the same "
                "torch.nn.Parameter, or clone one"
            )


def _extent(tensor: torch.Tensor) -> int:
    """How many elements of memory lie between a tensor's first and its last, both included."""
    return 1 + sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))


def _check_tensor(name: str, tensor: torch.Tensor, trained: bool, is_cut_: bool = False) -> None:
    if torch.nn.parameter.is_lazy(tensor):
        raise Unsupported(f"{name} has no shape yet: run one forward of the lazy modules before attach()")
    if tensor.is_meta:
        raise Unsupported(f"{name} is on the meta device: materialize the model before attach()")
    if is_cut(tensor) or tensor.layout is not torch.strided:
        raise Unsupported(
            f"{name} is a {type(tensor).__name__} ({tensor.layout}); only dense tensors are supported"
        )
    if any(stride == 0 and size > 1 for size, stride in zip(tensor.shape, tensor.stride(), strict=True)):
        raise Unsupported(
            f"{name} is an expanded tensor, whose elements share memory; clone() it before attach()"
        )
    if trained and tensor.dtype not in TRAINED:
        raise Unsupported(
            f"{name} is trained in {dtype_name(tensor.dtype)}; keep the parameters in bfloat16 or wider, or freeze it"
        )
    if trained and is_cut_ and tensor.dtype in HALVES:
        raise Unsupported(
            f"{name} is sharded by fully_shard in {dtype_name(tensor.dtype)}; keep it in float32, and compute in half "
            "precision with MixedPrecisionPolicy(param_dtype=torch.bfloat16)"
        )
    if dtype_name(real(tensor).dtype) not in ITEM_BYTES:
        raise Unsupported(
            f"{name} has dtype {dtype_name(tensor.dtype)}; supported are {', '.join(ITEM_BYTES)}"
        )
