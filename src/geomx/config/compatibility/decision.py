"""What follows from a description's choices and a training script together: `check`, `plan` and `attach` ask here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from geomx.config.compatibility.choices import Choices
from geomx.config.compatibility.known_costs import KnownCost, known_costs
from geomx.config.compatibility.script import Script
from geomx.config.reading.problems import shown
from geomx.sync.contract import GradientStep, LocalStep, mean_period


@dataclass(frozen=True, slots=True)
class Decision:
    """`on_server`: the global servers run the script's optimizer. `refusals`: why this script cannot run so, each with
    what would work; none where it can. `costs`: what that is known to cost in accuracy."""

    on_server: bool
    refusals: tuple[str, ...]
    costs: tuple[KnownCost, ...]


def decide(choices: Choices, script: Script) -> Decision:
    """Whether a script can run with these choices, where its optimizer steps, and what that costs.

    Args:
        choices: of a description that is valid by itself (`check_choices`).
        script: what is known of it; `Script()` where nothing is.
    """
    on_server = _is_on_server(choices, script)
    costs = tuple(known_costs(choices, script))
    refusals = [
        *_of_place(choices, script, on_server),
        *_of_momentum(choices, script),
        *_of_steps(choices, script),
    ]
    if choices.strict:
        refusals += [f"{cost.text} (run.strict)" for cost in costs if cost.is_certain]
    return Decision(on_server, tuple(refusals), costs)


def _is_on_server(choices: Choices, script: Script) -> bool:
    """With "auto" on the global servers, where they have its rule.

    With `clip_norm` a server must not apply a slice before it has the norm of all. Means may go down before, and are
    clipped where they arrive: the same numbers, and the two directions overlap. Through codecs that lose something,
    weights come down better than means do.
    """
    if choices.policy.plans is LocalStep or choices.place == "workers":
        return False
    if not (script.elementwise or choices.rule):
        return False
    together = choices.policy.plans is GradientStep and choices.policy.sync_group == "run"
    needs_server = choices.rule or choices.overlap == "forward" or choices.on_loss != "stop"
    clips_as_means_arrive = script.clips and together and choices.lossless_down and not needs_server
    return choices.place == "server" or not clips_as_means_arrive


def _of_place(choices: Choices, script: Script, on_server: bool) -> Iterator[str]:
    if on_server or choices.policy.plans is LocalStep:
        return
    take = "use one whose update is elementwise (torch.optim.SGD, Adam, ...)"
    if choices.place == "server":
        yield (
            f'{script.optimizer} cannot run on the global servers (optimizer.place = "server"), which run '
            f'classes of torch.optim, and no subclasses: {take}, or set optimizer.place = "auto" or "workers"'
        )
    if choices.policy.sync_group != "run":
        yield (
            f"sync.policy = {shown(choices.policy_spec)} lets parties run ahead of each other, which needs an "
            f"optimizer on the global servers, where {script.optimizer} cannot run: {take}"
        )
    if choices.on_loss != "stop":
        yield (
            f"run.on_loss = {shown(choices.on_loss)} with {script.optimizer} on the workers: nobody else has the state "
            f'that a worker needs to come back; {take}, or set run.on_loss = "stop"'
        )
    if choices.overlap == "forward":
        yield (
            f'overlap = "forward" needs an optimizer on the global servers, where {script.optimizer} is not: on a '
            'worker it needs the whole mean at once, so there is nothing to overlap; set overlap = "none"'
        )


def _of_momentum(choices: Choices, script: Script) -> Iterator[str]:
    for codec in (codec for codec in choices.codecs_up if codec.momentum and script.momentum):
        yield (
            f"{codec.key} = {shown(codec.spec)} has momentum, and so has {script.optimizer}: it would count twice; "
            "take an optimizer without, such as SGD(..., momentum=0), or a codec without"
        )


def _of_steps(choices: Choices, script: Script) -> Iterator[str]:
    period = mean_period(choices.policy)
    if script.steps is not None and period is not None and period > script.steps:
        yield (
            f"sync.policy = {shown(choices.policy_spec)} averages every {period:,} steps, but a worker takes only "
            f"{script.steps:,}, so workers would never exchange anything; choose a shorter period"
        )
    if choices.policy.plans is not GradientStep and choices.overlap != "none":
        yield (
            f'overlap = "{choices.overlap}" with sync.policy = {shown(choices.policy_spec)}: workers step on '
            'their own, so there is nothing to overlap; leave overlap = "none"'
        )
