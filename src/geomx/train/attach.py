"""What happens once, when a model joins a run: it is checked, laid out, agreed on, and given the first values."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from geomx.config.compatibility.decision import Decision, decide
from geomx.errors import Unsupported
from geomx.node.port import Arrived
from geomx.node.slices.devices import used_here
from geomx.node.slices.finite import listed
from geomx.node.slices.models import WORKERS, settings_of
from geomx.sync.contract import AccumulateStep, GradientStep, LocalStep, next_run_mean
from geomx.train.calls.broadcast import Broadcast
from geomx.train.calls.collective_client import STEP, CollectiveClient
from geomx.train.calls.collectives import Collectives
from geomx.train.context import Planned, TrainingContext
from geomx.train.model.finite import FiniteOnly
from geomx.train.model.guard import Guard
from geomx.train.model.model_slices import ModelSlices
from geomx.train.model.rows import rows_of, strided
from geomx.train.model.support import check_model, check_optimizer, check_rows, rule_of, script_of, unwrapped
from geomx.train.optimizer.masters import Masters
from geomx.train.optimizer.placement import OnServer, OnWorkers
from geomx.train.optimizer.run_optimizer import RunOptimizer
from geomx.train.optimizer.several import Optimizers
from geomx.train.party.intra_party import AllReduced, DdpAveraged, FsdpSharded, ThroughServer
from geomx.train.party.process_group import PartyGroup
from geomx.train.settings import Settings
from geomx.train.steps.accumulate import AccumulateSteps
from geomx.train.steps.contract import Steps
from geomx.train.steps.gradient import GradientSteps
from geomx.train.steps.ledger import Ledger
from geomx.train.steps.local import LocalSteps
from geomx.train.steps.pending import PendingWeights
from geomx.train.steps.several import StepsOfSeveral
from geomx.train.together import check_inside, check_several, check_travels_as_rows
from geomx.wire.messages import COLLECTIVE, Value

CALL_SLICES = 16  # pieces of a large array that are under way at once
OUTER_RULE = "SGD"  # what the root does with means of local steps; a policy gives its hyper-parameters


@dataclass(frozen=True, slots=True)
class AttachedModel:
    """A model in a run, or several as one. `model` is the user's own, or has them as submodules."""

    model: nn.Module
    client: CollectiveClient
    optimizer: RunOptimizer | Optimizers
    optimizer_class: str
    model_slices: ModelSlices
    intra_party: ThroughServer
    steps: Steps
    ledger: Ledger
    broadcast: Broadcast
    pending: PendingWeights
    guard: Guard
    calls: Collectives | None = None

    def receive(self, arrived: Arrived) -> None:
        """Give an arrival to whoever made the call that it answers; on the training thread."""
        update, values = arrived.update, arrived.values
        if values is not None:
            used_here(values)
        slice_ = self.model_slices.layout.slices[update.slice]
        if slice_.role == "ledger":
            self.ledger.arrived(values)
        elif self.calls is not None and slice_.role == "call":
            self.calls.arrived(slice_, update.turn, values)
        elif self.steps.answers(slice_, update):
            self.steps.arrived(slice_, arrived)
        else:
            self.broadcast.arrived(slice_, values)
            if update.kind == "assign" and slice_.role == "weight" and values is not None:
                self.steps.reassigned(slice_, values)
        self.pending.arrived(slice_.index)
        self.guard.written(slice_)

    @property
    def trains(self) -> bool:
        """Whether it is in training mode, or any of them."""
        models = self.model.children() if isinstance(self.optimizer, Optimizers) else [self.model]
        return any(model.training for model in models)

    def unhook(self) -> None:
        """Leave the model as it came, but for its weights."""
        self.steps.unhook()
        self.pending.unhook()
        self.client.receive = lambda _: None


@dataclass(frozen=True, slots=True)
class Attachment:
    """What one call of `run.attach` has given. `name`: of its model, where a run has several; else empty."""

    name: str
    model: nn.Module
    optimizer: torch.optim.Optimizer
    clip_norm: float | None
    settings: Settings
    wrapped: RunOptimizer

    @property
    def on_server(self) -> bool:
        """Whether the global servers run its optimizer."""
        return self.wrapped.on_server

    @property
    def rule(self) -> str | None:
        """What the global servers know as this optimizer, where they run it."""
        return (self.settings.rule or rule_of(self.optimizer)) if self.on_server else None

    @property
    def kind(self) -> str:
        """The optimizer's class."""
        return f"{type(self.optimizer).__module__}.{type(self.optimizer).__qualname__}"

    @property
    def operation(self) -> str:
        """A step of it, for messages."""
        return f"{STEP} of {self.name}" if self.name else STEP


def prepare(
    context: TrainingContext,
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    clip_norm: float | None,
    name: str,
    join: Callable[[], None],
) -> Attachment:
    """Look at what is to be attached, here alone. `join`: has it join. Raises `Unsupported`."""
    decision = _decided(context, model, optimizer, clip_norm)
    _tell_known_costs(context, decision)
    wrapped = RunOptimizer(optimizer, decision.on_server, join)
    return Attachment(name, model, optimizer, clip_norm, context.settings, wrapped)


