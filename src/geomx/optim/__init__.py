"""What an aggregate does to the weights at the root: one file a rule, `contract.py` first.

`torch_optim.py` runs PyTorch's own elementwise rules, `dcasgd.py` compensates for delay. From outside: the contract,
`hyper` and `state`, which the training loop's side shares, and the registries here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from geomx.registry import Registry

if TYPE_CHECKING:
    from geomx.optim.contract import Compensation, RootOptimizer

compensations: Registry[Callable[..., Compensation]] = Registry(
    "compensation", {"dcasgd": "geomx.optim.dcasgd:DCASGD"}
)

# torch.optim's rules that treat each element alone.
ELEMENTWISE = (
    "SGD", "Adam", "AdamW", "Adagrad", "RMSprop", "Adadelta", "Adamax", "NAdam", "RAdam", "ASGD", "Rprop"
)  # fmt: skip

# Those that take sparse gradients, and change the rows that have one alone.
ROWWISE = ("SGD", "Adagrad", "SparseAdam")

# What a name stands for is called with that name.
optimizers: Registry[Callable[[str], RootOptimizer]] = Registry(
    "optimizer at the root",
    dict.fromkeys((*ELEMENTWISE, *ROWWISE), "geomx.optim.torch_optim:TorchOptimizer"),
)
