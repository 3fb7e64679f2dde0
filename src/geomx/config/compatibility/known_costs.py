"""What choices are known to cost in accuracy, and what to choose instead.

The figures are those of docs/settings.md, which `python benchmarks/virtual.py adam` measures. Some of it depends on the
optimizer, which only the training script knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from geomx.config.compatibility.choices import Choices
from geomx.config.compatibility.script import Script
from geomx.config.reading.problems import shown
from geomx.sync.contract import AccumulateStep, GradientStep, mean_period

FEWEST_MEANS = 25  # over the run, in a run


@dataclass(frozen=True, slots=True)
class KnownCost:
    """One sentence. `is_certain`: it holds whatever the script does."""

    text: str
    is_certain: bool = True


def known_costs(choices: Choices, script: Script) -> Iterator[KnownCost]:
    """Everything that is known of these choices with this script."""
    yield from _of_sparse_gradients(choices, script)
    yield from _of_few_means(choices, script)


INSTEAD = 'run.preset = "slow-link" sends less, and cost less where it was measured (docs/settings.md)'


def _of_sparse_gradients(choices: Choices, script: Script) -> Iterator[KnownCost]:
    """Most entries come many steps late: what an optimizer keeps of gradients then is of no step at all."""
    if choices.policy.plans not in (GradientStep, AccumulateStep):
        return
    for codec in (codec for codec in choices.codecs_up if codec.is_sparse):
        named = f"{codec.key} = {shown(codec.spec)}"
        if script.keeps == "squares":
            yield KnownCost(
                f"{named} on gradients with {script.optimizer} cost 3 to 4 points of accuracy; {INSTEAD}"
            )
        elif script.keeps == "momentum" and not codec.momentum:
            yield KnownCost(
                f"{named} with the momentum of {script.optimizer} diverged, since late entries are sped up once more; "
                "take `bisparse ... momentum=0.9` and an optimizer without momentum"
            )
        elif (
            script.keeps == "unknown" and not codec.momentum
        ):  # an optimizer beside a codec's momentum has none
            yield KnownCost(
                f"{named} on gradients cost 3 to 4 points of accuracy with Adam, and with SGD's own momentum it "
                f"diverged (`bisparse ... momentum=0.9` has it in the codec instead); {INSTEAD}",
                is_certain=False,
            )


def _of_few_means(choices: Choices, script: Script) -> Iterator[KnownCost]:
    """Whoever meets a few times has hardly trained together, and an outer momentum has no time to build up."""
    period = mean_period(choices.policy)
    if script.steps is None or period is None or script.steps >= FEWEST_MEANS * period:
        return
    outer = getattr(choices.policy, "momentum", 0.0)
    momentum = ", and 20 % with an outer momentum of 0.9 (`lr=1.0 momentum=0` has none)" if outer else ""
    yield KnownCost(
        f"sync.policy = {shown(choices.policy_spec)} averages every {period:,} steps, {script.steps // period} times "
        f"in {script.steps:,} steps: with 12 times the loss of a small language model was 9 % higher{momentum}; take a "
        "shorter period"
    )
