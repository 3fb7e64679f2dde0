"""What happens once, when a model joins a run: it is checked, laid out, agreed on, and given the first values."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass

import torch
from torch import nn

from geomx.config.compatibility.decision import Decision, decide
from geomx.errors import Unsupported
from geomx.node.port import Arrived
from geomx.sync.contract import AccumulateStep, GradientStep, LocalStep, next_run_mean
from geomx.train.calls.broadcast import Broadcast
from geomx.train.calls.collective_client import CollectiveClient
from geomx.train.context import TrainingContext
from geomx.train.model.finite import FiniteOnly
from geomx.train.model.guard import Guard
from geomx.train.model.model_slices import ModelSlices
from geomx.train.model.support import check_model, check_optimizer, rule_of, script_of, unwrapped
from geomx.train.optimizer.placement import OnServer, OnWorkers
from geomx.train.optimizer.run_optimizer import RunOptimizer
from geomx.train.party.intra_party import AllReduced, DdpAveraged, FsdpSharded, ThroughServer
from geomx.train.party.process_group import PartyGroup
from geomx.train.settings import Collective, Settings
from geomx.train.steps.accumulate import AccumulateSteps
from geomx.train.steps.contract import Steps
from geomx.train.steps.gradient import GradientSteps
from geomx.train.steps.ledger import Ledger
from geomx.train.steps.local import LocalSteps
from geomx.train.steps.pending import PendingWeights
from geomx.wire.messages import Value

OUTER_RULE = "SGD"  # what the root does with means of local steps; a policy gives its hyper-parameters


@dataclass(frozen=True, slots=True)
class AttachedModel:
    """A model in a run. `model` is the user's own."""

    model: nn.Module
    client: CollectiveClient
    optimizer: RunOptimizer
    optimizer_class: str
    model_slices: ModelSlices
    intra_party: ThroughServer
    steps: Steps
    ledger: Ledger
    broadcast: Broadcast
    pending: PendingWeights
    guard: Guard

    def receive(self, arrived: Arrived) -> None:
        """Give an arrival to whoever made the call that it answers; on the training thread."""
        update, values = arrived.update, arrived.values
        slice_ = self.model_slices.layout.slices[update.slice]
        if slice_.role == "ledger":
            self.ledger.arrived(values)
        elif self.steps.answers(slice_, update):
            self.steps.arrived(slice_, arrived)
        else:
            self.broadcast.arrived(slice_, values)
            if update.kind == "assign" and slice_.role == "weight" and values is not None:
                self.steps.reassigned(slice_, values)
        self.pending.arrived(slice_.index)
        self.guard.written(slice_)

    def unhook(self) -> None:
        """Leave the model as it came, but for its weights."""
        self.steps.unhook()
        self.pending.unhook()
        self.client.receive = lambda _: None


def attach(
    context: TrainingContext, model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None
) -> AttachedModel:
    """Returns when this worker has the weights and buffers that all begin with. Raises `Unsupported`, `Refused`."""
    client, settings, members = context.client, context.settings, len(context.members)
    local = settings.policy.plans is LocalStep
    decision = _decided(context, model, optimizer, clip_norm)
    _tell_known_costs(context, decision)
    served = (settings.rule or rule_of(optimizer)) if decision.on_server else None
    rule = OUTER_RULE if local else served
    model_slices = ModelSlices(
        unwrapped(model),
        optimizer.param_groups,
        members if settings.ledger else 0,
        settings.pack_below,
        settings.slice_elements,
        settings.slices,
        settings.size_bounds,
    )
    finite = FiniteOnly(client.port, client.name, model_slices.layout, settings)
    intra_party = _intra_party(context, model, model_slices, finite, optimizer)
    broadcast = Broadcast(client, model_slices, intra_party, context.tree, settings.on_loss == "continue")
    ledger = Ledger(client, model_slices.slices("ledger"), context.members.index(client.name))
    pending = PendingWeights(model, model_slices, client, context.timeline)
    on_server = decision.on_server
    guard = Guard(
        model_slices,
        lambda: optimizer.param_groups,
        on_server and settings.policy.plans is GradientStep,
    )
    parts = (context, model_slices, intra_party, ledger, guard, finite)
    steps: Steps
    if local:
        alike = len(context.party_members) == 1 or isinstance(intra_party, DdpAveraged)
        steps = LocalSteps(*parts, optimizer, alike, clip_norm)
    elif rule is None:
        steps = GradientSteps(*parts, OnWorkers(model_slices, optimizer, clip_norm), pending)
    elif settings.policy.plans is AccumulateStep:
        steps = AccumulateSteps(*parts, OnServer(model_slices, optimizer, rule), clip_norm)
    else:
        steps = GradientSteps(*parts, OnServer(model_slices, optimizer, rule), pending)
    wrapped = RunOptimizer(optimizer, on_server, model_slices, steps, broadcast, finite.skips_steps)
    kind = f"{type(optimizer).__module__}.{type(optimizer).__qualname__}"
    states = wrapped.take_state() if on_server and optimizer.state else None
    attached = AttachedModel(
        model, client, wrapped, kind, model_slices, intra_party, steps, ledger, broadcast, pending, guard
    )
    client.receive = attached.receive
    manifest = _manifest(optimizer, rule, kind, settings, clip_norm)
    whole = settings.policy.plans is GradientStep
    _, mean = next_run_mean(settings.policy) or (0, LocalStep())
    is_whole = whole or (local and mean.fragment[1] == 1 and not mean.overlap)
    if client.attach(model_slices.layout, manifest, steps.cohort, steps.slices, whole, is_whole):
        broadcast.assign("attach()", model_slices.layout.slices, states)
    steps.hook()
    pending.hook()
    return attached


