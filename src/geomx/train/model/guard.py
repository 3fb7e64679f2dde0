"""What may not change behind a run's back, because the change would be lost without a word.

The parameter groups, and what was frozen: every node has the layout that they had at `attach`. The weights, where the
global servers hold them: their next update overwrites whatever was written here. PyTorch counts the changes of a
tensor (`_version`); a change through `.data` escapes that count, and so this guard.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from geomx.errors import Unsupported
from geomx.layout import Slice
from geomx.train.model.model_slices import ModelSlices


class Guard:
    """`groups` returns the optimizer's parameter groups as they are now; `on_server`: weights change there alone."""

    def __init__(
        self, model_slices: ModelSlices, groups: Callable[[], list[dict[str, Any]]], on_server: bool
    ) -> None:
        self._model_slices = model_slices
        self._groups = groups
        self._on_server = on_server
        self._at_attach = self._grouped()
        optimized = {parameter for group in self._at_attach for parameter in group}
        self._frozen = [
            number
            for number, parameter in enumerate(model_slices.parameters)
            if number not in model_slices.trained and id(parameter) in optimized
        ]
        self._versions: dict[int, int] = {}  # parameter -> its `_version` after our last write
        self._is_edited = False  # between steps, as a script may where the weights are the workers' own

    def written(self, slice_: Slice) -> None:
        """An update has been written into the parameters of this slice."""
        for part in slice_.parts:
            if part.tensor in self._model_slices.trained and part.tensor not in self._model_slices.hidden:
                self._versions[part.tensor] = self._model_slices.trained[part.tensor]._version

    def stepped(self) -> None:
        """The worker's own optimizer has taken a step."""
        self._versions = {number: self._model_slices.trained[number]._version for number in self._versions}

    @property
    def is_rewritten(self) -> bool:
        """Whether somebody else has written into the weights behind the last step, and never before.

        Else what was written went into the steps behind it: those weights are this run's result.
        """
        return self._differs and not self._is_edited

    @property
    def _differs(self) -> bool:
        trained = self._model_slices.trained
        return any(trained[number]._version != version for number, version in self._versions.items())

    def check(self) -> None:
        """Raise `Unsupported` for what has changed; every weight is current."""
        self._is_edited = self._is_edited or self._differs
        if self._grouped() != self._at_attach:
            raise Unsupported(
                "the optimizer's parameter groups have changed since attach(), where the run's layout was fixed. "
                "Attach with every parameter that you will train, and freeze those that come later"
            )
        for number in self._frozen:
            if self._model_slices.parameters[number].requires_grad:
                raise Unsupported(
                    f"{self._model_slices.name(number)} was frozen at attach() and requires a gradient now. Freeze "
                    "after attach(): every parameter that you will train must require a gradient when you attach"
                )
        if self._on_server:
            self._check_weights()

    def _check_weights(self) -> None:
        for number, version in self._versions.items():
            if self._model_slices.trained[number]._version != version:
                raise Unsupported(
                    f"{self._model_slices.name(number)} was changed outside optimizer.step(); the global servers "
                    "hold the weights, and their next update would undo it. Change weights before attach(), or by "
                    "run.load(); to try other weights, use copy.deepcopy(model); where every worker makes the same "
                    'change in every step, set optimizer.place = "workers"'
                )

    def _grouped(self) -> list[list[int]]:
        return [[id(parameter) for parameter in group["params"]] for group in self._groups()]
