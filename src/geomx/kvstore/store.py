"""The store: keys are parameters of one model, and pushes that come together are one step of it.

    push    adds up what a worker has for a key; nothing leaves yet
    pull    what was pushed leaves, as one step of all workers, and the value is what the run has made of it; so it does
            at `barrier` and `save_optimizer_states`, but not when the script ends

So all keys of a loop should be pushed before the first is pulled, as lists: else each is a round trip of its own. A key
that is pushed twice begins the next step. Workers make the same calls in the same order.

As in MXNet, the optimizer is given the *sum* over workers, and without one the value becomes that sum: with
"dist_sync" over all (where some are lost, `run.on_loss`, their mean stands for them), with "dist_async" over those of a
party, one party after the other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

import geomx
from geomx.errors import Unsupported
from geomx.kvstore import variables
from geomx.train import LiveRun

Key = int | str
Array = torch.Tensor | np.ndarray[Any, Any]
MakeOptimizer = Callable[[list[nn.Parameter]], torch.optim.Optimizer]
POLICIES = {"dist_sync": "fsa", "dist_async": "mixed"}
COMPRESSIONS = {"2bit": "two_bit", "fp16": "fp16", "bisparse": "bisparse", "bsc": "bisparse", "mpq": "mpq"}


def create(name: str = "dist_sync", run: LiveRun | None = None) -> KVStore:
    """Make a store over a run.

    Args:
        name: "dist_sync", where every worker waits for all; "dist_async", where parties do not wait for each other.
        run: The run; None: it is joined.

    Returns:
        The store.

    Raises:
        ConfigError: A variable of GeoMX is set, which has no effect here; the message says what to write instead.
        Unsupported: `name` does not fit the description's `sync.policy`.
    """
    variables.check(os.environ)
    if name not in POLICIES:
        raise Unsupported(f"kvstore.create({name!r}): {' or '.join(POLICIES)}")
    run = geomx.join() if run is None else run
    if run.policy != POLICIES[name]:
        raise Unsupported(
            f'kvstore.create({name!r}) in a run with {run.policy}: set sync.policy = "{POLICIES[name]}"'
        )
    return KVStore(run, name)


class KVStore:
    """See the module's text; made by `create`.

    Attributes:
        run: The run.
        type: "dist_sync" or "dist_async".
    """

    def __init__(self, run: LiveRun, name: str) -> None:
        self.run, self.type = run, name
        self._values = nn.Module()
        self._of: dict[Key, nn.Parameter] = {}
        self._make: MakeOptimizer | None = None
        self._optimizer: torch.optim.Optimizer | None = None
        self._pushed: dict[Key, torch.Tensor] = {}
        self._turn = nn.Parameter(torch.zeros(1))  # of `barrier`
        self._values.register_parameter("barrier", self._turn)

    @property
    def rank(self) -> int:
        """This worker's rank in its party."""
        return self.run.rank

    @property
    def num_workers(self) -> int:
        """How many workers this party has."""
        return sum(name.startswith(f"{self.run.party}/") for name in self.run.workers) or 1

    @property
    def num_all_workers(self) -> int:
        """How many workers all parties have."""
        return len(self.run.workers)

    @property
    def is_master_worker(self) -> bool:
        """Whether this is the first worker of all, whose values everybody begins with."""
        return self.run.is_first

    def init(self, key: Key | Sequence[Key], value: Array | Sequence[Array]) -> None:
        """Give keys their first values: those of the first worker count.

        Args:
            key: A key, or several.
            value: Its value, a floating-point tensor or array; or one for each key.

        Raises:
            Unsupported: A key is there already, or something was pushed or pulled before.
        """
        for each, given in _pairs(key, value):
            if self._optimizer is not None:
                raise Unsupported(f"init({each!r}) behind the first push or pull: give all keys before")
            if each in self._of:
                raise Unsupported(f"init({each!r}): this key has a value")
            self._of[each] = nn.Parameter(torch.as_tensor(given).detach().clone())
            self._values.register_parameter(f"key_{len(self._of)}", self._of[each])

    def set_optimizer(self, make: MakeOptimizer) -> None:
        """Have an optimizer change the values by the sums that are pushed.

        Args:
            make: Makes it of a list of parameters, such as `functools.partial(torch.optim.SGD, lr=0.1)`.

        Raises:
            Unsupported: Something was pushed or pulled before.
        """
        if self._optimizer is not None:
            raise Unsupported("set_optimizer() behind the first push or pull")
        if isinstance(make, torch.optim.Optimizer) or not callable(make):
            raise Unsupported(
                f"set_optimizer({make!r}) takes what makes an optimizer of the values, such as "
                "functools.partial(torch.optim.SGD, lr=0.1)"
            )
        self._make = make

    def set_gradient_compression(self, compression: Mapping[str, Any]) -> None:
        """Check that the description compresses so, which decides it for all nodes.

        Args:
            compression: As for GeoMX, such as `{"type": "bsc", "threshold": 0.01}`.

        Raises:
            Unsupported: The description says something else; the message tells what to write.
        """
        kind = COMPRESSIONS.get(str(compression.get("type")))
        if kind is None:
            raise Unsupported(
                f"set_gradient_compression({dict(compression)!r}): types are {', '.join(COMPRESSIONS)}"
            )
        there, number = self.run.codecs_up, compression.get("threshold")
        asked = "" if number is None else f"{'threshold' if kind == 'two_bit' else 'ratio'}={number}"
        if not any(
            kind == spec.split()[0] and (not asked or asked in spec.split()) for spec in there.values()
        ):
            raise Unsupported(
                f"set_gradient_compression: the description has {there or 'no codec'}; write wan.codec_up = "
                f'"{f"{kind} {asked}".strip()}" there'
            )

    def push(self, key: Key | Sequence[Key], value: Any, priority: int = 0) -> None:
        """Give this worker's part of the next step.

        Args:
            key: A key, or several.
            value: A tensor or array, or a list of them for each of several devices, which are added; one for each key.
            priority: What it is in MXNet. Here the keys that were given first leave first.
        """
        self._begin()
        for each, given in _pairs(key, value):
            if each in self._pushed:
                self._step()
            parameter = self._parameter(each)
            parts = given if isinstance(given, list | tuple) else [given]
            total = torch.stack(
                [torch.as_tensor(part, dtype=parameter.dtype).detach() for part in parts]
            ).sum(0)
            if total.shape != parameter.shape:
                raise Unsupported(
                    f"push({each!r}): {tuple(total.shape)} for a value of {tuple(parameter.shape)}"
                )
            self._pushed[each] = total

    def pull(self, key: Key | Sequence[Key], out: Any = None, priority: int = 0) -> Any:
        """The values behind what was pushed.

        Args:
            key: A key, or several.
            out: Tensors or arrays to write into, one or a list for each key; None: they are returned.
            priority: See `push`.

        Returns:
            A new tensor, or a list of them for several keys; `out` where that is given.
        """
        self._begin()
        keys = _keys(key)
        if not self._pushed.keys().isdisjoint(keys):
            self._step()
        values = [self._parameter(each).detach() for each in keys]
        if out is None:
            copies = [value.clone() for value in values]
            return copies if isinstance(key, list | tuple) else copies[0]
        for (_, into), value in zip(_pairs(key, out), values, strict=True):
            for each in into if isinstance(into, list | tuple) else [into]:
                _write(each, value)
        return out

    def pushpull(self, key: Key | Sequence[Key], value: Any, out: Any = None, priority: int = 0) -> Any:
        """`push`, then `pull`."""
        self.push(key, value, priority)
        return self.pull(key, out, priority)

    def row_sparse_pull(
        self, key: Key, out: Array | None = None, row_ids: Any = None, priority: int = 0
    ) -> Any:
        """Some rows of a value, by their numbers.

        Args:
            key: A key.
            out: A tensor or array of the value's shape, of which these rows are written; None: they are returned.
            row_ids: Which rows.
            priority: See `push`.

        Returns:
            The rows, of shape (rows, ...), or `out`.
        """
        value = self.pull(key)
        rows = torch.as_tensor(row_ids, dtype=torch.int64).reshape(-1)
        if out is None:
            return value[rows]
        into = torch.from_numpy(out) if isinstance(out, np.ndarray) else out
        with torch.no_grad():
            into[rows] = value[rows]
        return out

    def barrier(self) -> None:
        """Return when every worker has called it; what was pushed leaves before."""
        self._begin()
        if self._pushed:
            self._step()
        self._turn.grad = torch.zeros_like(self._turn)
        self._take_step()

    _barrier = barrier  # as MXNet spells it

    def save_optimizer_states(self, path: str, dump_optimizer: bool = False) -> None:
        """Write a checkpoint, with the values as well. Every worker calls it. `dump_optimizer`: as in MXNet."""
        self._begin()
        if self._pushed:
            self._step()
        self.run.save(path)

    def load_optimizer_states(self, path: str) -> None:
        """Go on from a checkpoint. Every worker calls it."""
        self._begin()
        self.run.load(path)

    # -- helpers ------------------------------------------------------------------------------------------------

    def _begin(self) -> None:
        """The keys that there are join the run."""
        if self._optimizer is not None:
            return
        if not self._of:
            raise Unsupported("no key has a value: call init(key, value), on every worker")
        parameters = list(self._values.parameters())
        optimizer = _Summed(parameters) if self._make is None else self._make(parameters)
        _, self._optimizer = self.run.attach(self._values, optimizer, push_at="step")

    def _parameter(self, key: Key) -> nn.Parameter:
        if key not in self._of:
            raise Unsupported(
                f"key {key!r} has no value: call init() with it; there are {list(self._of)[:10]}"
            )
        return self._of[key]

    def _step(self) -> None:
        # The run's step is by a mean: of all workers, or of those of a party where parties do not wait for each other.
        among = self.num_all_workers if self.type == "dist_sync" else self.num_workers
        for key, total in self._pushed.items():
            self._of[key].grad = total.mul_(among).to(self._of[key].device)
        self._pushed = {}
        self._take_step()

    def _take_step(self) -> None:
        assert self._optimizer is not None  # the keys have joined
        self.run.weight(1.0)
        self._optimizer.step()
        for parameter in self._values.parameters():
            parameter.grad = None


class _Summed(torch.optim.Optimizer):
    """Without an optimizer a value becomes what was pushed, summed over workers."""

    def __init__(self, parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(parameters, {})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    parameter.copy_(parameter.grad)


def _keys(key: Key | Sequence[Key]) -> list[Key]:
    return list(key) if isinstance(key, list | tuple) else [key]  # type: ignore[list-item]


def _pairs(key: Key | Sequence[Key], value: Any) -> list[tuple[Key, Any]]:
    """Each key with what is given for it."""
    if not isinstance(key, list | tuple):
        return [(key, value)]  # type: ignore[list-item]
    if not isinstance(value, list | tuple) or len(value) != len(key):
        raise Unsupported(f"{len(key)} keys, and what is given is not one for each")
    return list(zip(key, value, strict=True))


def _write(into: Any, value: torch.Tensor) -> None:
    if isinstance(into, np.ndarray):
        np.copyto(into, value.cpu().numpy())
    else:
        with torch.no_grad():
            into.copy_(value)
