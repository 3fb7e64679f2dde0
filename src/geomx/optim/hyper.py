"""The hyper-parameters of torch.optim's rules: what a worker sends, and what the root makes of it.

A worker sends those that say *what* is computed. Those that say *how* are the root's own: `foreach` and
`fused` are other kernels for the same rule, with other bits, so one variant is pinned; `capturable` and
`differentiable` serve CUDA graphs and higher derivatives, which a root has no use for.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from geomx.errors import ProtocolError, Unsupported
from geomx.wire.messages import Hyperparameters

OWN_KEYS = ("params", "param_names")
PINNED: dict[str, Any] = {"foreach": False, "fused": False, "capturable": False, "differentiable": False}


class Rule:
    """One class of torch.optim: its hyper-parameters, their kinds and their defaults.

    Making one also makes torch import what its optimizers need (2 s), before a round waits for it.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.kind: type[torch.optim.Optimizer] = getattr(torch.optim, name)
        self._arguments = inspect.signature(self.kind).parameters.keys()
        probe = self.kind([torch.zeros(1)])
        self.pinned = {key: value for key, value in PINNED.items() if key in probe.defaults}
        self.defaults = {key: value for key, value in probe.defaults.items() if key not in PINNED}

    def send(self, group: Mapping[str, Any]) -> Hyperparameters:
        """What a parameter group says, as it travels; what a scheduler keeps in it stays behind.

        Raises `Unsupported` for a value that is missing, or that this rule cannot compute with.
        """
        sent: Hyperparameters = {}
        for key in self.defaults:
            if key not in group:
                raise Unsupported(
                    f"a parameter group has no {key}, which {self.name} needs; were these groups another optimizer's?"
                )
            sent[key] = as_plain(group[key])
            try:
                self._checked(key, sent[key])
            except ProtocolError as error:
                raise Unsupported(f"in a parameter group of {error}") from None
        return sent

    def receive(self, sent: Hyperparameters) -> dict[str, Any]:
        """What was sent, checked and completed with defaults; raises `ProtocolError` or `Unsupported`."""
        values = dict(self.defaults)
        for key, value in sent.items():
            if key in self.defaults:
                values[key] = self._checked(key, value)
            elif key in ("capturable", "differentiable") and value:
                raise Unsupported(
                    f"{self.name} with {key}=True: leave it False, or set optimizer.place to workers"
                )
            elif key not in PINNED:
                known = ", ".join(self.defaults)
                raise ProtocolError(f"{self.name} has no hyper-parameter {key!r}; it has {known}")
        return values

    def build(self, parts: list[torch.Tensor], values: Mapping[str, Any]) -> torch.optim.Optimizer:
        """An optimizer of the pinned variant; raises `ProtocolError` for values out of range."""
        given = {key: value for key, value in values.items() if key in self._arguments}
        try:
            return self.kind(parts, **given, **self.pinned)
        except ValueError as error:
            raise ProtocolError(f"{self.name} refuses its hyper-parameters: {error}") from error

    def _checked(self, key: str, value: object) -> object:
        default = self.defaults[key]
        if isinstance(default, tuple):
            if isinstance(value, list | tuple) and len(value) == len(default) and all(map(_is_number, value)):
                return tuple(value)
            expected = f"{len(default)} finite numbers"
        elif isinstance(default, bool):
            if isinstance(value, bool):
                return value
            expected = "true or false"
        else:
            if _is_number(value):
                return value
            expected = "a finite number"
        raise ProtocolError(f"{self.name}: {key} is {value!r}; expected {expected}")


class OwnRule:
    """A rule of the user's own: it is sent every plain value that a parameter group has, and checks them itself."""

    def send(self, group: Mapping[str, Any]) -> Hyperparameters:
        """What a parameter group says, as it travels."""
        return plain_values(group)


def sender_of(rule: str) -> Rule | OwnRule:
    """What makes hyper-parameters of a parameter group: for a rule of torch.optim, or for `module:Class`."""
    return OwnRule() if ":" in rule else Rule(rule)


def plain_values(group: Mapping[str, Any]) -> Hyperparameters:
    """What can travel and be compared of a parameter group, whatever optimizer it is for."""
    plain = {key: as_plain(value) for key, value in group.items() if key not in OWN_KEYS}
    return {key: value for key, value in plain.items() if _is_plain(value)}


def _is_plain(value: Any) -> bool:
    if isinstance(value, list):
        return all(isinstance(each, int | float) for each in value)
    return isinstance(value, str | int | float | bool | None)


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def as_plain(value: Any) -> Any:
    """A scalar of PyTorch or NumPy as a number, a tuple as a list, all else as it is."""
    if isinstance(value, tuple | list):
        return [as_plain(each) for each in value]
    is_scalar = isinstance(value, np.generic) or (isinstance(value, torch.Tensor) and value.numel() == 1)
    return value.item() if is_scalar else value
