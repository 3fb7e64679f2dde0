"""What happens once, when a model joins a run: it is checked, laid out, agreed on, and given the first values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from geomx.errors import Unsupported
from geomx.sync.contract import Accrued, Gradient, Local
from geomx.train.calls.broadcast import Sharing
from geomx.train.calls.collective_client import Exchange
from geomx.train.data.samples import Samples
from geomx.train.model.guard import Guard
from geomx.train.model.model_slices import Carried
from geomx.train.model.optimizer_placement import OnServer, OnWorkers
from geomx.train.model.run_optimizer import RunOptimizer
from geomx.train.model.support import check_model, served_rule, unwrapped
from geomx.train.party.intra_party import Averaged, Reduced, Sharded, ThroughServer
from geomx.train.party.process_group import Group
from geomx.train.settings import Collective, Settings
from geomx.train.steps.accumulate import AccruedTurns
from geomx.train.steps.contract import Helpers, Turns
from geomx.train.steps.gradient import GradientTurns
from geomx.train.steps.local import LocalTurns
from geomx.train.steps.pending import PendingWeights
from geomx.train.steps.timeline import Timeline
from geomx.wire.messages import Value

OUTER_RULE = "SGD"  # what the root does with means of local steps; a policy gives its hyper-parameters


@dataclass(frozen=True, slots=True)
class Attached:
    """A model in a run. `model` is the user's own."""

    model: nn.Module
    optimizer: RunOptimizer
    optimizer_class: str
    carried: Carried
    inside: ThroughServer
    turns: Turns
    sharing: Sharing
    pending: PendingWeights

    def unhook(self) -> None:
        """Leave the model as it came, but for its weights."""
        self.turns.unhook()
        self.pending.unhook()


@dataclass(frozen=True, slots=True)
class Place:
    """Where and how a model joins: this worker's way to the run, and what the run says of training."""

    exchange: Exchange
    members: Sequence[str]
    party_members: Sequence[str]
    samples: Samples
    settings: Settings
    timeline: Timeline


def attach(
    place: Place, model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None
) -> Attached:
    """Returns when this worker has the weights and buffers that all begin with. Raises `Unsupported`, `Refused`."""
    exchange, settings, members = place.exchange, place.settings, len(place.members)
    local = settings.policy.plans is Local
    served = _check(model, optimizer, place, clip_norm)
    rule = OUTER_RULE if local else served
    carried = Carried(
        unwrapped(model),
        optimizer.param_groups,
        members if settings.ledger else 0,
        settings.size_lower_bound,
        settings.slice_elements,
        settings.slices,
    )
    inside = _inside(place, model, carried, optimizer)
    member = place.members.index(exchange.name)
    sharing = Sharing(exchange, carried, inside, place.members)
    pending = PendingWeights(model, carried, exchange, place.timeline)
    on_server = rule is not None and not local
    exact = on_server and settings.policy.plans is Gradient
    guard = Guard(carried, lambda: optimizer.param_groups, exact)
    helpers = Helpers(
        exchange, carried, inside, settings, member, lambda: optimizer.param_groups, place.samples, sharing, pending,
        place.timeline, guard,
    )  # fmt: skip
    turns: Turns
    if local:
        alike = len(place.party_members) == 1 or isinstance(inside, Averaged)
        turns = LocalTurns(helpers, optimizer, alike)
    elif settings.policy.plans is Accrued:
        assert rule is not None  # it was checked
        turns = AccruedTurns(helpers, OnServer(carried, rule))
    else:
        runs = OnServer(carried, rule) if rule else OnWorkers(carried, optimizer, clip_norm)
        turns = GradientTurns(helpers, runs)
    wrapped = RunOptimizer(optimizer, on_server, carried, turns, sharing)
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    states = wrapped.take_state() if on_server and optimizer.state else None
    if exchange.attach(carried.layout, _manifest(optimizer, rule, kind, settings, clip_norm), turns.cohort):
        sharing.assign("attach()", carried.layout.slices, states)
    turns.hook()
    pending.hook()
    delay = settings.delay
    if delay is not None:
        model.register_forward_pre_hook(lambda *_: delay.before_forward() if model.training else None)
    return Attached(model, wrapped, kind, carried, inside, turns, sharing, pending)


def _inside(
    place: Place, model: nn.Module, carried: Carried, optimizer: torch.optim.Optimizer
) -> ThroughServer:
    """How the workers of this one's party add up. Raises `Unsupported`, `WaitTimeout`."""
    collective, exchange = place.settings.collective, place.exchange
    if collective is None:
        return ThroughServer(carried)
    is_averaged = unwrapped(model) is not model
    _check_inside(place.settings, collective, carried.is_cut, is_averaged, bool(optimizer.state))
    rank, ranks = place.party_members.index(exchange.name), len(place.party_members)
    device = next(iter(carried.trained.values())).device
    group = Group(exchange.port, exchange.name, rank, ranks, collective, device)
    if carried.is_cut:
        return Sharded(model, carried, group)
    return Averaged(carried, group) if is_averaged else Reduced(carried, group)