def attach(context: TrainingContext, attachments: Sequence[Attachment]) -> AttachedModel:
    """Returns when all have the weights and buffers that all begin with. Raises `Unsupported`, `Refused`."""
    client, settings, members = context.client, context.settings, len(context.members)
    first, *others = attachments
    if others:
        check_several(settings, attachments)
    models = [each.name for each in attachments if each.name]
    model = nn.ModuleDict({each.name: each.model for each in attachments}) if models else first.model
    groups = [group for each in attachments for group in each.optimizer.param_groups]
    model_slices = ModelSlices(
        unwrapped(model),
        groups,
        members if settings.ledger else 0,
        settings.pack_below,
        settings.slice_elements,
        settings.slices,
        settings.size_bounds,
        models,
        rows_of(model) if settings.policy.plans is GradientStep else {},
        CALL_SLICES if settings.calls else 0,
    )
    _tell_left_out(context, model_slices)
    served = first.on_server and settings.policy.plans is GradientStep
    if not served:
        model_slices.keep_masters()
    finite = FiniteOnly(client.port, client.name, model_slices.layout, settings)
    has_state = any(bool(each.optimizer.state) for each in attachments)
    intra_party = _intra_party(context, model, model_slices, finite, has_state)
    broadcast = Broadcast(client, model_slices, intra_party, context.tree, settings.on_loss == "continue")
    ledger = Ledger(client, model_slices.slices("ledger"), context.members.index(client.name))
    pending = PendingWeights([each.model for each in attachments], model_slices, client, context.timeline)
    guard = Guard(
        model_slices,
        lambda: [group for each in attachments for group in each.optimizer.param_groups],
        served,
    )
    states: dict[int, Any] = {}
    every, first_group = list[Steps](), 0
    planned = Planned()
    for each in attachments:
        own_groups = range(first_group, first_group + len(each.optimizer.param_groups))
        own_slices = model_slices.of_model(each.name, own_groups) if models else model_slices
        own = replace(
            context,
            samples=context.samples.of_model() if models else context.samples,
            settings=each.settings,
            operation=each.operation,
            planned=Planned() if settings.policy.plans is LocalStep else planned,
        )
        parts = (own, own_slices, intra_party, ledger, guard, finite)
        masters = None if each.on_server else Masters(own_slices, each.optimizer)
        steps = _steps(parts, each, masters, pending, first_group)
        each.wrapped.joins(own_slices, steps, broadcast, masters, finite.skips_steps)
        if each.on_server and each.optimizer.state:
            states |= each.wrapped.take_state()
        every.append(steps)
        first_group = own_groups.stop
    stepped = StepsOfSeveral(every) if models else every[0]
    optimizers = Optimizers([each.wrapped for each in attachments]) if models else first.wrapped
    kind = "; ".join(f"{each.name}: {each.kind}" if each.name else each.kind for each in attachments)
    calls = _calls_of(context, model_slices, stepped) if settings.calls else None
    attached = AttachedModel(
        model,
        client,
        optimizers,
        kind,
        model_slices,
        intra_party,
        stepped,
        ledger,
        broadcast,
        pending,
        guard,
        calls,
    )
    client.receive = attached.receive
    whole = settings.policy.plans is GradientStep
    _, mean = next_run_mean(settings.policy) or (0, LocalStep())
    is_whole = not models and (whole or (stepped.local and mean.fragment[1] == 1 and not mean.overlap))
    manifest = _manifest(attachments)
    if client.attach(model_slices.layout, manifest, stepped.cohort, stepped.slices, whole, is_whole):
        broadcast.assign("attach()", model_slices.layout.slices, states)
    stepped.hook()
    pending.hook()
    return attached


def _steps(
    parts: tuple[TrainingContext, ModelSlices, ThroughServer, Ledger, Guard, FiniteOnly],
    given: Attachment,
    masters: Masters | None,
    pending: PendingWeights,
    first_group: int,
) -> Steps:
    """The steps of one model."""
    context, model_slices, intra_party, *_ = parts
    plans = given.settings.policy.plans
    if plans is LocalStep:
        assert masters is not None  # a local step is the worker's own
        alike = len(context.party_members) == 1 or isinstance(intra_party, DdpAveraged)
        return LocalSteps(*parts, masters, alike, given.clip_norm)
    if masters is not None:
        on_workers = OnWorkers(model_slices, given.optimizer, masters, given.clip_norm, first_group)
        return GradientSteps(*parts, on_workers, pending)
    assert given.rule is not None  # the servers know what they run
    placement = OnServer(model_slices, given.optimizer, given.rule, first_group)
    if plans is AccumulateStep:
        return AccumulateSteps(*parts, placement, given.clip_norm)
    return GradientSteps(*parts, placement, pending)


