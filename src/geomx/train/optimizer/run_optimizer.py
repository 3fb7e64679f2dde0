"""The optimizer that `attach` gives back: torch's interface, whichever place the update is computed in.

It shares the parameter groups (the very dicts) with the user's optimizer, so that every scheduler, made before or
after `attach`, changes what is sent. While the optimizer runs on the global servers, its state lives there:
`state_dict` fetches it, `load_state_dict` sends it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch

from geomx.errors import Unsupported
from geomx.node.slices.slice_state import WEIGHTS
from geomx.train.calls.broadcast import Broadcast
from geomx.train.model.model_slices import HALVES, ModelSlices
from geomx.train.optimizer import state as optimizer_state
from geomx.train.optimizer.masters import MASTER, Masters
from geomx.train.steps.contract import Steps

_STATE_HOOKS = (
    "_optimizer_state_dict_pre_hooks",
    "_optimizer_state_dict_post_hooks",
    "_optimizer_load_state_dict_pre_hooks",
    "_optimizer_load_state_dict_post_hooks",
)
_STEP_HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


class _Joined(NamedTuple):
    """What an optimizer has to do with, once its model is in the run; see `RunOptimizer.joins`."""

    model_slices: ModelSlices
    steps: Steps
    broadcast: Broadcast
    masters: Masters | None
    skips_steps: bool


class RunOptimizer(torch.optim.Optimizer):
    """The optimizer that `run.attach` returns: use it as any of PyTorch's, wherever the update is computed.

    It shares its parameter groups with the optimizer that `attach` was given, so schedulers of either work. It cannot
    be copied or pickled; keep its `state_dict()`, which a plain optimizer loads.
    """

    # GradScaler hands its scale over, and leaves it to us whether to step: no worker may stay away from a step.
    _step_supports_amp_scaling = True

    def __init__(
        self,
        inner: torch.optim.Optimizer,
        on_server: bool,
        join: Callable[[], None],
    ) -> None:
        """`inner`: the user's optimizer. `on_server`: whether the global servers run it. `join`: has it join."""
        shared = _STATE_HOOKS + _STEP_HOOKS if on_server else _STATE_HOOKS
        self.__setstate__(
            {
                "defaults": inner.defaults,
                "state": inner.state,
                "param_groups": inner.param_groups,
                **{name: getattr(inner, name) for name in shared},
            }
        )
        self._inner, self._on_server, self._join = inner, on_server, join
        self._joined: _Joined | None = None

    def joins(
        self,
        model_slices: ModelSlices,
        steps: Steps,
        broadcast: Broadcast,
        masters: Masters | None,
        skips_steps: bool,
    ) -> None:
        """Its model is in the run. `masters`: with which this worker runs it.

        `skips_steps`: a worker whose gradients are not finite counts nothing in that step.
        """
        self._joined = _Joined(model_slices, steps, broadcast, masters, skips_steps)

    def stay_here(self) -> None:
        """Have this worker run it after all, as those of other models."""
        self._on_server = False
        for name in _STEP_HOOKS:  # the user's own optimizer calls them
            setattr(self, name, OrderedDict())

    @property
    def _run(self) -> _Joined:
        if self._joined is None:
            self._join()
        assert self._joined is not None  # or that has raised
        return self._joined

    @property
    def on_server(self) -> bool:
        """Whether the global servers compute the update; else each worker does."""
        return self._on_server

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Take a step together with the other workers.

        Returns when the new weights are in the model; with `overlap="forward"`, at once.

        Args:
            closure: Computes the loss and its gradients; called once, or with local steps as often as your optimizer
                does.

        Returns:
            What `closure` returned; None without one.

        Raises:
            GeomxError: Whatever ends the run, see `LiveRun`.
            AskedToLeave: This worker was asked to leave, and has left behind this step.
            GradientEdited: A gradient was changed after it had left in `backward()`.
            WeightUnknown: No samples were counted for this step.
            NotFinite: A gradient holds NaN or Inf, unless `run.on_nonfinite = "skip"`.
        """
        if hasattr(self, "found_inf"):
            self._unscale()
        loss = None
        if closure is not None and self._run.steps.local:
            loss = self._run.steps.step(closure)
        else:
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._run.steps.step()
        self._inner._opt_called = True  # type: ignore[attr-defined]  # what a scheduler made before attach looks at
        self._run.steps.between()
        return loss

    def _unscale(self) -> None:
        """Divide gradients by the scale of the GradScaler that calls `step`. What overflowed is found as always."""
        if not self._run.skips_steps:
            raise Unsupported(
                "torch.amp.GradScaler skips steps whose gradients overflow, but workers must step together. Set "
                'run.on_nonfinite = "skip" and worker.push_at = "step": then only that worker is left out of the step. '
                "Or use torch.autocast(..., dtype=torch.bfloat16), which needs no scaler"
            )
        scale = getattr(self, "grad_scale", None)
        if scale is None:  # scaler.unscale_() has done it
            return
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    if parameter.grad is not None:
                        parameter.grad.div_(float(scale))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Not possible after `attach`: every node has the model's layout by then.

        Raises:
            Unsupported: Always. Add groups before `attach`.
        """
        raise Unsupported(
            "add_param_group() after attach(), where the run's layout was fixed: add the group before attach(), with "
            "lr=0 or parameters that you freeze after attach() until you need them"
        )

    def state_dict(self) -> dict[str, Any]:
        """The state in PyTorch's format, which this optimizer or a plain one loads.

        It is fetched from the global servers if they run the optimizer. Other workers need not call it.

        Raises:
            Unsupported: Between a `backward()` that has pushed and `step()`, or for a model of `fully_shard` whose
                optimizer runs on the global servers: use `run.save`.
        """
        self._check_whole("state_dict()")
        if self._run.masters is not None:
            with self._run.masters.in_place():
                return self._inner.state_dict()
        self._inner.state.update(self.current_state())
        try:
            return self._inner.state_dict()
        finally:
            self._inner.state.clear()

    def current_state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """Each parameter's state, fetched from the global servers if it lives there."""
        if self._run.masters is not None:
            return self._run.masters.state()
        self._run.steps.require_quiescent("optimizer.state_dict()")
        return optimizer_state.assemble(
            self._run.model_slices, self._run.broadcast.fetch(self._run.model_slices.slices("weight"))
        )

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load hyper-parameters and state. Every worker must call it, with the same dict.

        Args:
            state_dict: As `state_dict()` of this optimizer or a plain one returned it.

        Raises:
            Unsupported: As `state_dict()` does.
        """
        self._check_whole("load_state_dict()")
        self._run.steps.require_quiescent("load_state_dict()")
        states = self.adopt(state_dict)
        if states is not None:
            trained = self._run.model_slices.slices("weight")
            self._run.broadcast.assign("load_state_dict()", trained, states, keeps_masters=True)

    def adopt(self, state_dict: dict[str, Any]) -> dict[int, Any] | None:
        """Take over hyper-parameters, and the state here; returns the state that belongs to the servers."""
        if self._run.masters is not None:
            self._run.masters.load(state_dict)
        else:
            self._inner.load_state_dict(state_dict)
            places = zip(state_dict["param_groups"], self._inner.param_groups, strict=True)
            for saved, group in places:  # which torch has rounded to the parameter's dtype
                for place, parameter in zip(saved["params"], group["params"], strict=True):
                    if parameter.dtype in HALVES and place in state_dict["state"]:
                        self._inner.state[parameter] = dict(state_dict["state"][place])
        self.param_groups = self._inner.param_groups
        states = self.take_state() if self.on_server else None
        for state in (states or {}).values():
            if MASTER in state.planes:  # the workers have run it until then
                state.planes[WEIGHTS] = state.planes.pop(MASTER)
        self.state = self._inner.state
        return states

    def _check_whole(self, method: str) -> None:
        if self.on_server and self._run.model_slices.is_cut:
            raise Unsupported(
                f"optimizer.{method} has whole parameters, and those of this model are sharded by fully_shard; use "
                "run.save() and run.load()"
            )

    def take_state(self) -> dict[int, Any]:
        """The state that the user's optimizer holds here, slice by slice; it is the servers' from now on."""
        states = optimizer_state.divide(self._run.model_slices, self._inner.state)
        self._inner.state.clear()
        return states

    def __getstate__(self) -> dict[str, Any]:
        raise Unsupported(
            "an attached optimizer cannot be copied or pickled: most of it is on other machines; keep its "
            "state_dict(), which a plain optimizer loads"
        )

    def __repr__(self) -> str:
        where = "the global servers" if self.on_server else "this worker"
        return f"{self._inner!r} on {where}"