def _check_inside(
    settings: Settings, collective: Collective, is_cut: bool, is_averaged: bool, has_state: bool
) -> None:
    """Raise `Unsupported` for what does not go with workers that reduce among themselves."""
    inside = f'{type(settings.policy).__name__} with party.inside = "collective"'
    if settings.policy.plans is Accrued:
        raise Unsupported(f'{inside}: its workers do not wait for each other; set party.inside = "server"')
    if settings.policy.plans is Local and not is_averaged:
        raise Unsupported(
            f"{inside}: local steps are the same on all workers of a party only in DistributedDataParallel; wrap the "
            'model in it, or set party.inside = "server"'
        )
    if is_cut and collective.codec_up != "dense":
        raise Unsupported(
            f'fully_shard with lan.codec_up = "{collective.codec_up}": workers push parts of slices, and a codec is '
            'for whole ones; set lan.codec_up = "dense"'
        )
    if is_cut and has_state:
        raise Unsupported(
            "an optimizer with state at attach() for a model of fully_shard: attach a new one, then call run.load()"
        )


def _check(
    model: nn.Module, optimizer: torch.optim.Optimizer, place: Place, clip_norm: float | None
) -> str | None:
    """Raise `Unsupported` for what cannot be carried; returns the rule for the global servers, if they optimize."""
    ranks = len(place.party_members) if place.settings.collective is not None else 0
    settings = place.settings
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise Unsupported(
            "attach(model, optimizer) takes a torch.nn.Module and a torch.optim.Optimizer; found "
            f"{type(model).__name__} and {type(optimizer).__name__}"
        )
    if isinstance(optimizer, RunOptimizer):
        raise Unsupported(
            "this optimizer belongs to another run; attach the one that it was made from, or a new one"
        )
    check_model(model, optimizer, ranks)
    if settings.codec_momentum and any(g.get("momentum") or "betas" in g for g in optimizer.param_groups):
        raise Unsupported(
            f'the codec "{settings.codec_momentum}" has momentum, and so has this {type(optimizer).__name__}: it '
            "would count twice. Take an optimizer without, such as SGD(..., momentum=0), or a codec without"
        )
    rule = served_rule(optimizer, "workers" if settings.policy.plans is Local else settings.place)
    if clip_norm is not None and not (
        isinstance(clip_norm, int | float) and math.isfinite(clip_norm) and clip_norm > 0
    ):
        raise Unsupported(f"clip_norm={clip_norm!r}: a finite number above 0, or None for no clipping")
    policy = type(settings.policy).__name__
    if settings.policy.plans is not Gradient and (clip_norm is not None or settings.overlap != "none"):
        given = "clip_norm" if clip_norm is not None else f"overlap={settings.overlap!r}"
        raise Unsupported(
            f"{given} with {policy}: steps are each worker's own; clip its gradients before step() "
            "(torch.nn.utils.clip_grad_norm_), and leave overlap as it is"
        )
    if settings.policy.together != "run":
        if rule is None:
            raise Unsupported(
                f"{policy} lets parties go ahead of each other, which needs an optimizer on the "
                "global servers: take one whose update is elementwise (torch.optim.SGD, Adam, ...)"
            )
        if clip_norm is not None:
            raise Unsupported(
                f"clip_norm with {policy}: there is no mean of the whole run to be clipped; "
                'clip each worker\'s gradients before step(), with push_at="step"'
            )
    if settings.overlap not in ("none", "forward") or settings.push_at not in ("backward", "step"):
        raise Unsupported(
            f'overlap={settings.overlap!r}, push_at={settings.push_at!r}: overlap is "none" or "forward", push_at is '
            '"backward" or "step"'
        )
    if settings.overlap == "forward" and rule is None:
        raise Unsupported(
            'overlap = "forward" needs the optimizer on the global servers: on a worker it needs the whole mean at '
            'once, so there is nothing to overlap; set overlap = "none"'
        )
    return rule


def _manifest(
    optimizer: torch.optim.Optimizer, rule: str | None, kind: str, settings: Settings, clip_norm: float | None
) -> dict[str, Value]:
    """In what all workers must agree, field by field."""
    manifest: dict[str, Value] = {
        "optimizer": f"torch.optim.{rule}" if rule else "workers",
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
