"""The optimizers of several models as one, for checkpoints: their groups and states one behind the other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch

from geomx.train.optimizer.run_optimizer import RunOptimizer


class Optimizers:
    """See the module's text. `each`: in the order in which their models were attached."""

    def __init__(self, each: Sequence[RunOptimizer]) -> None:
        self._each = tuple(each)

    @property
    def on_server(self) -> bool:
        """Whether the global servers run them; else each worker does."""
        return self._each[0].on_server

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Those of all."""
        return [group for optimizer in self._each for group in optimizer.param_groups]

    def current_state(self) -> Mapping[torch.Tensor, Mapping[str, Any]]:
        """See `RunOptimizer.current_state`."""
        state: dict[torch.Tensor, Mapping[str, Any]] = {}
        for optimizer in self._each:
            state |= optimizer.current_state()
        return state

    def adopt(self, state_dict: dict[str, Any]) -> dict[int, Any] | None:
        """See `RunOptimizer.adopt`."""
        groups = list(state_dict["param_groups"])
        states: dict[int, Any] = {}
        for optimizer in self._each:
            own, groups = groups[: len(optimizer.param_groups)], groups[len(optimizer.param_groups) :]
            places = {place for group in own for place in group["params"]}
            state = {place: kept for place, kept in state_dict["state"].items() if place in places}
            states |= optimizer.adopt({"state": state, "param_groups": own}) or {}
        return states if self.on_server else None
