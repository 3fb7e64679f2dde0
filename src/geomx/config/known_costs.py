"""What a setting is known to cost in accuracy, and what to choose instead: `check`, `plan` and `attach` say it.

The figures are those of docs/settings.md, which `python benchmarks/adam.py` measures. Some of it depends on the
optimizer, which only the training script knows.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from geomx.config.choice_rules import LOSSLESS
from geomx.config.problems import KeyPath, dotted, shown
from geomx.config.run import Run
from geomx.sync import policies
from geomx.sync.contract import AccumulateStep, GradientStep, Policy, mean_period

Keeps = Literal["nothing", "momentum", "squares", "unknown"]

FEWEST_MEANS = 10  # over the run, in a run
SPARSE = 0.25  # codecs that send a smaller fraction of the entries leave most of them to later rounds


@dataclass(frozen=True, slots=True)
class Way:
    """What contributions travel as. `ratio`: which fraction of the entries, None for all; `momentum`: the codec's."""

    path: KeyPath
    spec: str
    ratio: float | None = None
    momentum: float = 0.0

    @classmethod
    def of(cls, path: KeyPath, spec: str) -> Way:
        """Raises `ConfigError` where the codec cannot be made."""
        if spec in LOSSLESS:
            return cls(path, spec)
        from geomx.codecs.pack.noise import RngKey  # noqa: PLC0415 (it imports torch)
        from geomx.codecs.spec import make_codec  # noqa: PLC0415

        codec = make_codec(spec, RngKey())
        return cls(path, spec, codec.ratio, codec.momentum)

    @property
    def is_sparse(self) -> bool:
        return self.ratio is not None and self.ratio < SPARSE


@dataclass(frozen=True, slots=True)
class Setting:
    """What decides. `keeps`: what the script's optimizer keeps of gradients (`squares`: Adam and its like).

    `steps`: how many each worker will take; None where nobody has said.
    """

    policy: Policy
    spec: str  # of the policy
    ways: tuple[Way, ...]  # up
    keeps: Keeps = "unknown"
    optimizer: str = "the optimizer"
    steps: int | None = None


@dataclass(frozen=True, slots=True)
class KnownCost:
    """One sentence, and the key that it is about. `is_certain`: it holds whatever the script does."""

    path: KeyPath
    text: str
    is_certain: bool = True


def setting_of(run: Run) -> Setting:
    """As far as a description tells. Raises `ConfigError` where a policy or a codec cannot be made."""
    ways = (Way.of(("wan", "codec_up"), run.wan.codec_up), Way.of(("lan", "codec_up"), run.lan.codec_up))
    return Setting(policies.make(run.sync.policy), run.sync.policy, ways)


def known_costs(setting: Setting) -> list[KnownCost]:
    """Everything that is known of a setting."""
    return [*_of_sparse_gradients(setting), *_of_few_means(setting)]


INSTEAD = 'run.preset = "slow-link" sends less, and cost less where it was measured (docs/settings.md)'


def _of_sparse_gradients(setting: Setting) -> Iterator[KnownCost]:
    """Most entries come many steps late: what an optimizer keeps of gradients then is of no step at all."""
    if setting.policy.plans not in (GradientStep, AccumulateStep):
        return
    for way in (way for way in setting.ways if way.is_sparse):
        codec = f"{dotted(way.path)} = {shown(way.spec)}"
        if setting.keeps == "squares":
            text = f"{codec} on gradients with {setting.optimizer} cost 3 to 4 points of accuracy; {INSTEAD}"
            yield KnownCost(way.path, text)
        elif setting.keeps == "momentum" and not way.momentum:
            text = (
                f"{codec} with the momentum of {setting.optimizer} diverged, since late entries are sped up once more; "
                "take `bisparse ... momentum=0.9` and an optimizer without momentum"
            )
            yield KnownCost(way.path, text)
        elif setting.keeps == "unknown" and not way.momentum:  # attach refuses momentum beside a codec's own
            text = (
                f"{codec} on gradients cost 3 to 4 points of accuracy with Adam, and with SGD's own momentum it "
                f"diverged (`bisparse ... momentum=0.9` has it in the codec instead); {INSTEAD}"
            )
            yield KnownCost(way.path, text, is_certain=False)


def _of_few_means(setting: Setting) -> Iterator[KnownCost]:
    """Whoever meets once or twice has hardly trained together."""
    period = mean_period(setting.policy)
    if setting.steps is not None and period is not None and setting.steps < FEWEST_MEANS * period:
        text = (
            f"sync.policy = {shown(setting.spec)} averages every {period:,} steps, of {setting.steps:,} in this run: "
            f"workers that meet less than {FEWEST_MEANS} times ended far behind; take a shorter period"
        )
        yield KnownCost(("sync", "policy"), text)
