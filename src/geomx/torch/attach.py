"""What happens once, when a model joins a run: it is checked, laid out, agreed on, and given the first worker's values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from geomx.errors import Unsupported
from geomx.protocol.messages import Value
from geomx.torch.exchange import Exchange
from geomx.torch.optimizer import RunOptimizer
from geomx.torch.pending import PendingWeights
from geomx.torch.places import OnServer, OnWorkers, OptimizerPlace
from geomx.torch.samples import Samples
from geomx.torch.settings import Settings
from geomx.torch.support import check_model, served_rule
from geomx.torch.tensors import Carried
from geomx.torch.turns import TurnRules, Turns


@dataclass(frozen=True, slots=True)
class Attached:
    """A model in a run. `model` is the user's own."""

    model: nn.Module
    optimizer: RunOptimizer
    optimizer_class: str
    carried: Carried
    turns: Turns


def attach(
    exchange: Exchange,
    members: Sequence[str],
    samples: Samples,
    settings: Settings,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clip_norm: float | None,
) -> Attached:
    """Returns when this worker has the weights and buffers that all begin with. Raises `Unsupported`, `Refused`."""
    check_model(model, optimizer)
    if clip_norm is not None and not (math.isfinite(clip_norm) and clip_norm > 0):
        raise Unsupported(f"clip_norm={clip_norm!r}: a finite number above 0, or None for no clipping")
    rule = served_rule(optimizer, settings.place)
    if settings.overlap == "forward" and rule is None:
        raise Unsupported(
            'overlap = "forward" needs the optimizer on the global servers: on a worker it needs the whole mean at once, so '
            'there is nothing to overlap; set overlap = "none"'
        )
    ledger = len(members) if settings.ledger else 0
    carried = Carried(
        model, optimizer.param_groups, ledger, settings.size_lower_bound, settings.slice_elements
    )
    place: OptimizerPlace
    place = OnServer(carried, rule) if rule else OnWorkers(carried, optimizer, clip_norm)
    rules = TurnRules(
        members.index(exchange.name), len(members), settings.policy, settings.push_at, settings.overlap
    )
    pending = PendingWeights(model, carried, exchange)
    turns = Turns(exchange, carried, place, lambda: optimizer.param_groups, samples, pending, rules)
    wrapped = RunOptimizer(optimizer, place.on_server, turns, carried, exchange)
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    states = wrapped.take_state() if rule and optimizer.state else None
    if exchange.attach(carried.layout, _manifest(optimizer, rule, kind, settings, clip_norm)):
        turns.assign("attach()", carried.layout.slices, states)
    return Attached(model, wrapped, kind, carried, turns)


def _manifest(
    optimizer: torch.optim.Optimizer, rule: str | None, kind: str, settings: Settings, clip_norm: float | None
) -> dict[str, Value]:
    """In what all workers must agree, field by field."""
    manifest: dict[str, Value] = {
        "optimizer": rule or "workers",
        "optimizer.class": kind,
        "optimizer.place": settings.place,
        "clip_norm": clip_norm,
    }
    if rule is None:
        manifest["optimizer.state"] = _state_digest(optimizer)
    return manifest


def _state_digest(optimizer: torch.optim.Optimizer) -> str:
    """A short name for the state that an optimizer on the workers begins with: it must be the same on each."""
    digest = hashlib.blake2b(digest_size=8)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in sorted(optimizer.state.get(parameter, {}).items()):
                digest.update(key.encode())
                if isinstance(value, torch.Tensor):
                    flat = value.detach().cpu().reshape(-1).contiguous()
                    digest.update(flat.view(torch.uint8).numpy().tobytes())
                else:
                    digest.update(repr(value).encode())
    return digest.hexdigest()