def _intra_party(
    context: TrainingContext,
    model: nn.Module,
    model_slices: ModelSlices,
    finite: FiniteOnly,
    optimizer: torch.optim.Optimizer,
) -> ThroughServer:
    """How the workers of this one's party add up. Raises `Unsupported`, `WaitTimeout`."""
    collective, client = context.settings.collective, context.client
    if collective is None:
        return ThroughServer(model_slices, finite)
    is_averaged = unwrapped(model) is not model
    _check_inside(context.settings, collective, model_slices.is_cut, is_averaged, bool(optimizer.state))
    rank, ranks = context.party_members.index(client.name), len(context.party_members)
    device = next(iter(model_slices.trained.values())).device
    group = PartyGroup(client.port, client.name, rank, ranks, collective, device)
    if model_slices.is_cut:
        return FsdpSharded(model, model_slices, finite, group)
    kind = DdpAveraged if is_averaged else AllReduced
    return kind(model_slices, finite, group)


def _check_inside(
    settings: Settings, collective: Collective, is_cut: bool, is_averaged: bool, has_state: bool
) -> None:
    """Raise `Unsupported` for what does not go with workers that reduce among themselves."""
    combination = f'{type(settings.policy).__name__} with party.inside = "collective"'
    if settings.policy.plans is AccumulateStep:
        raise Unsupported(
            f'{combination}: its workers do not wait for each other; set party.inside = "server"'
        )
    if settings.policy.plans is LocalStep and not is_averaged:
        raise Unsupported(
            f"{combination}: local steps are the same on all workers of a party only in DistributedDataParallel; wrap "
            'the model in it, or set party.inside = "server"'
        )
    if is_cut and collective.codec_up != "dense":
        raise Unsupported(
            f'fully_shard with lan.codec_up = "{collective.codec_up}": its workers push parts of slices, which only '
            'lan.codec_up = "dense" can send'
        )
    if is_cut and has_state:
        raise Unsupported(
            "with fully_shard the optimizer must not have state at attach(): attach a new one, then call run.load()"
        )


def _decided(
    context: TrainingContext, model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None
) -> Decision:
    """Where the optimizer runs, and at what cost. Raise `Unsupported` for what cannot be carried."""
    settings = context.settings
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise Unsupported(
            "attach(model, optimizer) takes a torch.nn.Module and a torch.optim.Optimizer; found "
            f"{type(model).__name__} and {type(optimizer).__name__}"
        )
    if isinstance(optimizer, RunOptimizer):
        raise Unsupported(
            "this optimizer belongs to another run; attach the one that it was made from, or a new one"
        )
    if clip_norm is not None and not (
        isinstance(clip_norm, int | float) and math.isfinite(clip_norm) and clip_norm > 0
    ):
        raise Unsupported(f"clip_norm={clip_norm!r}: use a finite number above 0, or None for no clipping")
    if settings.overlap not in ("none", "forward") or settings.push_at not in ("backward", "step"):
        raise Unsupported(
            f'overlap={settings.overlap!r}, push_at={settings.push_at!r}: overlap is "none" or "forward", push_at is '
            '"backward" or "step"'
        )
    check_model(model, optimizer, len(context.party_members) if settings.collective is not None else 0)
    decision = decide(settings, script_of(optimizer, clip_norm))
    if decision.refusals:
        raise Unsupported("; ".join(decision.refusals))
    check_optimizer(optimizer, decision.on_server)
    return decision


def _tell_known_costs(context: TrainingContext, decision: Decision) -> None:
    """Say what the run's choices are known to cost with this optimizer, once a party."""
    client = context.client
    if client.name == context.party_members[0]:
        name = "advice" if client.name == context.members[0] else "advised"
        for cost in decision.costs:
            client.port.note(name, "warning", text=f"known to cost accuracy: {cost.text}")


def _manifest(
    optimizer: torch.optim.Optimizer, rule: str | None, kind: str, settings: Settings, clip_norm: float | None
) -> dict[str, Value]:
    """In what all workers must agree, field by field."""
    manifest: dict[str, Value] = {
        "optimizer": (rule if ":" in rule else f"torch.optim.{rule}") if rule else "workers",
        "optimizer.class": kind,
        "optimizer.place": settings.place,
        # The global servers clip means of gradients alone; each worker clips the gradients that it steps with itself.
        "clip_norm" if settings.policy.plans is GradientStep else "clip_norm of each worker": clip_norm,
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
