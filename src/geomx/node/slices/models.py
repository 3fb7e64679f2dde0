"""The models of a run, as its layout and settings tell them: which slices each trains, and what the root does there.

A run of one has its rule as `optimizer` and its bound as `clip_norm`. One of several says `models`, such as
`generator 1, critic 2`, names and how many parameter groups each has, in order; its settings have a model's name before
them: `critic.optimizer`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from geomx.errors import ProtocolError
from geomx.layout import Layout
from geomx.wire.messages import Value

MOST_MODELS, MOST_DIGITS = 256, 6  # in what a stranger may have said
WORKERS = "workers"  # in place of a rule, where these own the optimizer


class Model(NamedTuple):
    """One of them. `rule`: of the root; "": the workers own the optimizer. `clip_norm`: 0: none."""

    name: str
    rule: str
    clip_norm: float
    trained: frozenset[int]


def models_of(layout: Layout, settings: Mapping[str, Value]) -> list[Model]:
    """All of them. Raises `ProtocolError` where the settings and the layout do not fit each other."""
    trained = [slice_ for slice_ in layout.slices if slice_.role == "weight"]
    told = str(settings.get("models", ""))
    if not told:
        return [_model("", settings, frozenset(slice_.index for slice_ in trained))]
    models, first = list[Model](), 0
    for each in told.split(", "):
        name, _, count = each.rpartition(" ")
        is_number = count.isascii() and count.isdecimal() and len(count) <= MOST_DIGITS
        if not name or not is_number or len(models) == MOST_MODELS:
            raise ProtocolError(f"{told!r} names no models")
        groups = range(first, first + int(count))
        own = frozenset(slice_.index for slice_ in trained if slice_.group in groups)
        models.append(_model(name, settings, own))
        first = groups.stop
    if sum(len(model.trained) for model in models) != len(trained):
        raise ProtocolError(f"{told!r} has not all parameter groups of the layout")
    return models


def settings_of(models: Mapping[str, int]) -> str:
    """What `models` says; by name, how many groups each has."""
    return ", ".join(f"{name} {count}" for name, count in models.items())


def _model(name: str, settings: Mapping[str, Value], trained: frozenset[int]) -> Model:
    of = f"{name}." if name else ""
    rule, clip_norm = str(settings.get(f"{of}optimizer", WORKERS)), settings.get(f"{of}clip_norm")
    is_served = rule != WORKERS
    bound = float(clip_norm) if is_served and isinstance(clip_norm, int | float) else 0.0
    return Model(name, rule if is_served else "", bound, trained)
