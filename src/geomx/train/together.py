"""What a description and a script cannot have together, found as a model joins: each with what would work."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from geomx.errors import Unsupported
from geomx.sync.contract import AccumulateStep, GradientStep, LocalStep, next_run_mean
from geomx.train.model.rows import rows_of
from geomx.train.model.support import unwrapped
from geomx.train.settings import Collective, Settings

if TYPE_CHECKING:
    from geomx.train.attach import Attachment


def check_several(settings: Settings, attachments: Sequence[Attachment]) -> None:
    """Have their optimizers in one place. Raise `Unsupported` for what several models cannot have."""
    if all(each.settings.place == "auto" for each in attachments) and not all(
        each.on_server for each in attachments
    ):
        for each in attachments:
            each.wrapped.stay_here()
    if len({each.on_server for each in attachments}) > 1:
        told = ", ".join(
            f"that of {each.name} on {'the global servers' if each.on_server else 'the workers'}"
            for each in attachments
        )
        raise Unsupported(
            f'the optimizers of several models run in one place, and here {told}; set optimizer.place = "workers"'
        )
    twice = Counter(id(p) for each in attachments for g in each.optimizer.param_groups for p in g["params"])
    if any(count > 1 for count in twice.values()):
        raise Unsupported("a parameter is in the optimizers of two models; leave it to one of them")
    if (next_run_mean(settings.policy) or (0, LocalStep()))[1].average == "told":
        raise Unsupported(
            f"several models with {type(settings.policy).__name__}, which sets the pace of one optimizer's steps; take "
            "fsa, mixed, hfa, diloco or downpour"
        )
    if settings.has_overlay:
        raise Unsupported(
            "several models with run.overlay or lan.overlay, whose members would wait for steps of another model; "
            "leave the overlay out"
        )
    in_step = settings.policy.plans is GradientStep and settings.policy.lockstep
    if settings.on_loss == "wait" or (settings.on_loss != "stop" and not in_step):
        raise Unsupported(
            f'several models with run.on_loss = "{settings.on_loss}" and {type(settings.policy).__name__}: whoever '
            'comes back would not know whose step it is; set run.on_loss = "stop" and go on from a checkpoint, or '
            '"continue" with fsa'
        )


def check_inside(
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


def check_travels_as_rows(settings: Settings, model: nn.Module) -> None:
    """Raise `Unsupported` for sparse gradients where they cannot travel as rows."""
    policy = settings.policy
    if not rows_of(model) or policy.plans is LocalStep:
        return
    if not policy.lockstep:
        raise Unsupported(
            f"embeddings with sparse=True and {type(policy).__name__}, whose parties do not wait for each other: each "
            "would miss the rows of the others; set sparse=False, or take fsa, hfa or diloco"
        )
    if settings.collective is not None and unwrapped(model) is model:
        raise Unsupported(
            'embeddings with sparse=True and party.inside = "collective" without DistributedDataParallel; set '
            'sparse=False, wrap the model, or set party.inside = "server"'
        )