def _intra_party(
    context: TrainingContext,
    model: nn.Module,
    model_slices: ModelSlices,
    finite: FiniteOnly,
    has_state: bool,
) -> ThroughServer:
    """How the workers of this one's party add up. Raises `Unsupported`, `WaitTimeout`."""
    collective, client = context.settings.collective, context.client
    if collective is None:
        return ThroughServer(model_slices, finite)
    is_averaged = unwrapped(model) is not model
    check_inside(context.settings, collective, model_slices.is_cut, is_averaged, has_state)
    rank, ranks = context.party_members.index(client.name), len(context.party_members)
    device = next(iter(model_slices.trained.values())).device
    group = PartyGroup(client.port, client.name, rank, ranks, collective, device)
    if model_slices.is_cut:
        return FsdpSharded(model, model_slices, finite, group)
    kind = DdpAveraged if is_averaged else AllReduced
    return kind(model_slices, finite, group)


def _decided(
    context: TrainingContext, model: nn.Module, optimizer: torch.optim.Optimizer, clip_norm: float | None
) -> Decision:
    """Where the optimizer runs, and at what cost. Raise `Unsupported` for what cannot be carried."""
    settings = context.settings
    if not isinstance(model, nn.Module) or not isinstance(optimizer, torch.optim.Optimizer):
        raise Unsupported(
            "attach(model, optimizer) takes a torch.nn.Module and a torch.optim.Optimizer; found "
            f"{type(model).__name__} and {type(optimizer).__name__}; several optimizers are attached one by one, each "
            "with a name"
        )
    if isinstance(clip_norm, torch.optim.Optimizer):
        raise Unsupported(
            "attach(model, optimizer, ...) takes one optimizer; attach each with a name of its own"
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
    check_rows(model, optimizer)
    check_travels_as_rows(settings, model)
    decision = decide(settings, script_of(optimizer, clip_norm, model))
    if decision.refusals:
        raise Unsupported("; ".join(decision.refusals))
    check_optimizer(optimizer, decision.on_server, settings.policy.plans is LocalStep)
    return decision


def _tell_known_costs(context: TrainingContext, decision: Decision) -> None:
    """Say what the run's choices are known to cost with this optimizer, once a party."""
    client = context.client
    if client.name == context.party_members[0]:
        name = "advice" if client.name == context.members[0] else "advised"
        for cost in decision.costs:
            client.port.note(name, "warning", text=f"known to cost accuracy: {cost.text}")


def _tell_left_out(context: TrainingContext, model_slices: ModelSlices) -> None:
    """Say which parameters want a gradient and are in no optimizer that was attached, once a party."""
    tensors = zip(model_slices.layout.tensors, model_slices.parameters, strict=False)
    left_out = [
        tensor.name for tensor, parameter in tensors if tensor.role == "frozen" and parameter.requires_grad
    ]
    client = context.client
    if left_out and client.name == context.party_members[0]:
        name = "advice" if client.name == context.members[0] else "advised"
        text = (
            f"no attached optimizer has {listed(left_out)}, which the run does not train, nor keep alike on all "
            "workers: attach the same model once more with the optimizer that has it, under a name of its own, or "
            "freeze it"
        )
        client.port.note(name, "warning", text=text)


def _calls_of(context: TrainingContext, model_slices: ModelSlices, steps: Steps) -> Collectives:
    return Collectives(
        context.client,
        model_slices.slices("call"),
        context.members,
        context.settings.on_loss == "continue",
        lambda: steps.require_quiescent(COLLECTIVE),
    )


def _manifest(attachments: Sequence[Attachment]) -> dict[str, Value]:
    """In what all workers must agree, field by field; see `geomx.node.slices.models`."""
    manifest: dict[str, Value] = {}
    if attachments[0].name:
        counts = {each.name: len(each.optimizer.param_groups) for each in attachments}
        manifest["models"] = settings_of(counts)
        manifest["optimizer"] = "of each model" if _rule_at_root(attachments[0]) else WORKERS
    for each in attachments:
        of, settings = f"{each.name}." if each.name else "", each.settings
        rule = _rule_at_root(each)
        # The global servers clip means of gradients alone; each worker clips the gradients that it steps with itself.
        clips = "clip_norm" if settings.policy.plans is GradientStep else "clip_norm of each worker"
        manifest |= {
            f"{of}optimizer": (rule if ":" in rule else f"torch.optim.{rule}") if rule else WORKERS,
            f"{of}optimizer.class": each.kind,
            f"{of}optimizer.place": settings.place,
            f"{of}{clips}": each.clip_norm,
        }
        if rule is None:
            manifest[f"{of}optimizer.state"] = _state_digest(each.optimizer)
    return manifest


def _rule_at_root(attachment: Attachment) -> str | None:
    """What the global servers do with what goes up; None: they pass on its mean."""
    return OUTER_RULE if attachment.settings.policy.plans is LocalStep else attachment.rule


def _state_digest(optimizer: torch.optim.Optimizer) -> str:
    """A short name for the state that an optimizer on the workers begins with: it must be the same on each."""
    digest = hashlib.blake2b(digest_size=8)
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            for key, value in sorted(strided(optimizer.state.get(parameter, {})).items()):
                digest.update(key.encode())
                if isinstance(value, torch.Tensor):
                    flat = value.detach().cpu().reshape(-1).contiguous()
                    digest.update(flat.view(torch.uint8).numpy().tobytes())
                else:
                    digest.update(repr(value).encode())
    return digest.hexdigest()
